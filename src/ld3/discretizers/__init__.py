"""Ways to choose the times."""

from ld3.discretizers.handmade import HANDMADE, Handmade, tangent_law
from ld3.discretizers.published import PUBLISHED
from ld3.errors import unknown
from ld3.grids import TimeGrid
from ld3.schedules import Schedule

METHODS: dict[str, Handmade] = HANDMADE | PUBLISHED


def make_grid(name: str, schedule: Schedule, steps: int) -> TimeGrid:
    """The grid of that name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name](schedule, steps)


__all__ = ["HANDMADE", "METHODS", "PUBLISHED", "make_grid", "tangent_law"]
