"""How good a grid is: distances to the teacher and to an accurate run, on held-out noise."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3 import zoo
from ld3.discretizers import make_grid
from ld3.distances import Distance
from ld3.grids import TimeGrid, knots
from ld3.metrics import Moments, frechet_distance
from ld3.models import Cond, Model, bind_network, prior
from ld3.solvers import Solver, make_solver
from ld3.table import compile_table
from ld3.teacher import Pairs

JUDGED = 3_000_000_000  # where the seeds of the Fréchet distance begin
ACCURATE = 60  # steps of UniPC-3 on the logSNR grid
BATCH = 100

Tell = Callable[[str, int, int], None]
"""Told what is being done, how far it is, and out of how much."""
Sampler = Callable[[Tensor, Cond], Tensor]


@dataclass(frozen=True)
class Scores:
    """One grid on held-out noise."""

    distance: float  # to the teacher, in the distance that was learned with
    to_teacher: float  # root mean square
    to_accurate: float
    frechet: float | None = None


def sampler(model: Model, solver: Solver, grid: TimeGrid, guidance: float) -> Sampler:
    """(x, condition) -> decoded samples."""
    table = compile_table(solver, knots(model.schedule, grid), model.prediction)

    @torch.no_grad()
    def sample(x: Tensor, cond: Cond) -> Tensor:
        return model.decode(table.run(bind_network(model, cond, guidance=guidance), x))

    return sample


def accurate(model: Model, guidance: float, steps: int = ACCURATE) -> Sampler:
    """A run with many steps, which stands for the exact solution."""
    grid = make_grid("logsnr", model.schedule, steps)
    return sampler(model, make_solver("unipc"), grid, guidance)


def score(
    model: Model,
    solver: Solver,
    grids: Mapping[str, TimeGrid],
    distance: Distance,
    held: Pairs,
    guidance: float,
    tell: Tell,
) -> dict[str, Scores]:
    """Every grid on the same held-out noise."""
    x = model.schedule.prior_std * held.noise
    exact = accurate(model, guidance)(x, held.cond)
    scores = {}
    for done, (name, grid) in enumerate(grids.items()):
        sample = sampler(model, solver, grid, guidance)(x, held.cond)
        with torch.no_grad():
            own = float(distance(sample, held.target).mean())
        scores[name] = Scores(own, _rms(sample, held.target), _rms(sample, exact))
        tell("scoring on held-out noise", done + 1, len(grids))
    return scores


def frechet(model: Model, draw: Sampler, count: int, device: str) -> float:
    """Of `count` samples to the test set, by the features of the shipped judge."""
    judge = zoo.judge(device)

    def features() -> Iterator[Tensor]:
        for first in range(0, count, BATCH):
            seeds = range(JUDGED + first, JUDGED + min(first + BATCH, count))
            sample = draw(prior(model, seeds, device), model.conditions(seeds))
            with torch.no_grad():
                yield judge.features(sample.float().clamp(-1, 1))

    return frechet_distance(Moments.of(features()), zoo.judge_moments())


def _rms(a: Tensor, b: Tensor) -> float:
    return float((a - b).flatten(1).square().mean(1).sqrt().mean())
