"""What all kinds of experiment share: where things are kept, learned plans, and their judge.

Learning is :func:`ld3.runs.run_learn`, judging is that of `ld3 compare`; both keep what they did in
one folder, by content, so that experiments share pairs, plans and scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ld3 import zoo
from ld3.compare.cells import KEYS, Cell, Ground, held_of
from ld3.compare.full import Bench, full_of
from ld3.compare.spec import CompareSpec
from ld3.compare.summary import Values
from ld3.metrics.bootstrap import Weights, jackknife, mean
from ld3.reproduce.result import Value
from ld3.scores import Tell
from ld3.solvers import Solver
from ld3.spec import RunSpec
from ld3.table import Tuned

LABELS = {
    "distance": "distance to the teacher",
    "distance_accurate": "distance to an accurate run",
    "rmse": "RMSE to the teacher",
    "rmse_accurate": "RMSE to an accurate run",
    "frechet": "Fréchet distance to real pictures",
    "frechet_accurate": "Fréchet distance to an accurate run",
    "kid": "KID to an accurate run",
    "cmmd": "CMMD to an accurate run",
    "precision": "precision",
    "recall": "recall",
    "agreement": "class as asked for",
    "evaluations": "evaluations to find it, teacher included",
    "seconds": "seconds to find it",
    "validation": "loss on the validation pairs",
}
HIGHER = ("precision", "recall", "agreement")


def titled(key: str) -> str:
    """The name of a column at the head of a table."""
    return LABELS[key][0].upper() + LABELS[key][1:]


def better(key: str) -> Literal["lower", "higher"]:
    """Which way is good."""
    return "higher" if key in HIGHER else "lower"


@dataclass(frozen=True)
class Stage:
    """Where an experiment takes place."""

    model: str
    folder: Path  # of the result
    cache: Path  # of everything that was computed
    tell: Tell
    jobs: int = 1
    features: Path | None = None  # the judge of models that are not ours
    device: str = "cpu"

    def compare_spec(self, words: Mapping[str, Any]) -> CompareSpec:
        """The words of a comparison, on this stage."""
        fixed: dict[str, Any] = {
            "model": self.model, "out": self.cache, "jobs": self.jobs, "device": self.device,
        }  # fmt: skip
        if self.model not in zoo.SHIPPED:
            fixed |= {"features": self.features, "full": self._judged(words)}
        return CompareSpec.read({**words, **fixed})

    def _judged(self, words: Mapping[str, Any]) -> bool:
        return bool(words.get("full")) and self.features is not None

    def run_spec(self, words: Mapping[str, Any]) -> RunSpec:
        """The words of a learning run, on this stage; it is judged elsewhere."""
        fixed = {"out": self.cache, "held_out": 2, "judged": 0, "device": self.device}
        return RunSpec.read({"model": self.model, **words, **fixed})


@dataclass(frozen=True)
class Judged:
    """What is known of one tuned solver; empty if its samples are not finite."""

    held: Mapping[str, Sequence[float]]
    full: Values


@dataclass(frozen=True)
class Judge:
    """The same held-out noise and the same features for everything."""

    ground: Ground
    bench: Bench | None

    @classmethod
    def of(cls, spec: CompareSpec, tell: Tell) -> "Judge":
        ground = Ground.of(spec)
        for teacher in (spec.teacher, ground.accurate):
            ground.held_by(teacher, tell)
        return cls(ground, Bench.of(ground, tell) if spec.full else None)

    def __call__(self, solver: Solver, tuned: Tuned) -> Judged:
        cell = Cell("", solver, solver.nfe(tuned.grid.steps), None)
        held = held_of(self.ground, cell, tuned)
        judged = full_of(self.bench, cell, tuned) if self.bench and held else {}
        return Judged(held, judged)

    def values(self, several: Sequence[Judged]) -> dict[str, Value]:
        """Every metric, over seeds; nothing if one of them is not finite."""
        if not several or not all(one.held for one in several):
            return {}
        values = {}
        weights = Weights.drawn(self.ground.spec.held_out, len(several))
        for key in KEYS:
            held = np.array([one.held[key] for one in several], dtype=np.float64)  # (S, n)
            means = [float(m) for m in held.mean(1)]
            values[key] = Value.over(means, mean(held, weights))
        for key in several[0].full:
            if all(key in one.full for one in several):
                whole = [one.full[key][0] for one in several]
                values[key] = Value.over(whole, jackknife(whole, [o.full[key][1] for o in several]))
        return values
