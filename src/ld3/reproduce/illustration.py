"""Soft forcing on a line: few steps cannot follow the teacher from the same noise, but from noise
nearby, and the law of the samples is what counts.
"""

from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ld3.errors import SpecError
from ld3.grids import TimeGrid, knots
from ld3.models import Model, bind
from ld3.reproduce.ahead import Asked, learn_all
from ld3.reproduce.result import Line, Made, Panel, Row, Table, Value
from ld3.reproduce.stage import Stage
from ld3.sampling import integrate, trajectory
from ld3.searches import make_grid
from ld3.seeds import noise
from ld3.solvers import Solver, make_solver
from ld3.zoo.loading import load_model

FIRST_SEED = 6_000_000_000
FINE = 200  # steps of the paths that stand for the exact ones
TRIED = 401  # points of a ball, to find the best start in it
EDGES = torch.linspace(-2.5, 2.5, 61, dtype=torch.float64, device="cpu")  # of the histograms


class IllustrationWords(BaseModel):
    """`learn` are words of `ld3 learn`; a radius of 0 is hard forcing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: dict[str, Any]
    radii: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=2)]
    nfe: Annotated[int, Field(ge=1, le=20)] = 3
    seeds: Annotated[int, Field(ge=1, le=20)] = 1
    paths: Annotated[int, Field(ge=2, le=100)] = 9
    samples: Annotated[int, Field(ge=10, le=100_000)] = 2000

    def checked(self, stage: Stage) -> None:
        for radius in self.radii:
            self.asked(stage, radius, 0)

    def asked(self, stage: Stage, radius: float, seed: int) -> Asked:
        """r = gamma d / NFE^2 with d = 1."""
        forcing = {"gamma": radius * self.nfe**2, "rate_noise": 1.0 if radius > 0 else 0.0}
        recipe = {**self.learn.get("recipe", {}), **forcing}
        words = {**self.learn, "recipe": recipe, "nfe": [self.nfe], "seed": seed}
        return Asked(f"r = {radius:g}, seed {seed}", stage.run_spec(words))


def run_illustration(words: IllustrationWords, stage: Stage) -> Made:
    """Paths, laws, and what is left of the error."""
    model = load_model(stage.model, stage.device).model
    if tuple(model.shape) != (1,):
        raise SpecError(f"illustration: got samples of shape {tuple(model.shape)}, wanted (1,)")
    keys = [(radius, seed) for radius in words.radii for seed in range(words.seeds)]
    asked = [words.asked(stage, *key) for key in keys]
    plans = dict(zip(keys, learn_all(asked, stage.jobs, stage.tell), strict=True))
    fine = make_grid("uniform", model.schedule, FINE)
    z = noise(range(FIRST_SEED, FIRST_SEED + words.samples), (1,), torch.float64)
    exact = _end(model, make_solver("unipc"), fine, z)
    shown = torch.linspace(-2.2, 2.2, words.paths, dtype=torch.float64)[:, None]
    panels = []
    laws = [_law("teacher", exact)]
    rows = []
    for radius in words.radii:
        numbers = []
        for seed in range(words.seeds):
            plan = plans[radius, seed]
            solver, grid = plan.make_solver(), plan.grid
            student = _end(model, solver, grid, z)
            near = _nearest(model, solver, grid, z, exact, radius)
            moved = _end(model, solver, grid, near)
            numbers.append((_rms(student, exact), _rms(moved, exact), _divergence(exact, student)))
            if seed == 0:
                panels.append(_paths(model, solver, grid, fine, shown, radius))
                laws.append(_law(_forcing(radius), student))
        cells = tuple(Value.over([one[c] for one in numbers]) for c in range(3))
        rows.append(Row(label=(_forcing(radius),), cells=cells))
    law_panel = Panel(title="samples", x="x at t = 0", y="density", lines=tuple(laws))
    table = Table(
        title=f"Root mean square error over {words.samples} noises, {words.nfe} evaluations",
        head=("learned with", "same noise", "best noise in the ball", "KL of the histograms"),
        rows=tuple(rows),
        best="lower",
    )
    return Made(tables=(table,), panels=(*panels, law_panel))


def _forcing(radius: float) -> str:
    return f"soft, r = {radius:g}" if radius > 0 else "hard"


@torch.no_grad()
def _end(model: Model, solver: Solver, grid: TimeGrid, z: Tensor) -> Tensor:
    k = knots(model.schedule, grid)
    return integrate(bind(model), solver, k, model.schedule.prior_std * z)


def _nearest(
    model: Model, solver: Solver, grid: TimeGrid, z: Tensor, target: Tensor, radius: float
) -> Tensor:
    """The noise in each ball from which the student comes nearest to the target (B, 1)."""
    if radius == 0:
        return z
    shifts = torch.linspace(-radius, radius, TRIED, dtype=torch.float64)
    tried = z + shifts  # (B, TRIED)
    ends = _end(model, solver, grid, tried.reshape(-1, 1)).reshape(tried.shape)
    best = (ends - target).abs().argmin(1, keepdim=True)
    return tried.gather(1, best)


@torch.no_grad()
def _paths(
    model: Model, solver: Solver, grid: TimeGrid, fine: TimeGrid, z: Tensor, radius: float
) -> Panel:
    """Exact paths, and the student's from the best noise in each ball."""

    def walk(solver: Solver, grid: TimeGrid, z: Tensor) -> Tensor:  # (B, N+1)
        k, x = knots(model.schedule, grid), model.schedule.prior_std * z
        return torch.cat(list(trajectory(bind(model), solver, k, x)), 1)

    teacher = walk(make_solver("unipc"), fine, z)
    near = _nearest(model, solver, grid, z, teacher[:, -1:], radius)
    lines = []
    for exact, own in zip(teacher, walk(solver, grid, near), strict=True):
        times, at = tuple(fine.times.tolist()), tuple(grid.times.tolist())
        lines.append(Line(name="teacher", x=times, y=tuple(exact.tolist()), style="thin"))
        lines.append(Line(name=_forcing(radius), x=at, y=tuple(own.tolist())))
    return Panel(title=_forcing(radius), x="time t", y="x", lines=tuple(lines))


def _rms(a: Tensor, b: Tensor) -> float:
    return float((a - b).square().mean().sqrt())


def _histogram(samples: Tensor) -> Tensor:
    """Counts in each bin."""
    return torch.histogram(samples.flatten().clamp(EDGES[0], EDGES[-1]), EDGES).hist


def _divergence(q: Tensor, p: Tensor) -> float:
    """KL(q, p) between histograms with half a sample added to each bin."""
    shares = [(h + 0.5) / (h + 0.5).sum() for h in (_histogram(q), _histogram(p))]
    return float((shares[0] * (shares[0] / shares[1]).log()).sum())


def _law(name: str, samples: Tensor) -> Line:
    """A histogram as a line."""
    density = _histogram(samples) / len(samples) / (EDGES[1] - EDGES[0])
    middle = (EDGES[1:] + EDGES[:-1]) / 2
    return Line(name=name, x=tuple(middle.tolist()), y=tuple(density.tolist()), style="thin")
