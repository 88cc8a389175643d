"""Plans learned for one solver, used with another."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ld3.compare.spec import read_solver, title
from ld3.errors import SpecError
from ld3.reproduce.ahead import Asked, learn_all
from ld3.reproduce.grid import known_columns
from ld3.reproduce.result import Made, Row, Table, Value
from ld3.reproduce.stage import LABELS, Judge, Stage, better, titled
from ld3.solvers import Solver

Count = Annotated[int, Field(ge=1, le=100)]
Values = dict[tuple[int, str, str], dict[str, Value]]  # evaluations, learned for, used with


class CrossWords(BaseModel):
    """`learn` are words of `ld3 learn`, `judge` of `ld3 compare`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: dict[str, Any]
    judge: dict[str, Any]
    solvers: Annotated[tuple[str, ...], Field(min_length=2)]
    nfe: Annotated[tuple[Count, ...], Field(min_length=1)]
    seeds: Annotated[int, Field(ge=1, le=20)] = 1
    show: tuple[str, ...] = ("distance",)

    def checked(self, stage: Stage) -> None:
        stage.compare_spec(self.judge)
        known_columns(self.show)
        for solver in map(read_solver, self.solvers):
            if solver.nfe(1) != 1:
                raise SpecError(
                    f"solvers: got {solver.name}, wanted one evaluation a step, so that the times "
                    "of one solver fit the others"
                )
            spec = self.asked(stage, solver, self.nfe[0], 0).spec
            if spec.learn not in ("times", "times+net"):
                raise SpecError(
                    f"learn: got {spec.learn}, wanted times or times+net: coefficients belong to "
                    "one solver"
                )

    def asked(self, stage: Stage, solver: Solver, nfe: int, seed: int) -> Asked:
        """The run for one of the solvers."""
        own = {"solver": solver.name, "order": solver.order, "variant": solver.variant or None}
        spec = stage.run_spec({**self.learn, **own, "nfe": [nfe], "seed": seed})
        return Asked(f"{title(solver)}, {nfe} evaluations, seed {seed}", spec)


def run_cross(words: CrossWords, stage: Stage) -> Made:
    """Rows: learned for; columns: used with."""
    solvers = [read_solver(word) for word in words.solvers]
    names = [title(solver) for solver in solvers]
    keys = [(s, n, seed) for s in solvers for n in words.nfe for seed in range(words.seeds)]
    asked = [words.asked(stage, *key) for key in keys]
    plans = dict(zip(keys, learn_all(asked, stage.jobs, stage.tell), strict=True))
    judge = Judge.of(stage.compare_spec(words.judge), stage.tell)
    values: Values = {}
    for done, (own, nfe) in enumerate((s, n) for s in solvers for n in words.nfe):
        stage.tell(f"judging: plans for {title(own)}", done, len(solvers) * len(words.nfe))
        for used in solvers:
            several = [plans[own, nfe, seed].tuned for seed in range(words.seeds)]
            seen = [judge(used, tuned) for tuned in several]
            values[nfe, title(own), title(used)] = judge.values(seen)
    shown = [key for key in words.show if any(key in found for found in values.values())]
    return Made(
        tables=tuple(_table(words, names, values, key) for key in shown),
        notes=tuple(_note(words, names, values, key) for key in shown),
    )


def _table(words: CrossWords, names: Sequence[str], values: Values, key: str) -> Table:
    rows = [
        Row(
            label=(str(nfe), own),
            cells=tuple(values[nfe, own, used].get(key) for used in names),
            note="not finite",
        )
        for nfe in words.nfe
        for own in names
    ]
    head = ("NFE", "learned for", *(f"used with {name}" for name in names))
    return Table(title=titled(key), head=head, rows=tuple(rows), best=better(key), groups=True)


def _note(words: CrossWords, names: Sequence[str], values: Values, key: str) -> str:
    """How often the plan learned for a solver is the best one for it."""
    sign = -1 if better(key) == "higher" else 1
    right = 0
    for nfe in words.nfe:
        for used in names:
            known = {own: values[nfe, own, used] for own in names}
            column = {own: sign * found[key].value for own, found in known.items() if key in found}
            right += bool(column) and column.get(used) == min(column.values())
    return (
        f"By {LABELS[key]}, the plan learned for a solver is the best for it in {right} of "
        f"{len(words.nfe) * len(names)} columns."
    )
