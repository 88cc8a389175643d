"""A family of two parameters: steps dense in lam around a centre.

The density of steps in lam is

    p(lam) ~ 0.05 + exp(-(lam - centre)^2 / 2 width^2)

Networks contribute most where signal and noise are about equal. The best of a few members of this
family is a strong start for learning.
"""

from torch import Tensor

from ld3 import density
from ld3.density import TRIED, fine_lam, looked_up, shares
from ld3.errors import SpecError
from ld3.known_grids.handmade import Handmade
from ld3.schedules import Schedule

BUMPS = tuple(f"bump:{centre:g}:{width:g}" for centre, width in TRIED)


def bump(centre: float, width: float) -> Handmade:
    """The member with this centre and width, both in lam."""

    def place(schedule: Schedule, u: Tensor) -> Tensor:
        lam = fine_lam(schedule)
        share = shares(density.bump(lam, centre, width), lam)
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
            f"method: got {name!r}, expected bump:CENTRE:WIDTH in lam, such as bump:0:3.5"
        ) from None
    return bump(centre, width)
