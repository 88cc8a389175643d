"""Soft forcing on a line: few steps cannot follow the teacher from the same noise, but from noise
nearby, and the distribution of the samples is what counts.
"""

from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ld3.errors import SpecError
from ld3.experiment import Curve, Findings, Panel, ResultRow, ResultTable, Value
from ld3.grids import TimeGrid, knots
from ld3.known_grids import make_grid
from ld3.metrics.fidelity import rmse
from ld3.models import Model, bind
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import RunRequest, learn_all
from ld3.sampling import integrate, trajectory
from ld3.seeds import noise, seeds_for
from ld3.solvers import Solver, make_solver
from ld3.zoo.loading import load_model

FINE = 200  # steps of the paths that stand for the exact ones
TRIED = 401  # points of a ball, to find the best start in it
EDGES = torch.linspace(-2.5, 2.5, 61, dtype=torch.float64, device="cpu")  # of the histograms


class IllustrationOptions(BaseModel):
    """`learn` are options of `ld3 learn`; a radius of 0 is hard forcing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: dict[str, Any]
    radii: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=2)]
    nfe: Annotated[int, Field(ge=1, le=20)] = 3
    seeds: Annotated[int, Field(ge=1, le=20)] = 1
    paths: Annotated[int, Field(ge=2, le=100)] = 9
    samples: Annotated[int, Field(ge=10, le=100_000)] = 2000

    def checked(self, context: Context) -> None:
        for radius in self.radii:
            self.request(context, radius, 0)

    def request(self, context: Context, radius: float, seed: int) -> RunRequest:
        """r = gamma d / NFE^2 with d = 1."""
        forcing = {"gamma": radius * self.nfe**2, "rate_noise": 1.0 if radius > 0 else 0.0}
        recipe = {**self.learn.get("recipe", {}), **forcing}
        options = {**self.learn, "recipe": recipe, "nfe": [self.nfe], "seed": seed}
        return RunRequest(f"r = {radius:g}, seed {seed}", context.run_spec(options))


def run_illustration(options: IllustrationOptions, context: Context) -> Findings:
    """Paths, distributions, and the remaining error."""
    model = load_model(context.model, context.device).model
    if tuple(model.shape) != (1,):
        raise SpecError(f"illustration: got samples of shape {tuple(model.shape)}, expected (1,)")
    keys = [(radius, seed) for radius in options.radii for seed in range(options.seeds)]
    requests = [options.request(context, *key) for key in keys]
    results = learn_all(requests, context)
    plans = {key: learned.tuned for key, (_, learned) in zip(keys, results, strict=True)}
    fine = make_grid("uniform", model.schedule, FINE)
    z = noise(seeds_for("illustration", options.samples), (1,), torch.float64)
    exact = _end(model, make_solver("unipc"), fine, z)
    shown = torch.linspace(-2.2, 2.2, options.paths, dtype=torch.float64)[:, None]
    panels = []
    densities = [_density("teacher", exact)]
    rows = []
    for radius in options.radii:
        numbers = []
        for seed in range(options.seeds):
            solver, grid = plans[radius, seed].solver, plans[radius, seed].grid
            student = _end(model, solver, grid, z)
            near = _nearest(model, solver, grid, z, exact, radius)
            moved = _end(model, solver, grid, near)
            numbers.append((_rms(student, exact), _rms(moved, exact), _divergence(exact, student)))
            if seed == 0:
                panels.append(_paths(model, solver, grid, fine, shown, radius))
                densities.append(_density(_forcing(radius), student))
        cells = tuple(Value.over([one[c] for one in numbers]) for c in range(3))
        rows.append(ResultRow(label=(_forcing(radius),), cells=cells))
    samples_panel = Panel(title="samples", x="x at t = 0", y="density", curves=tuple(densities))
    table = ResultTable(
        title=f"Root mean square error over {options.samples} samples, {options.nfe} evaluations",
        head=("learned with", "same noise", "best noise in the ball", "KL of the histograms"),
        rows=tuple(rows),
        best="lower",
    )
    return Findings(tables=(table,), panels=(*panels, samples_panel))


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
    curves = []
    for exact, own in zip(teacher, walk(solver, grid, near), strict=True):
        times, at = tuple(fine.times.tolist()), tuple(grid.times.tolist())
        curves.append(Curve(name="teacher", x=times, y=tuple(exact.tolist()), style="thin"))
        curves.append(Curve(name=_forcing(radius), x=at, y=tuple(own.tolist())))
    return Panel(title=_forcing(radius), x="time t", y="x", curves=tuple(curves))


def _rms(a: Tensor, b: Tensor) -> float:
    """Over all samples, (B, 1)."""
    return float(rmse(a.T, b.T))


def _histogram(samples: Tensor) -> Tensor:
    """Counts in each bin."""
    return torch.histogram(samples.flatten().clamp(EDGES[0], EDGES[-1]), EDGES).hist


def _divergence(q: Tensor, p: Tensor) -> float:
    """KL(q, p) between histograms with half a sample added to each bin."""
    shares = [(h + 0.5) / (h + 0.5).sum() for h in (_histogram(q), _histogram(p))]
    return float((shares[0] * (shares[0] / shares[1]).log()).sum())


def _density(name: str, samples: Tensor) -> Curve:
    """A histogram as a curve."""
    height = _histogram(samples) / len(samples) / (EDGES[1] - EDGES[0])
    middle = (EDGES[1:] + EDGES[:-1]) / 2
    return Curve(name=name, x=tuple(middle.tolist()), y=tuple(height.tolist()), style="thin")
