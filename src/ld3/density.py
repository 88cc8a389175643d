"""One family of grids for every number of steps: a density of steps in lam.

The N steps of a member divide a density p_N(lam) into equal shares. The network time of point i is
lam_i plus a shift s_N(lam_i), in units of the mean gap:

    log p_N(lam) = a(lam) + c_N b(lam)        s_N(lam) = e(lam) + c_N f(lam)        c_N = M/N - 1

a, b have 8 knots and e, f have 5, even in lam and linear in between. M is the geometric mean of the
step counts for which the family is learned. Every N has a grid, also outside that range. Shifts are
clamped to half the smallest gap.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.grids import TimeGrid
from ld3.schedules import Schedule

FLOOR = 0.05
POINTS = 4001  # of the table of the distribution
TRIED = tuple((centre, width) for centre in (-1.0, 0.0, 1.0) for width in (2.0, 3.5))
DENSITY, SHIFTS = 8, 5  # knots


def shares(first: float, last: float, centre: float, width: float) -> tuple[Tensor, Tensor]:
    """lam (P,) from first to last, and the share (P,) of a bump's steps below it, 0 to 1."""
    lam = torch.linspace(first, last, POINTS, dtype=torch.float64, device="cpu")
    density = FLOOR + torch.exp(-((lam - centre) ** 2) / (2 * width**2))
    share = torch.cumulative_trapezoid(density, lam)
    return lam, torch.cat([torch.zeros_like(share[:1]), share / share[-1]])


def looked_up(at: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Linear interpolation of values (P,) over increasing keys (P,)."""
    above = torch.searchsorted(keys, at).clamp(1, len(keys) - 1)
    part = (at - keys[above - 1]) / (keys[above] - keys[above - 1])
    return torch.lerp(values[above - 1], values[above], part)


@dataclass(frozen=True)
class Warp:
    """Density and shifts of a family -> grids."""

    schedule: Schedule
    low: int  # step counts for which it is learned
    high: int
    window: float = 0.5

    @property
    def middle(self) -> float:
        return math.sqrt(self.low * self.high)

    def grid(self, density: Tensor, shifts: Tensor, steps: int) -> TimeGrid:
        """density (16,) = a, b and shifts (10,) = e, f -> the times of N steps, differentiable."""
        lean = self.middle / steps - 1
        first, last = self.ends()
        lam = torch.linspace(float(first), float(last), POINTS, dtype=torch.float64, device="cpu")
        p = torch.exp(_linear(self._at(density, lean), (lam - first) / (last - first)))
        share = torch.cumulative_trapezoid(p, lam)
        share = torch.cat([torch.zeros_like(share[:1]), share]) / share[-1]
        u = torch.linspace(0, 1, steps + 1, dtype=torch.float64, device="cpu")[1:-1]
        above = torch.searchsorted(share.detach(), u).clamp(1, POINTS - 1)
        part = (u - share[above - 1]) / (share[above] - share[above - 1])
        inner = torch.lerp(lam[above - 1], lam[above], part)
        gaps = torch.cat([first[None], inner, last[None]]).diff().abs()
        width = (self.window * gaps.min()).detach()
        moved = _linear(self._at(shifts, lean), (inner - first) / (last - first))
        net = inner + torch.clamp(moved * (last - first).abs() / steps, -width, width)
        ends = torch.tensor(
            [self.schedule.t_max, self.schedule.t_min], dtype=torch.float64, device="cpu"
        )
        times, net_times = (
            torch.cat([ends[:1], self.schedule.time_at(v), ends[1:]]) for v in (inner, net)
        )
        return TimeGrid(times, net_times)

    def start(self, centre: float, width: float) -> dict[str, Tensor]:
        """The parameters of a bump, the same for all step counts."""
        first, last = self.ends()
        at = torch.linspace(float(first), float(last), DENSITY, dtype=torch.float64, device="cpu")
        a = torch.log(FLOOR + torch.exp(-((at - centre) ** 2) / (2 * width**2)))
        return {
            "times": torch.cat([a, torch.zeros_like(a)]),
            "net": torch.zeros(2 * SHIFTS, dtype=torch.float64, device="cpu"),
        }

    def ends(self) -> tuple[Tensor, Tensor]:
        """lam at t_max and at t_min."""
        ends = torch.tensor(
            [self.schedule.t_max, self.schedule.t_min], dtype=torch.float64, device="cpu"
        )
        first, last = self.schedule.lam(ends).unbind()
        return first, last

    @staticmethod
    def _at(values: Tensor, lean: float) -> Tensor:
        base, slope = values.chunk(2)
        return base + lean * slope


def _linear(values: Tensor, u: Tensor) -> Tensor:
    """Linear between even knots on [0, 1]."""
    at = u.clamp(0, 1) * (len(values) - 1)
    below = at.detach().floor().long().clamp(max=len(values) - 2)
    return torch.lerp(values[below], values[below + 1], at - below)
