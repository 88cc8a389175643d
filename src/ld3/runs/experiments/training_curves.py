"""Metrics during training: scores of each plan that validated better than all before."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ld3.experiment import Curve, Findings, Panel, ResultTable, Value
from ld3.learner.learn import Progress
from ld3.plan import tuned_from_json, tuned_to_json
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import LearningOptions, Sessions
from ld3.runs.experiments.scoring import LABELS, Scoring, check_metrics
from ld3.runs.run import Run, learn_run
from ld3.runs.spec import Count, read_solver, solver_title
from ld3.table import TunedSolver

Step = tuple[int, float, TunedSolver]  # iteration, validation loss, the best solver so far


class TrainingOptions(LearningOptions):
    """A run for each solver and number of evaluations."""

    solvers: Annotated[tuple[str, ...], Field(min_length=1)]
    nfe: Annotated[tuple[Count, ...], Field(min_length=1)]
    points: Annotated[int, Field(ge=2, le=100)] = 12  # that are scored, at most
    show: tuple[str, ...] = ("distance",)

    def checked(self, context: Context) -> None:
        super().checked(context)
        check_metrics(self.show)

    def wanted(self, context: Context) -> dict[str, tuple[str, dict[str, Any]]]:
        found: dict[str, tuple[str, dict[str, Any]]] = {}
        for solver in self.solvers:
            for nfe in self.nfe:
                label = f"{solver_title(read_solver(solver))}, {nfe} evaluations"
                found[label] = (f"{solver}, NFE {nfe}", {"solver": solver, "nfe": [nfe]})
        return found


def run_training(options: TrainingOptions, context: Context) -> Findings:
    """Curves over the iterations, one per seed; and how well validation loss and metrics agree."""
    scoring = Scoring.of(context.compare_spec(options.scoring), context)
    sessions = Sessions(ranks=context.ranks)
    curves: dict[str, list[Curve]] = {"validation": []}
    rows: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for name, requests in options.requests(context).items():
        for seed, request in enumerate(requests):
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
                    rows.setdefault((name, LABELS[key]), []).append(ends)
    table = ResultTable.of(
        "From the start to the end of learning",
        ("solver", "metric", "start", "end", "rank correlation with the validation loss"),
        {label: map(Value.over, zip(*several, strict=True)) for label, several in rows.items()},
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
                best[start] = progress.state.best_values
                own = {"iteration": progress.iteration, "loss": progress.best}
                found.setdefault(start, []).append(own | tuned_to_json(progress.tuned))

        learned = learn_run(replace(run, folder=None), watch=watch)
        return found[learned.start]

    return [
        (int(step["iteration"]), float(step["loss"]), tuned_from_json(step, run.solver))
        for step in run.session.cache.json("training", run.key, make)
    ]


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
