"""One door for every way to choose the times: hand-made, published, searched for and learned.

All methods are given the same problem (model, solver, number of steps, the same pairs) and give
back a tuned solver with what it cost to find. So a comparison is fair by construction.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ld3.discretizers import METHODS, make_method
from ld3.discretizers.ld3.student import Problem
from ld3.errors import unknown
from ld3.table import Tuned

Need = Literal["model", "pairs"]
Tell = Callable[[int, int], None]
"""Told how many of how many parts of the work are done."""


@dataclass(frozen=True)
class Found:
    """What a method came to."""

    tuned: Tuned
    evaluations: int = (
        0  # of the network on one sample, a backward pass as two; teacher not counted
    )
    curve: tuple[float, ...] = ()  # of what it minimises, one value an iteration


class Discretizer(Protocol):
    """A way to choose the times that looks at more than the noise schedule."""

    @property
    def source(self) -> str:
        """Where it is from, in a line."""
        ...

    @property
    def needs(self) -> frozenset[Need]:
        """What of a problem it looks at besides schedule, solver and steps."""
        ...

    def __call__(self, problem: Problem, seed: int, tell: Tell) -> Found: ...


SEARCHES: dict[str, Discretizer] = {}


def find(
    name: str, problem: Problem, seed: int = 0, tell: Tell = lambda done, total: None
) -> Found:
    """What the method of that name makes of a problem."""
    if name in SEARCHES:
        return SEARCHES[name](problem, seed, tell)
    if name not in METHODS and not name.startswith("bump:"):
        raise unknown("method", name, [*METHODS, *SEARCHES, "bump:CENTRE:WIDTH"])
    return Found(Tuned(make_method(name)(problem.model.schedule, problem.steps)))
