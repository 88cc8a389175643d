"""Times learned for one solver, used with another."""

from collections.abc import Mapping, Sequence
from typing import Any

from ld3.errors import SpecError
from ld3.experiment import Findings, Frozen, ResultTable, Values
from ld3.runs.compare.cells import found_cells
from ld3.runs.compare.spec import CompareSpec, needs_of
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.scoring import LABELS, Scoring, better, check_metrics, shown, title_of
from ld3.runs.spec import solver_title
from ld3.table import TunedSolver

Key = tuple[int, str, str]  # evaluations, learned for, used with
WITH_COEFFICIENTS = ("ld3", "ddss-ggdm", "gs")  # coefficients belong to one solver


class CrossSolverOptions(Frozen):
    """`compare` are options of `ld3 compare` with one method; `show` names metrics."""

    compare: dict[str, Any]
    show: tuple[str, ...] = ("distance",)

    def checked(self, context: Context) -> None:
        spec = context.compare_spec(self.compare)
        check_metrics(self.show)
        if len(spec.made_solvers) < 2:
            raise SpecError(f"solvers: got {', '.join(spec.solvers)}, expected several")
        for solver in spec.made_solvers:
            if solver.nfe(1) != 1:
                raise SpecError(
                    f"solvers: got {solver.name}, expected one evaluation per step, so that the "
                    "times of one solver fit the others"
                )
        method = ", ".join(spec.names)
        single = len(spec.names) == 1 and "solver" in needs_of(method)
        if not single or method in WITH_COEFFICIENTS:
            raise SpecError(
                f"methods: got {method}, expected one that depends on the solver and finds times "
                "only, such as ld3-times"
            )


def run_cross_solver(options: CrossSolverOptions, context: Context) -> Findings:
    """Rows: learned for; columns: used with."""
    spec = context.compare_spec(options.compare)
    context.compared(spec)
    names = [solver_title(solver) for solver in spec.made_solvers]
    scoring = Scoring.of(spec, context)
    found: dict[Key, list[TunedSolver | None]] = {}
    for cell, result in found_cells(scoring.session, spec):
        for used in spec.made_solvers:
            key = cell.nfe, solver_title(cell.solver), solver_title(used)
            own = result.tuned and TunedSolver(used, result.tuned.grid)
            found.setdefault(key, []).append(own)
    values = {}
    for done, (key, several) in enumerate(found.items()):
        context.report(f"scoring: {key[1]} with {key[2]}", done, len(found))
        values[key] = scoring.values(several)
    keys = shown(options.show, values.values())
    return Findings(
        tables=tuple(_table(spec, names, values, key) for key in keys),
        notes=tuple(_note(spec, names, values, key) for key in keys),
        reference=scoring.session.reference.title,
    )


def _table(
    spec: CompareSpec, names: Sequence[str], values: Mapping[Key, Values], key: str
) -> ResultTable:
    head = ("NFE", "learned for", *(f"used with {name}" for name in names))
    rows = {
        (str(nfe), own): [values[nfe, own, used].get(key) for used in names]
        for nfe in spec.nfe
        for own in names
    }
    return ResultTable.of(title_of(key), head, rows, better(key), groups=True, note="not finite")


def _note(spec: CompareSpec, names: Sequence[str], values: Mapping[Key, Values], key: str) -> str:
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
