"""Ways to choose the times."""

from ld3.discretizers.handmade import METHODS, make_grid, tangent_law

__all__ = ["METHODS", "make_grid", "tangent_law"]
