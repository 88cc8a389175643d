"""Plans learned for one solver, used with another."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from ld3.compare import CompareSpec, run_compare, write_files
from ld3.compare.cells import cells_of, found_of, needs_of
from ld3.compare.spec import title
from ld3.errors import SpecError
from ld3.reproduce.grid import known_columns
from ld3.reproduce.result import Made, Row, Table, Value
from ld3.reproduce.stage import LABELS, Judge, Judged, Stage, better, titled

Values = dict[tuple[int, str, str], dict[str, Value]]  # evaluations, learned for, used with
WHOLE = ("ld3", "ddss-ggdm")  # these find coefficients, too, which belong to one solver


class CrossWords(BaseModel):
    """`compare` are words of `ld3 compare` with one method; `show` names columns of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compare: dict[str, Any]
    show: tuple[str, ...] = ("distance",)

    def checked(self, stage: Stage) -> None:
        spec = stage.compare_spec(self.compare)
        known_columns(self.show)
        if len(spec.made_solvers) < 2:
            raise SpecError(f"solvers: got {', '.join(spec.solvers)}, wanted several")
        for solver in spec.made_solvers:
            if solver.nfe(1) != 1:
                raise SpecError(
                    f"solvers: got {solver.name}, wanted one evaluation a step, so that the times "
                    "of one solver fit the others"
                )
        method = ", ".join(spec.names)
        if len(spec.names) > 1 or "solver" not in needs_of(method) or method in WHOLE:
            raise SpecError(
                f"methods: got {method}, wanted one that looks at the solver and finds times only, "
                "such as ld3-times"
            )


def run_cross(words: CrossWords, stage: Stage) -> Made:
    """Rows: learned for; columns: used with."""
    spec = stage.compare_spec(words.compare)
    write_files(run_compare(spec, stage.tell), stage.folder)
    names = [title(solver) for solver in spec.made_solvers]
    judge = Judge.of(spec, stage.tell)
    seen: dict[tuple[int, str, str], list[Judged]] = {}
    cells = cells_of(spec)
    for done, cell in enumerate(cells):
        stage.tell(f"judging: {cell.name}", done, len(cells))
        tuned = found_of(judge.ground, cell).tuned
        for used in spec.made_solvers:
            key = cell.nfe, title(cell.solver), title(used)
            one = Judged({}, {}) if tuned is None else judge(used, tuned)
            seen.setdefault(key, []).append(one)
    values = {key: judge.values(several) for key, several in seen.items()}
    shown = [key for key in words.show if any(key in found for found in values.values())]
    return Made(
        tables=tuple(_table(spec, names, values, key) for key in shown),
        notes=tuple(_note(spec, names, values, key) for key in shown),
    )


def _table(spec: CompareSpec, names: Sequence[str], values: Values, key: str) -> Table:
    rows = [
        Row(
            label=(str(nfe), own),
            cells=tuple(values[nfe, own, used].get(key) for used in names),
            note="not finite",
        )
        for nfe in spec.nfe
        for own in names
    ]
    head = ("NFE", "learned for", *(f"used with {name}" for name in names))
    return Table(title=titled(key), head=head, rows=tuple(rows), best=better(key), groups=True)


def _note(spec: CompareSpec, names: Sequence[str], values: Values, key: str) -> str:
    """How often the plan learned for a solver is the best one for it."""
    sign = -1 if better(key) == "higher" else 1
    right = 0
    for nfe in spec.nfe:
        for used in names:
            known = {own: values[nfe, own, used] for own in names}
            column = {own: sign * found[key].value for own, found in known.items() if key in found}
            right += bool(column) and column.get(used) == min(column.values())
    return (
        f"By {LABELS[key]}, the plan learned for a solver is the best for it in {right} of "
        f"{len(spec.nfe) * len(names)} columns."
    )
