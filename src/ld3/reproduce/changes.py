"""One thing changed at a time: a learning run with named changes, over seeds, judged alike.

The judge is that of the unchanged run: whatever a plan was learned with, its distances are to the
same teacher, by the same distance, on the same held-out noise.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ld3.compare.spec import steps_of
from ld3.plan import Plan
from ld3.reproduce.ahead import Asked, learn_all, narrowed
from ld3.reproduce.grid import known_columns, line_of
from ld3.reproduce.result import Made, Panel, Row, Table, Value
from ld3.reproduce.spec import merged
from ld3.reproduce.stage import LABELS, Judge, Stage, better, titled
from ld3.searches import make_grid
from ld3.solvers import make_solver
from ld3.table import Tuned

Count = Annotated[int, Field(ge=1, le=100)]
OWN = ("x", "classes")  # words of a change that are not those of a run


class ChangesWords(BaseModel):
    """`learn` are words of `ld3 learn`, `judge` of `ld3 compare`; a change wins over `learn`.

    A change may have `x`, its place on the axis, and `classes`, which are asked for in learning.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: dict[str, Any]
    judge: dict[str, Any]
    changes: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    nfe: Annotated[tuple[Count, ...], Field(min_length=1)]
    seeds: Annotated[int, Field(ge=1, le=20)] = 1
    show: tuple[str, ...] = ("distance",)
    against: tuple[str, ...] = ()  # known grids, for scale
    axis: str = ""  # what x is; none: no curve
    log_x: bool = False
    together: bool = False  # a last row over all changes

    def checked(self, stage: Stage) -> None:
        stage.compare_spec(self.judge)
        known_columns(self.show)
        for change in self.changes:
            for nfe in self.nfe:
                one = self.asked(stage, change, nfe, 0)
                if one.classes:
                    narrowed(one.spec.model, one.classes)

    def asked(self, stage: Stage, change: str, nfe: int, seed: int) -> Asked:
        """The run of a change."""
        words = merged(self.learn, self.changes[change])
        classes = tuple(words.get("classes", ()))
        plain = {word: value for word, value in words.items() if word not in OWN}
        spec = stage.run_spec(plain | {"nfe": [nfe], "seed": seed})
        name = f"{change}, {nfe} evaluations, seed {seed}"
        return Asked(name, spec, classes)


def run_changes(words: ChangesWords, stage: Stage) -> Made:
    """A row for each change and number of evaluations."""
    keys = [
        (change, nfe, seed)
        for change in words.changes
        for nfe in words.nfe
        for seed in range(words.seeds)
    ]
    asked = [words.asked(stage, *key) for key in keys]
    plans = dict(zip(keys, learn_all(asked, stage.jobs, stage.tell), strict=True))
    judge = Judge.of(stage.compare_spec(words.judge), stage.tell)
    values: dict[tuple[str, int], dict[str, Value]] = {}
    for done, change in enumerate(words.changes):
        stage.tell(f"judging: {change}", done, len(words.changes))
        for nfe in words.nfe:
            own = [plans[change, nfe, seed] for seed in range(words.seeds)]
            values[change, nfe] = _judged(judge, own)
    known = {
        (name, nfe): _known(judge, asked[0].spec.model_dump(), name, nfe)
        for name in words.against
        for nfe in words.nfe
    }
    shown = [key for key in words.show if any(key in found for found in values.values())]
    rows = [*words.changes, *words.against]
    return Made(
        tables=tuple(_table(words, rows, values | known, key) for key in shown),
        panels=tuple(_panel(words, values, known, key) for key in shown) if words.axis else (),
        notes=tuple(_notes(words, values, shown)),
    )


def _judged(judge: Judge, plans: Sequence[Plan]) -> dict[str, Value]:
    """Of the plans of all seeds."""
    values = judge.values([judge(plan.make_solver(), plan.tuned) for plan in plans])
    for key in ("validation", "evaluations"):
        several = [float(plan.learned[key]) for plan in plans]
        if key == "evaluations":
            teacher = [float(plan.learned["teacher_evaluations"]) for plan in plans]
            several = [own + more for own, more in zip(several, teacher, strict=True)]
        values[key] = Value.over(several)
    return values


