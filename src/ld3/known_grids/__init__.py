"""Known time grids: hand-made, published, and dense around a centre. They need a schedule only."""

from ld3.errors import unknown
from ld3.grids import TimeGrid
from ld3.known_grids.bumps import BUMPS, bump, read_bump
from ld3.known_grids.handmade import HANDMADE, Handmade, tangent_law
from ld3.known_grids.published import PUBLISHED
from ld3.schedules import EDM, Schedule

METHODS: dict[str, Handmade] = HANDMADE | PUBLISHED
GRIDS = tuple(name for name in METHODS if not name.startswith("paper-"))
"""The known grids without those that only reproduce the LD3 paper's code."""


def make_method(name: str) -> Handmade:
    """The method of that name, or a `bump:CENTRE:WIDTH`."""
    if name.startswith("bump:"):
        return read_bump(name)
    if name not in METHODS:
        raise unknown("method", name, [*METHODS, "bump:CENTRE:WIDTH"])
    return METHODS[name]


def make_grid(name: str, schedule: Schedule, steps: int) -> TimeGrid:
    """The grid of that name."""
    return make_method(name)(schedule, steps)


def default_grid(schedule: Schedule) -> str:
    """The grid that samplers take unless they are given another: rho = 7 on sigma for EDM networks,
    even steps in t for all others."""
    return "edm" if isinstance(schedule, EDM) else "uniform"


__all__ = [
    "BUMPS", "GRIDS", "HANDMADE", "METHODS", "PUBLISHED", "bump", "default_grid", "make_grid",
    "make_method", "tangent_law",
]  # fmt: skip
