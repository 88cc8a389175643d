"""Methods x solvers x numbers of evaluations: `ld3 compare` as tables and curves."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from ld3.comparison import Comparison, Row
from ld3.errors import SpecError
from ld3.experiment import Curve, Findings, Frozen, Panel, ResultTable, Value, Values, merged
from ld3.report.tables import significant
from ld3.runs.compare.cells import CellResult, found_cells
from ld3.runs.compare.spec import CompareSpec, kind_of
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.scoring import (
    LABELS,
    Scoring,
    better,
    capital,
    check_metrics,
    named,
    shown,
)
from ld3.runs.set_metrics import SetMetrics
from ld3.runs.spec import solver_title

Key = tuple[str, str, int]  # solver, method, evaluations
NOT_RANKED = ("evaluations", "seconds", "ratio")


class GridOptions(Frozen):
    """`compare` are options of `ld3 compare`; `show` names metrics, one table each."""

    compare: dict[str, Any]
    show: tuple[str, ...]
    goal: dict[str, Any] = Field({})  # options of a teacher that errors are taken to instead
    best_baselines: bool = False  # show the best hand-made grid and the best baseline only

    def checked(self, context: Context) -> None:
        context.compare_spec(merged(self.compare, self.goal))
        check_metrics(self.show)
        if self.goal and not {"teacher_solver", "teacher_steps"} <= set(self.goal):
            got = ", ".join(self.goal)
            raise SpecError(f"goal: got {got}, expected at least teacher_solver and teacher_steps")

    def label(self, key: str) -> str:
        """Of a metric; errors are to the goal, if there is one."""
        if not self.goal:
            return LABELS[key]
        goal = f"{self.goal['teacher_steps']} steps of {self.goal['teacher_solver']}"
        return LABELS[key].replace("the teacher", goal)


def run_grid(options: GridOptions, context: Context) -> Findings:
    """One table per metric, one row per solver and method."""
    spec = context.compare_spec(options.compare)
    comparison = context.compared(spec)
    scoring = aimed = Scoring.of(spec, context)
    if options.goal:
        goal = context.compare_spec(merged(options.compare, options.goal)).teacher
        aimed = scoring.to_teacher(goal)
    values = grid_values(spec, comparison, scoring, aimed)
    methods: Sequence[str] = spec.names
    if options.best_baselines:
        methods, values = _with_best(spec, values)
    failed = {key for key, row in _rows(comparison).items() if row.failed}
    tables, panels, notes = list[ResultTable](), list[Panel](), list[str]()
    for key in shown(options.show, values.values()):
        label = options.label(key)
        tables.append(grid_table(spec, methods, values, key, label, failed))
        panels += _panels(spec, methods, values, key, label)
        if key not in NOT_RANKED:
            notes += first_places(spec, methods, values, key, label)
        if key == "frechet" and isinstance(scoring.sets, SetMetrics):
            own = scoring.sets.frechet(None).get(key, float("nan"))
            notes.append(f"{capital(label)} of the reference solution itself: {significant(own)}.")
    return Findings(
        tables=tuple(tables), panels=tuple(panels), notes=tuple(notes),
        reference=scoring.session.reference.title,
    )  # fmt: skip


def grid_values(
    spec: CompareSpec, comparison: Comparison, scoring: Scoring, aimed: Scoring
) -> dict[Key, Values]:
    """Of every method over its seeds: found in one session, scored by `aimed`; read from the
    cache, where the comparison left them."""
    found: dict[Key, list[CellResult]] = {}
    for cell, result in found_cells(scoring.session, spec):
        key = (solver_title(cell.solver), cell.method, cell.nfe)
        found.setdefault(key, []).append(result)
    rows, values = _rows(comparison), {}
    for key, several in found.items():
        spent = [float(one.evaluations + rows[key].teacher_evaluations) for one in several]
        values[key] = aimed.values([one.tuned for one in several])
        values[key]["evaluations"] = Value.over(spent)
        values[key]["seconds"] = Value.over([one.seconds for one in several])
        ratio = rows[key].ratio
        if ratio is not None:
            values[key]["ratio"] = Value(**dict(ratio), seeds=len(several))
    return values


def _rows(comparison: Comparison) -> dict[Key, Row]:
    return {(b.solver, row.method, b.nfe): row for b in comparison.blocks for row in b.rows}


def _with_best(
    spec: CompareSpec, values: Mapping[Key, Values]
) -> tuple[list[str], dict[Key, Values]]:
    """Baselines replaced by the best of each group, picked on the noise that is scored."""
    baselines = [name for name in spec.names if kind_of(name) != "learned"]
    hand = [name for name in baselines if kind_of(name) == "handmade"]
    groups = {"best hand-made": hand, "best baseline": baselines}
    found = {key: value for key, value in values.items() if key[1] not in baselines}
    for solver in map(solver_title, spec.made_solvers):
        for nfe in spec.nfe:
            for group, names in groups.items():
                here = {n: values[solver, n, nfe] for n in names}
                finite = {n: v["distance"].value for n, v in here.items() if "distance" in v}
                best = min(finite, key=lambda n: finite[n], default="")
                found[solver, group, nfe] = named(here[best], best) if best else {}
    return [*groups, *(n for n in spec.names if n not in baselines)], found


def grid_table(
    spec: CompareSpec,
    methods: Sequence[str],
    values: Mapping[Key, Values],
    key: str,
    label: str,
    failed: set[Key],
) -> ResultTable:
    """Rows are solvers and methods, columns numbers of evaluations."""
    rows = {
        (solver, method): [values[solver, method, nfe].get(key) for nfe in spec.nfe]
        for solver in map(solver_title, spec.made_solvers)
        for method in methods
    }
    head = ("solver", "method", *(f"NFE {nfe}" for nfe in spec.nfe))
    table = ResultTable.of(capital(label), head, rows, better(key), groups=True)
    lost = {(solver, method) for solver, method, _ in failed}
    noted = [
        row.model_copy(update={"note": "failed"}) if row.label in lost else row
        for row in table.rows
    ]
    return table.model_copy(update={"rows": tuple(noted)})


def _panels(
    spec: CompareSpec, methods: Sequence[str], values: Mapping[Key, Values], key: str, label: str
) -> Iterator[Panel]:
    for solver in map(solver_title, spec.made_solvers):
        curves = [
            Curve.of(method, {n: values[solver, method, n].get(key) for n in spec.nfe})
            for method in methods
        ]
        yield Panel(
            title=solver, x="evaluations", y=label, log_y=better(key) == "lower",
            curves=tuple(curve for curve in curves if any(curve.y)),
        )  # fmt: skip


def first_places(
    spec: CompareSpec, methods: Sequence[str], values: Mapping[Key, Values], key: str, label: str
) -> list[str]:
    """Which method is best how often, and how often a learned one is inside the interval of the
    best; nothing where there is only one setting."""
    total = len(spec.made_solvers) * len(spec.nfe)
    if total < 2:
        return []
    sign = -1 if better(key) == "higher" else 1
    first, near = Counter[str](), Counter[str]()
    for solver in map(solver_title, spec.made_solvers):
        for nfe in spec.nfe:
            there = {m: values[solver, m, nfe] for m in methods}
            known = {m: v[key] for m, v in there.items() if key in v}
            if not known:
                continue
            best = min(known, key=lambda m: sign * known[m].value)
            first[best] += 1
            ends = [end for end in (known[best].low, known[best].high) if end is not None]
            worst = max([sign * known[best].value, *(sign * end for end in ends)])
            near.update(m for m in known if sign * known[m].value <= worst)
    counts = ", ".join(f"`{method}` in {count}" for method, count in first.most_common())
    found = [f"Best by {label}, of {total} pairs of solver and evaluations: {counts}."]
    learned = [m for m in methods if m in near and kind_of(m) == "learned"]
    if near != first and learned:
        inside = ", ".join(f"`{method}` in {near[method]}" for method in learned)
        found.append(f"Best by {label} or inside the 95 % interval of the best: {inside}.")
    return found
