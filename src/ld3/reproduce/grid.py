"""Methods x solvers x numbers of evaluations: a comparison, shown as the paper shows it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from ld3.compare import CompareSpec, run_compare, write_files
from ld3.compare.cells import cells_of, found_of, samples_of
from ld3.compare.spec import title
from ld3.comparison import Comparison
from ld3.errors import SpecError, unknown
from ld3.pictures import draw_rows, is_image
from ld3.reproduce.result import Line, Made, Panel, Row, Table, Value
from ld3.reproduce.spec import merged
from ld3.reproduce.stage import LABELS, Judge, Judged, Stage, better
from ld3.solvers import Solver

Key = tuple[str, str, int]  # solver, method, evaluations
Values = dict[Key, dict[str, Value]]
COSTS = ("evaluations", "seconds")


class GridWords(BaseModel):
    """`compare` are words of `ld3 compare`; `show` names the columns of it that are shown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compare: dict[str, Any]
    show: tuple[str, ...]
    goal: dict[str, Any] = {}  # teacher words of what distances are to, if not to the teacher

    def checked(self, stage: Stage) -> None:
        stage.compare_spec(merged(self.compare, self.goal))
        known_columns(self.show)
        if self.goal and not {"teacher_solver", "teacher_steps"} <= set(self.goal):
            said = ", ".join(self.goal)
            raise SpecError(f"goal: got {said}, wanted at least teacher_solver and teacher_steps")

    def label(self, key: str) -> str:
        """Of a column; distances are to the goal, if there is one."""
        if not self.goal:
            return LABELS[key]
        aim = f"{self.goal['teacher_steps']} steps of {self.goal['teacher_solver']}"
        return LABELS[key].replace("the teacher", aim)


def known_columns(show: Sequence[str]) -> None:
    """Refuses what no table has."""
    for key in show:
        if key not in LABELS:
            raise unknown("column to show", key, LABELS)


def run_grid(words: GridWords, stage: Stage) -> Made:
    """Tables of the metrics that are shown, one row a solver and method."""
    spec = stage.compare_spec(words.compare)
    comparison = run_compare(spec, stage.tell)
    write_files(comparison, stage.folder)
    judge = Judge.of(spec, stage.tell)
    by = judge
    if words.goal:
        aims = stage.compare_spec(merged(words.compare, words.goal) | {"full": False})
        by = Judge.of(aims, stage.tell)
    values = _values(spec, comparison, judge, by)
    shown = [key for key in words.show if any(key in found for found in values.values())]
    failed = {
        (block.solver, row.method, block.nfe): row.failed
        for block in comparison.blocks
        for row in block.rows
        if row.failed
    }
    return Made(
        tables=tuple(_table(spec, values, key, words.label(key), failed) for key in shown),
        panels=tuple(p for key in shown for p in _panels(spec, values, key, words.label(key))),
        notes=tuple(
            _note(spec, values, key, words.label(key)) for key in shown if key not in COSTS
        ),
    )


def _values(spec: CompareSpec, comparison: Comparison, judge: Judge, by: Judge) -> Values:
    """Found by one judge's ground, measured by another; all of it is on disk by now."""
    found: dict[Key, list[Any]] = {}
    judged: dict[Key, list[Judged]] = {}
    for cell in cells_of(spec):
        key = (title(cell.solver), cell.method, cell.nfe)
        one = found_of(judge.ground, cell)
        found.setdefault(key, []).append(one)
        seen = Judged({}, {}) if one.tuned is None else by(cell.solver, one.tuned)
        judged.setdefault(key, []).append(seen)
    teacher = {
        (block.solver, row.method, block.nfe): row.teacher_evaluations
        for block in comparison.blocks
        for row in block.rows
    }
    return {
        key: by.values(judged[key])
        | {
            "evaluations": Value.over([one.evaluations + teacher[key] for one in found[key]]),
            "seconds": Value.over([one.seconds for one in found[key]]),
        }
        for key in found
    }


