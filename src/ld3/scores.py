"""How good a grid is: distances to the teacher and to an accurate run, on held-out noise."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3 import zoo
from ld3.distances import Distance
from ld3.metrics import Moments
from ld3.models import Cond, Model, bind_network, prior
from ld3.table import Table
from ld3.teacher import Pairs

JUDGED = 3_000_000_000  # where the seeds of the Fréchet distance begin
ACCURATE = 40  # steps of UniPC-3 on the logSNR grid: stands for the exact solution
ACCURATE_JUDGED = 20  # the same for Fréchet distances of many samples, in `ld3 learn`
BATCH = 100

Tell = Callable[[str, int, int], None]
"""Told what is being done, how far it is, and out of how much."""


def silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""


Sampler = Callable[[Tensor, Cond], Tensor]


@dataclass(frozen=True)
class Scores:
    """One solver on held-out noise."""

    distance: float  # to the teacher, in the distance that was learned with
    to_teacher: float  # root mean square
    to_accurate: float
    frechet: float | None = None  # to real pictures
    frechet_accurate: float | None = None  # to an accurate run's samples from the same noise


def sampler(model: Model, table: Table, guidance: float) -> Sampler:
    """(x, condition) -> decoded samples."""

    @torch.no_grad()
    def sample(x: Tensor, cond: Cond) -> Tensor:
        return model.decode(table.run(bind_network(model, cond, guidance=guidance), x))

    return sample


def score(
    model: Model, table: Table, distance: Distance, held: Pairs, exact: Tensor, guidance: float
) -> Scores:
    """A table on held-out noise: against the teacher's samples and the `exact` ones."""
    x = model.schedule.prior_std * held.noise
    sample = sampler(model, table, guidance)(x, held.cond)
    with torch.no_grad():
        own = float(distance(sample, held.target).mean())
    return Scores(own, _rms(sample, held.target), _rms(sample, exact))


def judged(model: Model, draw: Sampler, count: int, device: str) -> Moments:
    """How the shipped judge sees `count` samples."""
    judge = zoo.judge(device)

    def features() -> Iterator[Tensor]:
        for first in range(0, count, BATCH):
            seeds = range(JUDGED + first, JUDGED + min(first + BATCH, count))
            sample = draw(prior(model, seeds, device), model.conditions(seeds))
            with torch.no_grad():
                yield judge.features(sample.float().clamp(-1, 1))

    return Moments.of(features())


def _rms(a: Tensor, b: Tensor) -> float:
    return float((a - b).flatten(1).square().mean(1).sqrt().mean())
