"""Hand-made time grids: N steps placed evenly in some variable.

Each takes a schedule and N and returns N + 1 times from t_max to t_min. What differs is the
variable in which the steps are even; it is part of the description, because one name means
different things in different codes. s = sigma / alpha is the noise level in variance-exploding
coordinates, and lam = -log s.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.grids import TimeGrid
from ld3.schedules import Schedule, ends

Function = Callable[[Tensor], Tensor]
Place = Callable[[Schedule, Tensor], Tensor]


@dataclass(frozen=True)
class Handmade:
    """A grid even in one variable."""

    variable: str
    source: str
    place: Place  # u (N+1,) rising from 0 to 1 -> times

    def __call__(self, schedule: Schedule, steps: int) -> TimeGrid:
        if steps < 1:
            raise SpecError(f"steps: got {steps}, expected at least 1")
        u = torch.linspace(0, 1, steps + 1, dtype=torch.float64, device="cpu")
        first, last = ends(schedule).chunk(2)
        return TimeGrid.of(torch.cat([first, self.place(schedule, u[1:-1]), last]))  # exact ends


def _even(ends: Tensor, u: Tensor) -> Tensor:
    start, end = ends.unbind()
    return start + u * (end - start)


def _in_time(forward: Function, back: Function) -> Place:
    """Even in a function of t."""
    return lambda schedule, u: back(_even(forward(ends(schedule)), u))


def _in_lam(forward: Function, back: Function) -> Place:
    """Even in a function of lam."""

    def place(schedule: Schedule, u: Tensor) -> Tensor:
        lam = schedule.lam(ends(schedule))
        return schedule.time_at(back(_even(forward(lam), u)))

    return place


def _fitted_vp(schedule: Schedule, u: Tensor) -> Tensor:
    """Even in the time of the continuous linear VP schedule with the same range of s.

    log(1 + s^2) = beta_d v^2 / 2 + beta_0 v with v from 1 down to 0.001 at the ends of the range.
    """
    lam = schedule.lam(ends(schedule))
    high, low = torch.logaddexp(-2 * lam, torch.zeros_like(lam))
    last = 1e-3
    beta_d = 2 * (low / last - high) / (last - 1)
    beta_0 = high - beta_d / 2
    v = 1 + u * (last - 1)
    return schedule.time_at(-0.5 * torch.log(torch.expm1(0.5 * beta_d * v**2 + beta_0 * v)))


RHO = 7.0  # Karras et al. 2022

HANDMADE: dict[str, Handmade] = {
    "uniform": Handmade(
        "t", "the simplest; for EDM that is sigma", _in_time(lambda t: t, lambda v: v)
    ),
    "quadratic": Handmade(
        "sqrt(t)", "DPM-Solver's and DMN's quadratic", _in_time(torch.sqrt, torch.square)
    ),
    "edm": Handmade(
        "s^(1/7)",
        "Karras et al. 2022, on sigma/alpha of any schedule",
        _in_lam(lambda lam: torch.exp(-lam / RHO), lambda v: -RHO * torch.log(v)),
    ),
    "logsnr": Handmade("lam", "DPM-Solver's logSNR", _in_lam(lambda lam: lam, lambda v: v)),
    "cosine": Handmade(
        "arctan(s)",
        "the time of the cosine schedule",
        _in_lam(lambda lam: torch.atan(torch.exp(-lam)), lambda v: -torch.log(torch.tan(v))),
    ),
    "vp-uniform": Handmade(
        "time of the VP curve through the range of s", "diff-sampler's time_uniform", _fitted_vp
    ),
    "paper-quadratic": Handmade(
        "sqrt((t - t_min)/(t_max - t_min))",
        "the LD3 code's quadratic, which differs from DPM-Solver's",
        lambda schedule, u: schedule.t_min + (schedule.t_max - schedule.t_min) * (1 - u) ** 2,
    ),
    "paper-edm": Handmade(
        "t^(1/7)",
        "the LD3 code's edm: rho = 7 on t itself, unfit for VP",
        _in_time(lambda t: t ** (1 / RHO), lambda v: v**RHO),
    ),
}


def tangent_law(schedule: Schedule, steps: int, std: float) -> TimeGrid:
    """Even in arctan(s / std): the best Euler grid for Gaussian data of that standard deviation.

    One Euler step from angle a to b leaves cos(a - b) of the exact solution, so that N steps leave
    prod cos(da_i), which is largest when all da_i are equal.
    """
    shift = math.log(std)
    place = _in_lam(
        lambda lam: torch.atan(torch.exp(-lam - shift)), lambda v: -torch.log(torch.tan(v)) - shift
    )
    return Handmade("arctan(s/std)", "closed form", place)(schedule, steps)