def _table(
    spec: CompareSpec, values: Values, key: str, label: str, failed: Mapping[Key, str]
) -> Table:
    rows = []
    for solver in map(title, spec.made_solvers):
        for method in spec.names:
            cells = tuple(values[solver, method, nfe].get(key) for nfe in spec.nfe)
            why = any((solver, method, nfe) in failed for nfe in spec.nfe)
            rows.append(Row(label=(solver, method), cells=cells, note="failed" if why else ""))
    return Table(
        title=label[0].upper() + label[1:],
        head=("solver", "method", *(f"NFE {nfe}" for nfe in spec.nfe)),
        rows=tuple(rows),
        best=better(key),
        groups=True,
    )


def _panels(spec: CompareSpec, values: Values, key: str, label: str) -> Iterator[Panel]:
    for solver in map(title, spec.made_solvers):
        lines = [
            line_of(method, {n: values[solver, method, n].get(key) for n in spec.nfe})
            for method in spec.names
        ]
        yield Panel(
            title=solver, x="evaluations", y=label, log_y=better(key) == "lower",
            lines=tuple(line for line in lines if any(line.y)),
        )  # fmt: skip


def line_of(name: str, points: Mapping[float, Value | None]) -> Line:
    """A curve with its intervals, where there are any."""
    there = {x: value for x, value in points.items() if value is not None}
    ends = [v for v in there.values() if v.low is not None and v.high is not None]
    band = len(ends) == len(there) and all((v.low or 0) > 0 for v in ends)
    return Line(
        name=name,
        x=tuple(float(x) for x in there),
        y=tuple(v.value for v in there.values()),
        low=tuple(v.low or 0.0 for v in ends) if band else (),
        high=tuple(v.high or 0.0 for v in ends) if band else (),
    )


def _note(spec: CompareSpec, values: Values, key: str, label: str) -> str:
    """Who is first how often."""
    places = [(title(solver), nfe) for solver in spec.made_solvers for nfe in spec.nfe]
    sign = -1 if better(key) == "higher" else 1
    first: Counter[str] = Counter()
    for solver, nfe in places:
        there = {m: values[solver, m, nfe] for m in spec.names}
        known = {m: sign * v[key].value for m, v in there.items() if key in v}
        if known:
            first[min(known, key=lambda m: known[m])] += 1
    said = ", ".join(f"`{method}` in {count}" for method, count in first.most_common())
    return f"Best by {label}, of {len(places)} pairs of solver and evaluations: {said}."


class PicturesWords(BaseModel):
    """A comparison whose samples are looked at; `count` of them, the first held-out noises."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compare: dict[str, Any]
    count: int = 12

    def checked(self, stage: Stage) -> None:
        spec = stage.compare_spec(self.compare)
        if not 1 <= self.count <= spec.held_out:
            raise SpecError(f"count: got {self.count}, wanted 1 to held_out = {spec.held_out}")


def run_pictures(words: PicturesWords, stage: Stage) -> Made:
    """The same noise by every method, a picture for each solver and number of evaluations."""
    spec = stage.compare_spec(words.compare)
    comparison = run_compare(spec, stage.tell)
    write_files(comparison, stage.folder)
    judge = Judge.of(spec, stage.tell)
    ground, numbers = judge.ground, list(range(words.count))
    target = ground.held.target[: words.count]
    if not is_image(target):
        raise SpecError(f"pictures: got {ground.loaded.name}, wanted a model of pictures")
    pictures = []
    for solver in spec.made_solvers:
        for nfe in spec.nfe:
            rows = [("teacher", target)]
            for cell in _first(spec, solver, nfe):
                found = found_of(ground, cell)
                if found.tuned is not None:
                    table = ground.table(cell, found.tuned)
                    rows.append((cell.method, samples_of(ground, table, numbers)))
            name = f"{title(solver).replace(' ', '-')}-nfe{nfe}.png"
            draw_rows(stage.folder / name, rows)
            pictures.append(name)
    values = _values(spec, comparison, judge, judge)
    return Made(
        tables=(_table(spec, values, "distance", LABELS["distance"], {}),),
        pictures=tuple(pictures),
        notes=(
            f"The first {words.count} held-out noises, not chosen; "
            "each column of a picture is one noise.",
            _note(spec, values, "distance", LABELS["distance"]),
        ),
    )


def _first(spec: CompareSpec, solver: Solver, nfe: int) -> list[Any]:
    """The cells of the first seed."""
    return [c for c in cells_of(spec) if c.solver == solver and c.nfe == nfe and not c.seed]