def _known(judge: Judge, spec: Mapping[str, Any], name: str, nfe: int) -> dict[str, Value]:
    solver = make_solver(spec["solver"], spec["order"], spec["variant"])
    schedule = judge.ground.loaded.model.schedule
    grid = make_grid(name, schedule, steps_of(solver, nfe))
    return judge.values([judge(solver, Tuned(grid))])


def _table(
    words: ChangesWords,
    rows: Sequence[str],
    values: Mapping[tuple[str, int], dict[str, Value]],
    key: str,
) -> Table:
    body = [
        Row(label=(name,), cells=tuple(values[name, nfe].get(key) for nfe in words.nfe))
        for name in rows
    ]
    if words.together:
        over = []
        for nfe in words.nfe:
            means = [v.value for name in words.changes if (v := values[name, nfe].get(key))]
            over.append(Value.over(means) if means else None)
        body.append(Row(label=("all of them: mean ± deviation between",), cells=tuple(over)))
    return Table(
        title=titled(key),
        head=("what is changed", *(f"NFE {nfe}" for nfe in words.nfe)),
        rows=tuple(body),
        best="" if words.together else better(key),
    )


def _panel(
    words: ChangesWords,
    values: Mapping[tuple[str, int], dict[str, Value]],
    known: Mapping[tuple[str, int], dict[str, Value]],
    key: str,
) -> Panel:
    at = {name: float(change["x"]) for name, change in words.changes.items() if "x" in change}
    lines = [
        line_of(
            f"{nfe} evaluations", {x: _banded(values[name, nfe], key) for name, x in at.items()}
        )
        for nfe in words.nfe
    ]
    for (name, nfe), found in known.items():
        if key in found:
            level = dict.fromkeys((min(at.values()), max(at.values())), found[key])
            line = line_of(f"{name}, {nfe} evaluations", level)
            lines.append(line.model_copy(update={"style": "dashed", "low": (), "high": ()}))
    return Panel(
        title="", x=words.axis, y=LABELS[key], log_x=words.log_x, lines=tuple(lines),
    )  # fmt: skip


def _banded(values: Mapping[str, Value], key: str) -> Value | None:
    """With the standard deviation over seeds as its ends: the noise is the same for all points."""
    value = values.get(key)
    if value is None or value.spread is None:
        return value if value is None else value.model_copy(update={"low": None, "high": None})
    ends = {"low": value.value - value.spread, "high": value.value + value.spread}
    return value.model_copy(update=ends)


def _notes(
    words: ChangesWords, values: Mapping[tuple[str, int], dict[str, Value]], shown: Sequence[str]
) -> list[str]:
    """Changes against the first, where seeds tell them apart."""
    if words.together or words.seeds < 2:
        return []
    first, *others = words.changes
    notes = []
    for key in shown:
        signs = {
            name: [_apart(values[first, n].get(key), values[name, n].get(key)) for n in words.nfe]
            for name in others
        }
        said = [
            _said(words.nfe, signs, word, sign) for word, sign in (("lower", -1), ("higher", 1))
        ]
        notes.append(
            f"{titled(key)}, farther from that of '{first}' than two standard errors over "
            f"{words.seeds} seeds: {'; '.join(filter(None, said)) or 'none'}."
        )
    return notes


def _said(counts: Sequence[int], signs: Mapping[str, Sequence[int]], word: str, sign: int) -> str:
    """The changes of one sign, with the numbers of evaluations if there are several."""
    told = []
    for name, found in signs.items():
        at = [str(n) for n, s in zip(counts, found, strict=True) if s == sign]
        if at:
            told.append(f"'{name}'" + (f" (at {', '.join(at)})" if len(counts) > 1 else ""))
    return f"{word} with {', '.join(told)}" if told else ""


def _apart(a: Value | None, b: Value | None) -> int:
    """1 if b is larger by more than two standard errors of the difference, -1 if smaller."""
    if a is None or b is None or a.spread is None or b.spread is None:
        return 0
    reach = 2 * math.hypot(a.spread, b.spread) / math.sqrt(a.seeds)
    return int(b.value - a.value > reach) - int(a.value - b.value > reach)
