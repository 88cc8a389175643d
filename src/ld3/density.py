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
from ld3.schedules import Schedule, ends

FLOOR = 0.05
POINTS = 4001  # of the table of the distribution
TRIED = tuple((centre, width) for centre in (-1.0, 0.0, 1.0) for width in (2.0, 3.5))
DENSITY, SHIFTS = 8, 5  # knots


def bump(lam: Tensor, centre: float, width: float) -> Tensor:
    """FLOOR + exp(-(lam - centre)^2 / 2 width^2): a density, not normalised."""
    return FLOOR + torch.exp(-((lam - centre) ** 2) / (2 * width**2))


def fine_lam(schedule: Schedule) -> Tensor:
    """lam (P,) at even points from noise to data."""
    first, last = schedule.lam(ends(schedule)).tolist()
    return torch.linspace(first, last, POINTS, dtype=torch.float64, device="cpu")


def shares(density: Tensor, lam: Tensor) -> Tensor:
    """The share (P,) of the steps below each lam (P,), 0 to 1."""
    share = torch.cumulative_trapezoid(density, lam)
    return torch.cat([torch.zeros_like(share[:1]), share / share[-1]])


def looked_up(at: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Linear interpolation of values (P,) over increasing keys (P,)."""
    above = torch.searchsorted(keys.detach(), at).clamp(1, len(keys) - 1)
    part = (at - keys[above - 1]) / (keys[above] - keys[above - 1])
    return torch.lerp(values[above - 1], values[above], part)


def linear(values: Tensor, u: Tensor) -> Tensor:
    """Values (K,) at shares u of the way from the first to the last, linear in between."""
    at = u.clamp(0, 1) * (len(values) - 1)
    below = at.detach().floor().long().clamp(max=len(values) - 2)
    return torch.lerp(values[below], values[below + 1], at - below)


@dataclass(frozen=True)
class Warp:
    """Density and shifts of a family -> grids."""

    schedule: Schedule
    low: int  # step counts for which it is learned
    high: int
    window: float = 0.5

    def grid(self, density: Tensor, shifts: Tensor, steps: int) -> TimeGrid:
        """density (16,) = a, b and shifts (10,) = e, f -> the times of N steps, differentiable."""
        lean = math.sqrt(self.low * self.high) / steps - 1  # c_N
        noisy, clean = ends(self.schedule).chunk(2)
        first, last = self.schedule.lam(noisy), self.schedule.lam(clean)
        lam = fine_lam(self.schedule)
        p = torch.exp(linear(self._at(density, lean), (lam - first) / (last - first)))
        u = torch.linspace(0, 1, steps + 1, dtype=torch.float64, device="cpu")[1:-1]
        inner = looked_up(u, shares(p, lam), lam)
        gaps = torch.cat([first, inner, last]).diff().abs()
        width = (self.window * gaps.min()).detach()
        moved = linear(self._at(shifts, lean), (inner - first) / (last - first))
        net = inner + torch.clamp(moved * (last - first).abs() / steps, -width, width)
        times, net_times = (
            torch.cat([noisy, self.schedule.time_at(v), clean]) for v in (inner, net)
        )
        return TimeGrid(times, net_times)

    def start(self, centre: float, width: float) -> dict[str, Tensor]:
        """The parameters of a bump, the same for all step counts."""
        first, last = self.schedule.lam(ends(self.schedule)).tolist()
        at = torch.linspace(first, last, DENSITY, dtype=torch.float64, device="cpu")
        a = bump(at, centre, width).log()
        return {
            "times": torch.cat([a, torch.zeros_like(a)]),
            "net": torch.zeros(2 * SHIFTS, dtype=torch.float64, device="cpu"),
        }

    @staticmethod
    def _at(values: Tensor, lean: float) -> Tensor:
        base, slope = values.chunk(2)
        return base + lean * slope
