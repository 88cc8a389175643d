"""One setting changed at a time: a learning run with named changes, over solvers and seeds.

All rows are scored alike: whatever a plan was learned with, its errors are to the same teacher, by
the same distance, on the same held-out noise.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ld3.experiment import (
    Curve,
    Findings,
    Panel,
    ResultRow,
    ResultTable,
    Value,
    Values,
    merged,
)
from ld3.known_grids import make_method
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import (
    RunRequest,
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
    title_of,
)
from ld3.runs.spec import Count, read_solver, solver_title

Key = tuple[str, str, int]  # solver, change, evaluations
OWN = ("x", "classes")  # options of a change that are not those of a run


class AblationOptions(BaseModel):
    """`learn` are options of `ld3 learn`, `scoring` of `ld3 compare`; a change wins over `learn`.

    A change may have `x`, its place on the axis, and `classes`, the conditions of its pairs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: dict[str, Any]
    scoring: dict[str, Any]
    changes: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    nfe: Annotated[tuple[Count, ...], Field(min_length=1)]
    solvers: tuple[str, ...] = ()  # none: that of `learn`
    seeds: Annotated[int, Field(ge=1, le=20)] = 1
    show: tuple[str, ...] = ("distance",)
    against: tuple[str, ...] = ()  # known grids, `best hand-made` or `best known`
    axis: str = ""  # what x is; none: no curve
    log_x: bool = False
    together: bool = False  # a last row over all changes

    def checked(self, context: Context) -> None:
        context.compare_spec(self.scoring)
        check_metrics(self.show)
        for name in self.against:
            if name not in BEST:
                make_method(name)
        for solver in self.all_solvers(context):
            for change in self.changes:
                for nfe in self.nfe:
                    one = self.request(context, solver, change, nfe, 0)
                    if one.classes:
                        class_subset(one.spec.model, one.classes)

    def all_solvers(self, context: Context) -> list[str]:
        """As `NAME:ORDER:VARIANT`."""
        if self.solvers:
            return list(self.solvers)
        solver = context.run_spec({**self.learn, "nfe": [self.nfe[0]]}).make_solver()
        return [":".join(map(str, filter(None, (solver.name, solver.order, solver.variant))))]

    def request(
        self, context: Context, solver: str, change: str, nfe: int, seed: int
    ) -> RunRequest:
        """The run of a change."""
        options = merged(self.learn, self.changes[change])
        classes = tuple(options.get("classes", ()))
        plain = {name: value for name, value in options.items() if name not in OWN}
        plain |= {"solver": solver, "order": None, "variant": None, "nfe": [nfe], "seed": seed}
        name = f"{change}, {solver}, NFE {nfe}, seed {seed}"
        return RunRequest(name, context.run_spec(plain), classes)


def run_ablation(options: AblationOptions, context: Context) -> Findings:
    """A row for each solver and change, a column for each number of evaluations."""
    solvers = options.all_solvers(context)
    keys = [(s, c, n) for s in solvers for c in options.changes for n in options.nfe]
    requests = [options.request(context, *k, seed) for k in keys for seed in range(options.seeds)]
    results = iter(learn_all(requests, context))
    scoring = Scoring.of(context.compare_spec(options.scoring), context.report, context.ranks)
    values: dict[Key, Values] = {}
    for done, key in enumerate(keys):
        context.report(f"scoring: {key[1]}", done, len(keys))
        own = [next(results) for _ in range(options.seeds)]
        values[key] = scoring.values([learned.tuned for _, learned in own]) | learning_values(own)
        if "training" in options.show:
            values[key]["training"] = Value.over([training_distance(*one) for one in own])
    for solver, name, nfe in [
        (s, a, n) for s in solvers for a in options.against for n in options.nfe
    ]:
        values[solver, name, nfe] = scoring.known(name, read_solver(solver), nfe)
    _add_ratios(options, values)
    shown = [key for key in options.show if any(key in found for found in values.values())]
    return Findings(
        tables=tuple(_table(options, solvers, values, key) for key in shown),
        panels=tuple(_panel(options, s, values, key) for key in shown for s in solvers)
        if options.axis
        else (),
        notes=tuple(note for key in shown for note in _notes(options, solvers, values, key)),
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
    rows = []
    for solver in solvers:
        label = (solver_title(read_solver(solver)),) if len(solvers) > 1 else ()
        for name in (*options.changes, *options.against):
            cells = tuple(values[solver, name, nfe].get(key) for nfe in options.nfe)
            rows.append(ResultRow(label=(*label, name), cells=cells))
        if options.together:
            over: list[Value | None] = []
            for nfe in options.nfe:
                found = [values[solver, name, nfe].get(key) for name in options.changes]
                means = [value.value for value in found if value is not None]
                over.append(Value.over(means) if means else None)
            name = "all of them: mean ± deviation between"
            rows.append(ResultRow(label=(*label, name), cells=tuple(over)))
    title = title_of(key)
    if key == "ratio":
        title = f"Distance relative to '{next(iter(options.changes))}'"
    head = (*(["solver"] if len(solvers) > 1 else []), "what is changed")
    return ResultTable(
        title=title, head=(*head, *(f"NFE {nfe}" for nfe in options.nfe)), rows=tuple(rows),
        best="" if options.together else better(key), groups=len(solvers) > 1,
    )  # fmt: skip


def _panel(options: AblationOptions, solver: str, values: Mapping[Key, Values], key: str) -> Panel:
    at = {name: float(change["x"]) for name, change in options.changes.items() if "x" in change}
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
