"""Soft forcing on a line: few steps cannot follow the teacher from the same noise, but from noise
nearby, and the distribution of the samples is what counts.
"""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from ld3.errors import SpecError
from ld3.experiment import Curve, Findings, Panel, ResultTable, Value
from ld3.grids import TimeGrid, knots
from ld3.known_grids import make_grid
from ld3.metrics.fidelity import rmse
from ld3.models import Model, bind
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import LearningOptions, learn_all
from ld3.sampling import integrate, trajectory
from ld3.seeds import noise, seeds_for
from ld3.solvers import Solver, make_solver
from ld3.zoo.loading import load_model

FINE = 200  # steps of the paths that stand for the exact ones
TRIED = 401  # points of a ball, to find the best start in it
EDGES = torch.linspace(-2.5, 2.5, 61, dtype=torch.float64, device="cpu")  # of the histograms


class IllustrationOptions(LearningOptions):
    """A radius of 0 is hard forcing."""

    radii: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=2)]
    nfe: Annotated[int, Field(ge=1, le=20)] = 3
    paths: Annotated[int, Field(ge=2, le=100)] = 9
    samples: Annotated[int, Field(ge=10, le=100_000)] = 2000

    def wanted(self, context: Context) -> dict[float, tuple[str, dict[str, Any]]]:
        """r = gamma d / NFE^2 with d = 1."""
        found: dict[float, tuple[str, dict[str, Any]]] = {}
        for radius in self.radii:
            forcing = {"gamma": radius * self.nfe**2, "rate_noise": 1.0 if radius > 0 else 0.0}
            found[radius] = (f"r = {radius:g}", {"recipe": forcing, "nfe": [self.nfe]})
        return found


def run_illustration(options: IllustrationOptions, context: Context) -> Findings:
    """Paths, distributions, and the remaining error."""
    model = load_model(context.model, context.device).model
    if tuple(model.shape) != (1,):
        raise SpecError(f"illustration: got samples of shape {tuple(model.shape)}, expected (1,)")
    results = learn_all(options.requests(context), context)
    fine = make_grid("uniform", model.schedule, FINE)
    z = noise(seeds_for("illustration", options.samples), (1,), torch.float64)
    exact = _end(model, make_solver("unipc"), fine, z)
    shown = torch.linspace(-2.2, 2.2, options.paths, dtype=torch.float64)[:, None]
    panels, densities = list[Panel](), [_density("teacher", exact)]
    rows: dict[str, list[Value]] = {}
    for radius, several in results.items():
        numbers = []
        for seed, (_, learned) in enumerate(several):
            solver, grid = learned.tuned.solver, learned.tuned.grid
            student = _end(model, solver, grid, z)
            near = _nearest(model, solver, grid, z, exact, radius)
            moved = _end(model, solver, grid, near)
            errors = (float(rmse(one.T, exact.T)) for one in (student, moved))
            numbers.append((*errors, _divergence(exact, student)))
            if seed == 0:
                panels.append(_paths(model, solver, grid, fine, shown, radius))
                densities.append(_density(_forcing(radius), student))
        rows[_forcing(radius)] = [Value.over(column) for column in zip(*numbers, strict=True)]
    samples_panel = Panel(title="samples", x="x at t = 0", y="density", curves=tuple(densities))
    title = f"Root mean square error over {options.samples} samples, {options.nfe} evaluations"
    head = ("learned with", "same noise", "best noise in the ball", "KL of the histograms")
    table = ResultTable.of(title, head, rows, "lower")
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
