"""Metrics during training: scores of each plan that validated better than all before."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ld3.experiment import Curve, Findings, Panel, ResultRow, ResultTable, Value
from ld3.grids import TimeGrid
from ld3.learner.learn import Progress
from ld3.plan import rows_of, tensor_of
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import RunRequest, Sessions
from ld3.runs.experiments.scoring import LABELS, Scoring, check_metrics
from ld3.runs.run import Run, learn_run
from ld3.runs.spec import Count, read_solver, solver_title
from ld3.table import TunedSolver

Step = tuple[int, float, TunedSolver]  # iteration, validation loss, the best solver so far


class TrainingOptions(BaseModel):
    """`learn` are options of `ld3 learn`, `scoring` of `ld3 compare`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: dict[str, Any]
    scoring: dict[str, Any]
    solvers: Annotated[tuple[str, ...], Field(min_length=1)]
    nfe: Annotated[tuple[Count, ...], Field(min_length=1)]
    seeds: Annotated[int, Field(ge=1, le=20)] = 1
    points: Annotated[int, Field(ge=2, le=100)] = 12  # that are scored, at most
    show: tuple[str, ...] = ("distance",)

    def checked(self, context: Context) -> None:
        context.compare_spec(self.scoring)
        check_metrics(self.show)
        for solver in self.solvers:
            self.request(context, solver, self.nfe[0], 0)

    def request(self, context: Context, solver: str, nfe: int, seed: int) -> RunRequest:
        options = {**self.learn, "solver": solver, "nfe": [nfe], "seed": seed}
        return RunRequest(f"{solver}, NFE {nfe}, seed {seed}", context.run_spec(options))


def run_training(options: TrainingOptions, context: Context) -> Findings:
    """Curves over the iterations, one per seed; and how well validation loss and metrics agree."""
    scoring = Scoring.of(context.compare_spec(options.scoring), context.report, context.ranks)
    sessions = Sessions(ranks=context.ranks)
    curves: dict[str, list[Curve]] = {"validation": []}
    rows: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for solver, nfe in [(s, n) for s in options.solvers for n in options.nfe]:
        name = f"{solver_title(read_solver(solver))}, {nfe} evaluations"
        for seed in range(options.seeds):
            request = options.request(context, solver, nfe, seed)
            run = sessions.make_run(request, context.report)
            steps = _thinned(best_so_far(run), options.points)
            found = []
            for done, (_, _, tuned) in enumerate(steps):
                context.report(f"scoring: {name}, seed {seed}", done, len(steps))
                found.append(scoring.values([tuned]))
            at = tuple(float(iteration) for iteration, _, _ in steps)
            losses = [loss for _, loss, _ in steps]
            curves["validation"].append(Curve(name=name, x=at, y=tuple(losses)))
            for key in options.show:
                if all(key in values for values in found):
                    y = [values[key].value for values in found]
                    curves.setdefault(key, []).append(Curve(name=name, x=at, y=tuple(y)))
                    ends = (y[0], y[-1], rank_correlation(losses, y))
                    rows.setdefault((name, key), []).append(ends)
    table = ResultTable(
        title="From the start to the end of learning",
        head=("solver", "metric", "start", "end", "rank correlation with the validation loss"),
        rows=tuple(
            ResultRow(
                label=(name, LABELS[key]),
                cells=tuple(Value.over([one[c] for one in several]) for c in range(3)),
            )
            for (name, key), several in rows.items()
        ),
    )
    panels = [
        Panel(title="", x="iteration", y=LABELS[key], log_y=True, curves=tuple(own))
        for key, own in curves.items()
    ]
    every = [one for several in rows.values() for one in several]
    falls = sum(end < start for start, end, _ in every)
    note = f"Lower at the end of learning than at its start in {falls} of {len(every)} curves."
    return Findings(
        tables=(table,), panels=tuple(panels), notes=(note,),
        reference=scoring.session.reference.title,
    )  # fmt: skip


def best_so_far(run: Run) -> list[Step]:
    """Every solver of a run that validated better than all before, from the start on."""

    def make() -> list[dict[str, Any]]:
        found: dict[str, list[dict[str, Any]]] = {}
        best: dict[str, object] = {}

        def watch(start: str, progress: Progress) -> None:
            if best.get(start) is not progress.state.best_values:
                best[start], grid = progress.state.best_values, progress.tuned.grid
                found.setdefault(start, []).append(
                    {
                        "iteration": progress.iteration,
                        "loss": progress.best,
                        "times": grid.times.tolist(),
                        "net_times": grid.net_times.tolist(),
                        "corrections": rows_of(progress.tuned.corrections),
                    }
                )

        learned = learn_run(replace(run, folder=None), watch=watch)
        return found[learned.start]

    steps = []
    for step in run.session.cache.json("training", run.key, make):
        grid, rows = TimeGrid.of(step["times"], step["net_times"]), step["corrections"]
        tuned = TunedSolver(run.solver, grid, None if rows is None else tensor_of(rows))
        steps.append((int(step["iteration"]), float(step["loss"]), tuned))
    return steps


def _thinned(steps: Sequence[Step], limit: int) -> list[Step]:
    """Evenly, with both ends."""
    if len(steps) <= limit:
        return list(steps)
    places = np.linspace(0, len(steps) - 1, limit).round().astype(int)
    return [steps[place] for place in places]


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's; 0 where one of them never changes."""
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (a, b)]
    if len(a) < 2 or any(len(set(values)) < 2 for values in (a, b)):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
