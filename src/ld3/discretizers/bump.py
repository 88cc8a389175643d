"""A family of two parameters: steps dense in lam around a centre.

The density of steps in lam is

    p(lam) ~ 0.05 + exp(-(lam - centre)^2 / 2 width^2)

Networks have most to say where signal and noise are about equal. A few members of this family,
tried by forward passes only, hold a start that is hard to beat by any fixed grid.
"""

import torch
from torch import Tensor

from ld3.discretizers.handmade import Handmade
from ld3.errors import SpecError
from ld3.schedules import Schedule

FLOOR = 0.05
POINTS = 4001  # of the table of the distribution
TRIED = tuple((centre, width) for centre in (-1.0, 0.0, 1.0) for width in (2.0, 3.5))
BUMPS = tuple(f"bump:{centre:g}:{width:g}" for centre, width in TRIED)


def shares(first: float, last: float, centre: float, width: float) -> tuple[Tensor, Tensor]:
    """lam from first to last, and the share of a bump's steps before it, 0 to 1; (P,) each."""
    lam = torch.linspace(first, last, POINTS, dtype=torch.float64, device="cpu")
    density = FLOOR + torch.exp(-((lam - centre) ** 2) / (2 * width**2))
    share = torch.cumulative_trapezoid(density, lam)
    return lam, torch.cat([torch.zeros_like(share[:1]), share / share[-1]])


def looked_up(at: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The values at these keys (both (P,), keys rising), linear in between."""
    above = torch.searchsorted(keys, at).clamp(1, len(keys) - 1)
    part = (at - keys[above - 1]) / (keys[above] - keys[above - 1])
    return torch.lerp(values[above - 1], values[above], part)


def bump(centre: float, width: float) -> Handmade:
    """The member with this centre and width, both in lam."""

    def place(schedule: Schedule, u: Tensor) -> Tensor:
        ends = torch.tensor([schedule.t_max, schedule.t_min], dtype=torch.float64, device="cpu")
        first, last = schedule.lam(ends).tolist()
        lam, share = shares(first, last, centre, width)
        return schedule.time_at(looked_up(u, share, lam))

    return Handmade(f"the share of a bump in lam at {centre:g}, width {width:g}", "ours", place)


def read_bump(name: str) -> Handmade:
    """`bump:CENTRE:WIDTH`"""
    try:
        centre, width = (float(part) for part in name.split(":")[1:])
        if not (abs(centre) < 100 and 0 < width < 100):
            raise ValueError
    except ValueError:
        raise SpecError(
            f"method: got {name!r}, wanted bump:CENTRE:WIDTH in lam, such as bump:0:3.5"
        ) from None
    return bump(centre, width)
