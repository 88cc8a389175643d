"""Numbers without constraints <-> time grids.

N steps cut the range of a variable v (lam, or t itself) into N gaps. Their shares are a softmax
of N logits, kept above a floor, so that any logits give a strictly monotone grid and every grid
has logits:

    g = (1 - f) softmax(l) + f / N        v_i = v_0 + (v_N - v_0) (g_1 + .. + g_i)

The network is told v_i + s_i, i = 1..N-1, where the shift stays inside a window of half the
smallest gap of the grid, so that network times never cross; the ends are told as they are.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ld3.errors import PlanError
from ld3.grids import TimeGrid
from ld3.schedules import Schedule


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
