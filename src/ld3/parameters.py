"""What is learned: three groups of numbers, and the solver they stand for.

    times          N logits: the gaps of the grid
    net            N-1 shifts of the network times
    coefficients   corrections of the table in x0 form, zero at the start

With n counting evaluations, the table with corrections C is

    X_n = (V[n, 0] + s_n C[n, 0]) x_T + sum_{j < n} (V[n, 1+j] + a_n C[n, 1+j]) x0_j

where s_n = sigma_n / sigma_T and a_n = alpha_n are the natural sizes of the weights, taken at the
time of row n. With `exact` the corrections keep C[n, 0] = 0 and sum_j C[n, 1+j] = 0, so that a
network whose x0 (or eps) never changes is still integrated without error.

Numbers without constraints <-> time grids.

N steps cut the range of a variable v (lam, or t itself) into N gaps. Their shares are a softmax
of N logits, kept above a floor, so that any logits give a strictly monotone grid and every grid
has logits:

    g = (1 - f) softmax(l) + f / N        v_i = v_0 + (v_N - v_0) (g_1 + .. + g_i)

The network is told v_i + s_i, i = 1..N-1, where the shift stays inside a window of half the
smallest gap of the grid, so that network times never cross; the ends are told as they are.
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
from ld3.grids import TimeGrid, knots
from ld3.schedules import Schedule
from ld3.solvers import Solver
from ld3.table import Table, Tuned, compile_table


@dataclass(frozen=True)
class Clock:
    """How logits and shifts become times.

    `window_from="logits"` takes the window from the differences of the logits, as the code of the
    LD3 paper does when it learns in lam; it is kept to reproduce that code and has no other use.
    """

    schedule: Schedule
    steps: int
    variable: Literal["lam", "t"] = "lam"
    floor: float = 0.01  # f: no gap is smaller than this share of the mean gap
    window: float = 0.5
    window_from: Literal["gaps", "logits"] = "gaps"

    def grid(self, logits: Tensor, shifts: Tensor) -> TimeGrid:
        """logits (N,), shifts (N-1,) in units of v -> times, differentiable in both."""
        share = self.shares(logits)
        first, last = self.ends()
        inner = first + (last - first) * share.cumsum(0)[:-1]  # (N-1,)
        if self.window_from == "gaps":
            width = (self.window * share.min() * (last - first).abs()).detach()
        else:
            raw = torch.cat([torch.ones_like(logits[:1]), logits]).detach()
            width = self.window * raw.diff().abs().min()
        told = inner + torch.minimum(torch.maximum(shifts, -width), width)
        start, end = (
            torch.full((1,), value, dtype=torch.float64, device="cpu")
            for value in (self.schedule.t_max, self.schedule.t_min)
        )
        return TimeGrid(
            torch.cat([start, self._time(inner), end]), torch.cat([start, self._time(told), end])
        )

    def shares(self, logits: Tensor) -> Tensor:
        """The gaps (N,) as shares of the range: positive, with sum 1."""
        return (1 - self.floor) * torch.softmax(logits, 0) + self.floor / self.steps

    def logits(self, grid: TimeGrid) -> Tensor:
        """The logits (N,) of the times of a grid, with mean zero."""
        if grid.steps != self.steps:
            raise PlanError(f"start: got a grid of {grid.steps} steps, wanted {self.steps}")
        v = self._variable(grid.times)
        share = v.diff() / (v[-1] - v[0])
        free = (share - self.floor / self.steps) / (1 - self.floor)
        logits = torch.log(free.clamp_min(1e-6 / self.steps))  # a gap at the floor keeps a slope
        return logits - logits.mean()

    def shifts(self, grid: TimeGrid) -> Tensor:
        """The shifts (N-1,) of the network times of a grid."""
        return (self._variable(grid.net_times) - self._variable(grid.times))[1:-1]

    def _variable(self, t: Tensor) -> Tensor:
        return self.schedule.lam(t) if self.variable == "lam" else t

    def _time(self, v: Tensor) -> Tensor:
        return self.schedule.time_at(v) if self.variable == "lam" else v

    def ends(self) -> tuple[Tensor, Tensor]:
        """The variable at t_max and at t_min."""
        ends = torch.tensor(
            [self.schedule.t_max, self.schedule.t_min], dtype=torch.float64, device="cpu"
        )
        first, last = self._variable(ends).unbind()
        return first, last


GROUPS = ("times", "net", "coefficients")
Numbers = Mapping[str, Tensor]
"""The numbers of each group; float64."""


def tuned_table(solver: Solver, schedule: Schedule, tuned: Tuned) -> Table:
    """In x0 form, differentiable."""
    return compile_table(solver, knots(schedule, tuned.grid), "x0", tuned.corrections)


class Tuning(ABC):
    """How numbers become a tuned solver."""

    solver: Solver
    learned: tuple[str, ...]

    @property
    @abstractmethod
    def schedule(self) -> Schedule: ...

    @abstractmethod
    def tuned(self, numbers: Numbers, steps: int) -> Tuned:
        """What the numbers stand for with this many steps, differentiable."""

    @abstractmethod
    def probe(self, name: str) -> float:
        """How far a number of this group is moved to see what it does."""

    def table(self, numbers: Numbers, steps: int) -> Table:
        """The tuned solver in x0 form, differentiable."""
        return tuned_table(self.solver, self.schedule, self.tuned(numbers, steps))

    def flat(self, numbers: Numbers) -> Tensor:
        """The learned ones as a vector (P,)."""
        return torch.cat([numbers[name] for name in self.learned])

    def unflat(self, vector: Tensor, numbers: Numbers) -> dict[str, Tensor]:
        """The inverse; what is not learned stays as in `numbers`."""
        parts = torch.split(vector, [len(numbers[name]) for name in self.learned])
        return {**numbers, **dict(zip(self.learned, parts, strict=True))}


@dataclass(frozen=True)
class FamilyTuning(Tuning):
    """Grids for every number of steps; see :mod:`.warp`."""

    solver: Solver
    warp: Warp
    learned: tuple[str, ...] = GROUPS[:2]

    @property
    def schedule(self) -> Schedule:
        return self.warp.schedule

    def numbers(self, centre: float, width: float) -> dict[str, Tensor]:
        """Those of a bump."""
        none = torch.empty(0, dtype=torch.float64, device="cpu")
        return {**self.warp.start(centre, width), "coefficients": none}

    def tuned(self, numbers: Numbers, steps: int) -> Tuned:
        return Tuned(self.warp.grid(numbers["times"], numbers["net"], steps))

    def probe(self, name: str) -> float:
        return {"times": 0.1, "net": 0.03}[name]


@dataclass(frozen=True)
class SolverTuning(Tuning):
    """One number of steps."""

    solver: Solver
    clock: Clock
    learned: tuple[str, ...] = GROUPS[:2]
    exact: bool = False

    @property
    def schedule(self) -> Schedule:
        return self.clock.schedule

    def probe(self, name: str) -> float:
        low, high = self.clock.ends()
        gap = float((high - low).abs()) / self.clock.steps
        return {"times": 0.1, "net": 0.03 * gap, "coefficients": 0.02}[name]

    def numbers(self, start: Tuned) -> dict[str, Tensor]:
        """Those that stand for a start."""
        coefficients = torch.empty(0, dtype=torch.float64, device="cpu")
        if "coefficients" in self.learned:
            coefficients = torch.zeros(len(self._places[0]), dtype=torch.float64, device="cpu")
            if start.corrections is not None:
                rows, columns = self._places
                added = start.corrections / self._sizes(start.grid)
                coefficients = added[rows, columns]
        elif start.corrections is not None:
            raise PlanError(
                "start: got a plan with learned coefficients, wanted --learn "
                "times+net+coefficients, or a start without them"
            )
        logits, shifts = self.clock.logits(start.grid), self.clock.shifts(start.grid)
        if self.clock.window_from == "logits":
            logits = logits - logits[0] + 1  # the code compares with a logit that stays at 1
        return {"times": logits, "net": shifts, "coefficients": coefficients}

    def tuned(self, numbers: Numbers, steps: int) -> Tuned:
        grid = self.clock.grid(numbers["times"], numbers["net"])
        if "coefficients" not in self.learned:
            return Tuned(grid)
        sizes = self._sizes(grid)
        free = torch.zeros_like(sizes).index_put(self._places, numbers["coefficients"])
        if self.exact:
            first = torch.nn.functional.one_hot(torch.tensor(1, device="cpu"), sizes.shape[1])
            free = free - free.sum(1, keepdim=True) * first
        return Tuned(grid, sizes * free)

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Rows and columns of the free corrections, in (M, M+1)."""
        count = self.solver.nfe(self.clock.steps)
        ones = torch.ones(count, count + 1, dtype=torch.bool, device="cpu").tril(1)
        if self.exact:
            ones[:, :2] = False
        rows, columns = ones.nonzero(as_tuple=True)
        return rows, columns

    @torch.no_grad()
    def _sizes(self, grid: TimeGrid) -> Tensor:
        """(M, M+1): sigma_n / sigma_T on the noise, alpha_n on the answers."""
        schedule, each = self.clock.schedule, self.solver.nfe(1)
        at = grid.times[1:].repeat_interleave(each)  # of row n: the end of the step it belongs to
        alpha, sigma = (f(at).exp() for f in (schedule.log_alpha, schedule.log_sigma))
        start = schedule.log_sigma(grid.times[:1]).exp()
        count = len(at)
        return torch.cat([(sigma / start)[:, None], alpha[:, None].expand(count, count)], 1)
