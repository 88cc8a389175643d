"""While it is learned: what the judge says of each plan that validated better than all before."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from ld3.compare.spec import read_solver, title
from ld3.errors import SpecError
from ld3.grids import TimeGrid
from ld3.learner.learn import begin, learn
from ld3.plan import Plan
from ld3.problem import ROUGH, SECANT, Problem, roughness
from ld3.reproduce.grid import known_columns
from ld3.reproduce.kept import kept
from ld3.reproduce.result import Line, Made, Panel, Row, Table, Value
from ld3.reproduce.stage import LABELS, Judge, Stage
from ld3.runs import Job, jobs, pairs_for
from ld3.scores import Tell
from ld3.searches import make_grid
from ld3.spec import RunSpec
from ld3.table import Tuned

Count = Annotated[int, Field(ge=1, le=100)]


class TrainingWords(BaseModel):
    """`learn` are words of `ld3 learn`, with a start by name; `judge` of `ld3 compare`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: dict[str, Any]
    judge: dict[str, Any]
    solvers: Annotated[tuple[str, ...], Field(min_length=1)]
    nfe: Annotated[tuple[Count, ...], Field(min_length=1)]
    seeds: Annotated[int, Field(ge=1, le=20)] = 1
    points: Annotated[int, Field(ge=2, le=100)] = 12  # that are judged, at most
    show: tuple[str, ...] = ("distance",)

    def checked(self, stage: Stage) -> None:
        stage.compare_spec(self.judge)
        known_columns(self.show)
        for solver in self.solvers:
            start = self.spec(stage, solver, self.nfe[0], 0).start
            if start == "best" or start.endswith(".json"):
                raise SpecError(f"start: got {start}, wanted a method of `ld3 methods`")

    def spec(self, stage: Stage, solver: str, nfe: int, seed: int) -> RunSpec:
        made = read_solver(solver)
        own = {"solver": made.name, "order": made.order, "variant": made.variant or None}
        return stage.run_spec({**self.learn, **own, "nfe": [nfe], "seed": seed})


@dataclass(frozen=True)
class Step:
    """A plan that was the best so far."""

    iteration: int
    validation: float
    times: list[float]
    net_times: list[float]
    corrections: list[list[float]] | None


def run_training(words: TrainingWords, stage: Stage) -> Made:
    """Curves over the iterations, one a seed; and how well validation and judge agree."""
    judge = Judge.of(stage.compare_spec(words.judge), stage.tell)
    curves: list[tuple[str, str, list[float], list[float]]] = []  # key, name, iterations, values
    rows: dict[tuple[str, str], list[Sequence[float]]] = {}
    for solver in words.solvers:
        for nfe in words.nfe:
            name = f"{title(read_solver(solver))}, {nfe} evaluations"
            for seed in range(words.seeds):
                (job,) = jobs(words.spec(stage, solver, nfe, seed), [nfe])
                steps = _thinned(_history(job, stage.tell), words.points)
                seen = []
                for done, step in enumerate(steps):
                    stage.tell(f"judging: {name}, seed {seed}", done, len(steps))
                    seen.append(judge.values([judge(job.solver, _tuned(step))]))
                at = [float(step.iteration) for step in steps]
                valid = [step.validation for step in steps]
                curves.append(("validation", name, at, valid))
                for key in words.show:
                    if all(key in found for found in seen):
                        values = [found[key].value for found in seen]
                        curves.append((key, name, at, values))
                        agree = _rank_correlation(valid, values)
                        rows.setdefault((name, key), []).append((values[0], values[-1], agree))
    shown = [key for key in words.show if any(key == own for _, own in rows)]
    table = Table(
        title="From the start to the end of learning",
        head=("solver", "judged by", "start", "end", "rank correlation with validation"),
        rows=tuple(
            Row(
                label=(name, LABELS[key]),
                cells=tuple(Value.over([one[c] for one in several]) for c in range(3)),
            )
            for (name, key), several in rows.items()
        ),
    )
    panels = [
        Panel(
            title="", x="iteration", y=LABELS[key], log_y=True,
            lines=tuple(
                Line(name=name, x=tuple(at), y=tuple(values))
                for own, name, at, values in curves
                if own == key
            ),
        )
        for key in ("validation", *shown)
    ]  # fmt: skip
    falls = sum(one[1] < one[0] for several in rows.values() for one in several)
    total = sum(len(several) for several in rows.values())
    note = f"Lower at the end of learning than at its start in {falls} of {total} curves."
    return Made(tables=(table,), panels=tuple(panels), notes=(note,))


def _history(job: Job, tell: Tell) -> list[Step]:
    """Learn, and keep every plan that validated better; from disk if it was done before."""
    key = job.identity | {"what": "history"}
    content = kept(job.spec.out, key, lambda: [asdict(step) for step in _learn(job, tell)])
    return [Step(**step) for step in content]


def _learn(job: Job, tell: Tell) -> list[Step]:
    train, valid = (
        pairs_for(job, seeds, what, tell)
        for what, seeds in (("learning pairs", job.seeds[0]), ("validation pairs", job.seeds[1]))
    )
    model = job.loaded.model
    problem = Problem(model, job.solver, job.steps, job.distance, train, valid, job.guidances[0])
    start = make_grid(job.spec.start, model.schedule, job.steps)
    if roughness(problem, start) > ROUGH:
        problem = replace(problem, secant=SECANT)
    state = begin(problem, job.preset.recipe, start)
    steps = [Step(0, state.best, start.times.tolist(), start.net_times.tolist(), None)]
    best = state.best_numbers
    for progress in learn(problem, job.preset.recipe, state, job.spec.seed):
        tell(f"learning: loss {progress.loss:.5f}", progress.iteration, progress.total)
        if progress.state.best_numbers is not best:
            best, tuned = progress.state.best_numbers, progress.tuned
            times, net = tuned.grid.times.tolist(), tuned.grid.net_times.tolist()
            steps.append(Step(progress.iteration, progress.best, times, net, Plan.rows(tuned)))
    return steps


def _tuned(step: Step) -> Tuned:
    grid = TimeGrid.of(step.times, step.net_times)
    if step.corrections is None:
        return Tuned(grid)
    count = len(step.corrections)
    corrections = torch.zeros(count, count + 1, dtype=torch.float64, device="cpu")
    for n, row in enumerate(step.corrections):
        corrections[n, : len(row)] = torch.tensor(row, dtype=torch.float64, device="cpu")
    return Tuned(grid, corrections)


def _thinned(steps: Sequence[Step], limit: int) -> list[Step]:
    """Evenly, with both ends."""
    if len(steps) <= limit:
        return list(steps)
    places = np.linspace(0, len(steps) - 1, limit).round().astype(int)
    return [steps[place] for place in places]


def _rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's; 0 where one of them never changes."""
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (a, b)]
    if len(a) < 2 or any(len(set(values)) < 2 for values in (a, b)):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
