"""What a way to choose the times must be to stand behind the door, :mod:`.door`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ld3.problem import Problem
from ld3.table import Tuned

Need = Literal["model", "pairs", "solver"]
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
        """What of a problem it looks at besides schedule and steps."""
        ...

    def __call__(self, problem: Problem, seed: int, tell: Tell) -> Found: ...
