"""What is learned: unconstrained parameters in groups, and the solver they describe.

    times          N logits l: the gaps of the grid
    net            N-1 shifts s of the network times
    coefficients   corrections C of the table in x0 form
    guidance       weights A of the directions of guidance, see :mod:`ld3.guidance`

Grid: N steps divide the range of a variable v (lam, or t itself) into gaps whose shares g are a
softmax kept above a floor f, so that all logits give a decreasing grid:

    g = (1 - f) softmax(l) + f / N        v_i = v_0 + (v_N - v_0) (g_1 + .. + g_i)

The network time of point i is v_i + s_i for i = 1..N-1. The shift is clamped to half the smallest
gap, so that network times do not cross.

Corrections: with V the table of the solver,

    X_n = (V[n, 0] + s_n C[n, 0]) x_T + sum_{j < n} (V[n, 1+j] + a_n C[n, 1+j]) x0_j

where s_n = sigma_n / sigma_T and a_n = alpha_n scale the corrections of row n. With `exact`,
C[n, 0] = 0 and sum_j C[n, 1+j] = 0, so that a constant x0 (or eps) is integrated without error.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ld3.density import Warp
from ld3.errors import PlanError
from ld3.grids import TimeGrid
from ld3.guidance import Guidance, places
from ld3.schedules import Schedule, ends
from ld3.solvers import Solver
from ld3.table import Table, TunedSolver

GROUPS = ("times", "net", "coefficients")
GUIDANCE = "guidance"  # the group of plans that hold guidance
Values = Mapping[str, Tensor]
"""The parameters of each group; float64."""


@dataclass(frozen=True)
class GridParameters:
    """Logits (N,) and shifts (N-1,) <-> time grids.

    `window_from="logits"` clamps shifts to half the smallest difference of the logits, as the code
    of the LD3 paper does when it learns in lam. It serves to reproduce that code.
    """

    schedule: Schedule
    steps: int
    variable: Literal["lam", "t"] = "lam"
    floor: float = 0.01  # f
    window: float = 0.5  # of the smallest gap
    window_from: Literal["gaps", "logits"] = "gaps"

    def grid(self, logits: Tensor, shifts: Tensor) -> TimeGrid:
        """The times, differentiable in logits and shifts."""
        share = self.shares(logits)
        first, last = self.ends()
        inner = first + (last - first) * share.cumsum(0)[:-1]  # (N-1,)
        if self.window_from == "gaps":
            width = (self.window * share.min() * (last - first).abs()).detach()
        else:
            raw = torch.cat([torch.ones_like(logits[:1]), logits]).detach()
            width = self.window * raw.diff().abs().min()
        net = inner + torch.minimum(torch.maximum(shifts, -width), width)
        start, end = ends(self.schedule).chunk(2)
        return TimeGrid(*(torch.cat([start, self._time(v), end]) for v in (inner, net)))

    def shares(self, logits: Tensor) -> Tensor:
        """g (N,): the gaps as shares of the range, with sum 1."""
        return (1 - self.floor) * torch.softmax(logits, 0) + self.floor / self.steps

    def logits(self, grid: TimeGrid) -> Tensor:
        """The logits (N,) of a grid, with mean zero."""
        if grid.steps != self.steps:
            raise PlanError(f"start: got a grid of {grid.steps} steps, expected {self.steps}")
        v = self._variable(grid.times)
        share = v.diff() / (v[-1] - v[0])
        free = (share - self.floor / self.steps) / (1 - self.floor)
        logits = torch.log(free.clamp_min(1e-6 / self.steps))  # a gap at the floor keeps a slope
        return logits - logits.mean()

    def shifts(self, grid: TimeGrid) -> Tensor:
        """The shifts (N-1,) of a grid."""
        return (self._variable(grid.net_times) - self._variable(grid.times))[1:-1]

    def ends(self) -> tuple[Tensor, ...]:
        """v at t_max and at t_min."""
        return self._variable(ends(self.schedule)).unbind()

    def _variable(self, t: Tensor) -> Tensor:
        return self.schedule.lam(t) if self.variable == "lam" else t

    def _time(self, v: Tensor) -> Tensor:
        return self.schedule.time_at(v) if self.variable == "lam" else v


class Parameters(ABC):
    """How values become a tuned solver, for one or several step counts."""

    solver: Solver
    grids: GridParameters | Warp
    learned: tuple[str, ...]
    guided: tuple[int, ...] | None = None  # evaluations with both passes, if guidance is learned

    @property
    def schedule(self) -> Schedule:
        return self.grids.schedule

    @abstractmethod
    def tuned(self, values: Values, steps: int) -> TunedSolver:
        """The tuned solver with that many steps, differentiable."""

    @abstractmethod
    def probe(self, name: str) -> float:
        """The step of a forward difference in a parameter of this group."""

    def table(self, values: Values, steps: int) -> Table:
        """The tuned solver in x0 form, differentiable."""
        return self.tuned(values, steps).table(self.schedule)

    def flat(self, values: Values) -> Tensor:
        """The learned groups as one vector (P,)."""
        return torch.cat([values[name] for name in self.learned])

    def unflat(self, vector: Tensor, values: Values) -> dict[str, Tensor]:
        """The inverse; groups that are not learned stay as in `values`."""
        parts = torch.split(vector, [len(values[name]) for name in self.learned])
        return {**values, **dict(zip(self.learned, parts, strict=True))}


@dataclass(frozen=True)
class FamilyParameters(Parameters):
    """A density of steps that gives a grid for every step count; see :mod:`ld3.density`."""

    solver: Solver
    grids: Warp
    learned: tuple[str, ...] = GROUPS[:2]

    def start_values(self, centre: float, width: float) -> dict[str, Tensor]:
        """The values of a bump."""
        none = torch.empty(0, dtype=torch.float64, device="cpu")
        return {**self.grids.start(centre, width), "coefficients": none}

    def tuned(self, values: Values, steps: int) -> TunedSolver:
        return TunedSolver(self.solver, self.grids.grid(values["times"], values["net"], steps))

    def probe(self, name: str) -> float:
        return {"times": 0.1, "net": 0.03}[name]


@dataclass(frozen=True)
class SolverParameters(Parameters):
    """One solver with one step count."""

    solver: Solver
    grids: GridParameters
    learned: tuple[str, ...] = GROUPS[:2]
    exact: bool = False
    guided: tuple[int, ...] | None = None

    def probe(self, name: str) -> float:
        first, last = self.grids.ends()
        gap = float((last - first).abs()) / self.grids.steps
        return {"times": 0.1, "net": 0.03 * gap, "coefficients": 0.02, GUIDANCE: 0.05}[name]

    def start_values(self, start: TunedSolver | TimeGrid) -> dict[str, Tensor]:
        """The values that describe a start."""
        if isinstance(start, TimeGrid):
            start = TunedSolver(self.solver, start)
        self._check_start(start)
        logits, shifts = self.grids.logits(start.grid), self.grids.shifts(start.grid)
        if self.grids.window_from == "logits":
            logits = logits - logits[0] + 1  # the code compares with a logit that stays at 1
        values = {"times": logits, "net": shifts, "coefficients": logits.new_empty(0)}
        if "coefficients" in self.learned:
            scales = self._scales(start.grid)
            corrections = 0 * scales if start.corrections is None else start.corrections
            values["coefficients"] = (corrections / scales)[self._places]
        if self.guided is not None:
            count = self.solver.nfe(self.grids.steps)
            guidance = start.guidance or Guidance.last(self.guided, count)
            values[GUIDANCE] = guidance.weights[places(self.guided, count)]
        return values

    def _check_start(self, start: TunedSolver) -> None:
        """A start has no more than what is learned, and belongs to the same solver."""
        corrections, guidance = start.corrections, start.guidance
        if corrections is not None and start.solver != self.solver:
            raise PlanError(
                f"start: got learned coefficients of {start.solver.name}-{start.solver.order}, "
                f"expected those of {self.solver.name}-{self.solver.order}, or a start without them"
            )
        if corrections is not None and "coefficients" not in self.learned:
            raise PlanError(
                "start: got a plan with learned coefficients, expected --learn "
                "times+net+coefficients, or a start without them"
            )
        if guidance is not None and self.guided is None:
            raise PlanError(
                "start: got a plan with guidance, expected --learn with +guidance, or a start "
                "without it"
            )
        if guidance is not None and guidance.guided != self.guided:
            got, wanted = (", ".join(map(str, s)) for s in (guidance.guided, self.guided or ()))
            raise PlanError(
                f"start: got both passes at evaluations {got}, expected {wanted}; give another "
                "--passes, or a start without guidance"
            )

    def tuned(self, values: Values, steps: int) -> TunedSolver:
        grid = self.grids.grid(values["times"], values["net"])
        guidance = corrections = None
        if self.guided is not None:
            count = self.solver.nfe(self.grids.steps)
            empty = torch.zeros(count, len(self.guided), dtype=torch.float64, device="cpu")
            weights = empty.index_put(places(self.guided, count), values[GUIDANCE])
            guidance = Guidance(self.guided, weights)
        if "coefficients" in self.learned:
            scales = self._scales(grid)
            free = torch.zeros_like(scales).index_put(self._places, values["coefficients"])
            if self.exact:
                first = torch.nn.functional.one_hot(torch.tensor(1, device="cpu"), scales.shape[1])
                free = free - free.sum(1, keepdim=True) * first
            corrections = scales * free
        return TunedSolver(self.solver, grid, corrections, guidance)

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Rows and columns of the free corrections, in (M, M+1)."""
        count = self.solver.nfe(self.grids.steps)
        free = torch.ones(count, count + 1, dtype=torch.bool, device="cpu").tril(1)
        if self.exact:
            free[:, :2] = False
        rows, columns = free.nonzero(as_tuple=True)
        return rows, columns

    @torch.no_grad()
    def _scales(self, grid: TimeGrid) -> Tensor:
        """(M, M+1): s_n in the first column, a_n in the others."""
        schedule, each = self.grids.schedule, self.solver.nfe(1)
        t = grid.times[1:].repeat_interleave(each)  # the end of the step that row n belongs to
        alpha, sigma = (f(t).exp() for f in (schedule.log_alpha, schedule.log_sigma))
        start = schedule.log_sigma(grid.times[:1]).exp()
        return torch.cat([(sigma / start)[:, None], alpha[:, None].expand(len(t), len(t))], 1)
