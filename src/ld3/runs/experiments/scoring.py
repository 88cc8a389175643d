"""Scores of tuned solvers over learning seeds: by the same teacher, noise and features for all."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ld3.errors import unknown
from ld3.experiment import Value, Values
from ld3.known_grids import GRIDS, HANDMADE, make_grid
from ld3.metrics.bootstrap import Weights
from ld3.runs.cloud_metrics import CloudMetrics
from ld3.runs.compare.run import compare_session, set_metrics_of
from ld3.runs.compare.spec import CompareSpec
from ld3.runs.compare.statistics import intervals
from ld3.runs.experiments.context import Context
from ld3.runs.session import KEYS, Session, mean
from ld3.runs.set_metrics import SetMetrics
from ld3.runs.spec import steps_of
from ld3.solvers import Solver
from ld3.table import TunedSolver
from ld3.teacher import Teacher

LABELS = {
    "distance": "distance to the teacher",
    "distance_accurate": "distance to the reference",
    "rmse": "RMSE to the teacher",
    "rmse_accurate": "RMSE to the reference",
    "frechet": "Fréchet distance to real images",
    "frechet_accurate": "Fréchet distance to the reference",
    "kid": "KID to the reference",
    "cmmd": "CMMD to the reference",
    "precision": "precision",
    "recall": "recall",
    "agreement": "share of samples with the class of their condition",
    "mmd": "MMD-CD to real clouds, times 1000",
    "coverage": "COV-CD of real clouds, %",
    "nna": "1-NNA-CD, %, best at 50",
    "jsd": "JSD to real clouds, times 1000",
    "jsd_half": "JSD to real clouds on the halved grid, times 1000",
    "ratio": "distance relative to the baseline",
    "evaluations": "evaluations to find it, teacher included",
    "seconds": "seconds to find it",
    "validation": "loss on the validation pairs",
    "training": "distance on the training pairs",
}
HIGHER = ("precision", "recall", "agreement", "coverage")
BEST = {"best hand-made": tuple(n for n in GRIDS if n in HANDMADE), "best known": GRIDS}
"""Names for the grid with the smallest distance, picked on the noise that is scored."""


def check_metrics(names: Sequence[str]) -> None:
    for name in names:
        if name not in LABELS:
            raise unknown("metric to show", name, LABELS)


def title_of(key: str) -> str:
    """The name of a metric as the title of a table."""
    return capital(LABELS[key])


def shown(keys: Sequence[str], values: Iterable[Values]) -> list[str]:
    """Those metrics that at least one of the values has."""
    found = set().union(*values)
    return [key for key in keys if key in found]


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def better(key: str) -> Literal["lower", "higher"]:
    """Which way is good."""
    return "higher" if key in HIGHER else "lower"


@dataclass(frozen=True)
class Scoring:
    """A session with the number of held-out seeds, and set metrics if they are wanted."""

    session: Session
    held_out: int
    sets: SetMetrics | CloudMetrics | None

    @classmethod
    def of(cls, spec: CompareSpec, context: Context) -> "Scoring":
        session = compare_session(spec, context.report, ranks=context.ranks)
        sets = set_metrics_of(session, spec) if spec.full else None
        return cls(session, spec.held_out, sets)

    def to_teacher(self, teacher: Teacher) -> "Scoring":
        """The same noise and reference, with errors to another teacher."""
        session = self.session
        return replace(self, session=session.with_teacher(teacher, session.reference))

    def at_guidance(self, scale: float) -> "Scoring":
        """Errors at another guidance scale; without set metrics."""
        return replace(self, session=self.session.at_guidance(scale), sets=None)

    def values(self, several: Sequence[TunedSolver | None]) -> Values:
        """Every metric over one solver per seed; empty if samples of one are not finite."""
        tables = [self.session.table(tuned) for tuned in several if tuned is not None]
        held = list(self.session.scores(tables, self.held_out))
        if len(tables) < len(several) or not held or not all(held):
            return {}
        sets = [self.sets.values(table) if self.sets else {} for table in tables]
        weights = Weights.drawn(self.held_out, len(several))
        values, both = {}, list(zip(held, sets, strict=True))
        for key, interval in intervals(held, sets, weights).items():
            each = [mean(h[key]) if key in KEYS else s[key][0] for h, s in both]
            values[key] = Value.over(each, interval)
        return values

    def known(self, name: str, solver: Solver, nfe: int) -> Values:
        """Of a known grid, or of the best one of :data:`BEST`."""
        steps = steps_of(solver, nfe)
        if name not in BEST:
            return self.grid_values(name, solver, steps)
        best = self.best_grid(BEST[name], solver, steps)
        return named(self.grid_values(best, solver, steps), best)

    def grid_values(self, name: str, solver: Solver, steps: int) -> Values:
        grid = make_grid(name, self.session.model.schedule, steps)
        return self.values([TunedSolver(solver, grid)])

    def best_grid(self, among: Collection[str], solver: Solver, steps: int) -> str:
        """The grid with the smallest mean distance."""
        plain = replace(self, sets=None)
        found = {name: plain.grid_values(name, solver, steps) for name in among}
        return min((n for n in found if found[n]), key=lambda n: found[n]["distance"].value)


def named(values: Values, name: str) -> Values:
    """With the name of what was picked, at its distance."""
    if "distance" not in values:
        return values
    return values | {"distance": values["distance"].model_copy(update={"name": name})}
