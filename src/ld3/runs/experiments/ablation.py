"""One setting changed at a time: a learning run with named changes, over solvers and seeds.

All rows are scored alike: whatever a plan was learned with, its errors are to the same teacher, by
the same distance, on the same held-out seeds.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from ld3.experiment import Curve, Findings, Panel, ResultTable, Value, Values
from ld3.known_grids import make_method
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import (
    LearningOptions,
    class_subset,
    learn_all,
    learning_values,
    training_distance,
)
from ld3.runs.experiments.scoring import (
    BEST,
    LABELS,
    Scoring,
    better,
    check_metrics,
    shown,
    title_of,
)
from ld3.runs.spec import Count, read_solver, solver_title

Key = tuple[str, str, int]  # solver, change, evaluations
X = "x"  # place of a change on the axis


class AblationOptions(LearningOptions):
    """A change wins over `learn`. It may have `x`, its place on the axis, and `classes`, the
    conditions of its pairs."""

    changes: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    nfe: Annotated[tuple[Count, ...], Field(min_length=1)]
    solvers: tuple[str, ...] = ()  # none: that of `learn`
    show: tuple[str, ...] = ("distance",)
    against: tuple[str, ...] = ()  # known grids, `best hand-made` or `best known`
    axis: str = ""  # what x is; none: no curve
    log_x: bool = False
    together: bool = False  # a last row over all changes

    def checked(self, context: Context) -> None:
        super().checked(context)
        check_metrics(self.show)
        for name in self.against:
            if name not in BEST:
                make_method(name)
        for one, *_ in self.requests(context).values():
            if one.classes:
                class_subset(one.spec.model, one.classes)

    def all_solvers(self, context: Context) -> Sequence[str]:
        """As `NAME:ORDER:VARIANT`."""
        if self.solvers:
            return self.solvers
        solver = context.run_spec({**self.learn, "nfe": [self.nfe[0]]}).make_solver()
        return [":".join(map(str, filter(None, (solver.name, solver.order, solver.variant))))]

    def wanted(self, context: Context) -> dict[Key, tuple[str, dict[str, Any]]]:
        found = {}
        for solver in self.all_solvers(context):
            fixed = {"solver": solver, "order": None, "variant": None}
            for change, options in self.changes.items():
                own = {name: value for name, value in options.items() if name != X} | fixed
                for nfe in self.nfe:
                    name = f"{change}, {solver}, NFE {nfe}"
                    found[solver, change, nfe] = (name, own | {"nfe": [nfe]})
        return found


def run_ablation(options: AblationOptions, context: Context) -> Findings:
    """A row for each solver and change, a column for each number of evaluations."""
    solvers = options.all_solvers(context)
    results = learn_all(options.requests(context), context)
    scoring = Scoring.of(context.compare_spec(options.scoring), context)
    values: dict[Key, Values] = {}
    for done, (key, own) in enumerate(results.items()):
        context.report(f"scoring: {key[1]}", done, len(results))
        values[key] = scoring.values([learned.tuned for _, learned in own]) | learning_values(own)
        if "training" in options.show:
            values[key]["training"] = Value.over([training_distance(*one) for one in own])
    for solver in solvers:
        for name in options.against:
            for nfe in options.nfe:
                values[solver, name, nfe] = scoring.known(name, read_solver(solver), nfe)
    _add_ratios(options, values)
    keys = shown(options.show, values.values())
    return Findings(
        tables=tuple(_table(options, solvers, values, key) for key in keys),
        panels=tuple(_panel(options, s, values, key) for key in keys for s in solvers)
        if options.axis
        else (),
        notes=tuple(note for key in keys for note in _notes(options, solvers, values, key)),
        reference=scoring.session.reference.title,
    )


def _add_ratios(options: AblationOptions, values: Mapping[Key, Values]) -> None:
    """Mean distance over that of the first change."""
    first = next(iter(options.changes))
    for (solver, _, nfe), found in values.items():
        base = values[solver, first, nfe]
        if "distance" in found and "distance" in base:
            ratio = found["distance"].value / max(base["distance"].value, 1e-300)
            found["ratio"] = Value(value=ratio)


def _table(
    options: AblationOptions, solvers: Sequence[str], values: Mapping[Key, Values], key: str
) -> ResultTable:
    several, rows = len(solvers) > 1, dict[tuple[str, ...], list[Value | None]]()
    for solver in solvers:
        label = (solver_title(read_solver(solver)),) * several
        for name in (*options.changes, *options.against):
            rows[*label, name] = [values[solver, name, nfe].get(key) for nfe in options.nfe]
        if options.together:
            columns = zip(*(rows[*label, name] for name in options.changes), strict=True)
            known = [[value.value for value in column if value is not None] for column in columns]
            over = [Value.over(means) if means else None for means in known]
            rows[*label, "all of them: mean ± deviation between"] = over
    title = title_of(key)
    if key == "ratio":
        title = f"Distance relative to '{next(iter(options.changes))}'"
    head = [*["solver"] * several, "what is changed", *(f"NFE {nfe}" for nfe in options.nfe)]
    return ResultTable.of(title, head, rows, "" if options.together else better(key), several)


def _panel(options: AblationOptions, solver: str, values: Mapping[Key, Values], key: str) -> Panel:
    at = {name: float(change[X]) for name, change in options.changes.items() if X in change}
    curves = []
    for nfe in options.nfe:
        points = {x: _banded(values[solver, name, nfe].get(key)) for name, x in at.items()}
        curves.append(Curve.of(f"{nfe} evaluations", points))
    for name in options.against:
        for nfe in options.nfe:
            found = values[solver, name, nfe].get(key)
            if found is not None:
                level = dict.fromkeys((min(at.values()), max(at.values())), found)
                curve = Curve.of(f"{name}, {nfe} evaluations", level)
                flat = {"style": "dashed", "low": (), "high": ()}
                curves.append(curve.model_copy(update=flat))
    title = solver_title(read_solver(solver)) if options.solvers else ""
    return Panel(
        title=title, x=options.axis, y=LABELS[key], log_x=options.log_x, curves=tuple(curves)
    )


def _banded(value: Value | None) -> Value | None:
    """With the standard deviation over seeds as its ends: the noise is the same for all points."""
    if value is None or value.spread is None:
        return value and value.model_copy(update={"low": None, "high": None})
    ends = {"low": value.value - value.spread, "high": value.value + value.spread}
    return value.model_copy(update=ends)


def _notes(
    options: AblationOptions, solvers: Sequence[str], values: Mapping[Key, Values], key: str
) -> list[str]:
    """Which changes differ from the first by more than two standard errors over seeds."""
    if options.together or options.seeds < 2 or key == "ratio":
        return []
    first, *others = options.changes
    found: dict[int, dict[str, list[str]]] = {-1: {}, 1: {}}
    for solver in solvers:
        for name in others:
            for nfe in options.nfe:
                base, own = values[solver, first, nfe], values[solver, name, nfe]
                sign = _apart(base.get(key), own.get(key))
                where = [solver_title(read_solver(solver))] * (len(solvers) > 1)
                where += [f"NFE {nfe}"] * (len(options.nfe) > 1)
                if sign:
                    found[sign].setdefault(name, []).append(" ".join(where))
    parts = []
    for sign, word in ((-1, "lower"), (1, "higher")):
        names = [
            f"'{name}'" + (f" ({', '.join(where)})" if where[0] else "")
            for name, where in found[sign].items()
        ]
        parts += [f"{word} with {', '.join(names)}"] if names else []
    return [
        f"{title_of(key)}, farther from that of '{first}' than two standard errors over "
        f"{options.seeds} seeds: {'; '.join(parts) or 'none'}."
    ]


def _apart(a: Value | None, b: Value | None) -> int:
    """1 if b is larger by more than two standard errors of the difference, -1 if smaller."""
    if a is None or b is None or a.spread is None or b.spread is None:
        return 0
    reach = 2 * math.hypot(a.spread, b.spread) / math.sqrt(a.seeds)
    return int(b.value - a.value > reach) - int(a.value - b.value > reach)
