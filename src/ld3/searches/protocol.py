"""The protocol of a time-grid search."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ld3.problem import Problem
from ld3.table import TunedSolver

Need = Literal["model", "pairs", "solver"]
Report = Callable[[int, int], None]
"""Receives progress: parts done, parts in all."""


def silent(done: int, total: int) -> None:
    """No report."""


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    tuned: TunedSolver
    evaluations: int = 0  # of the network on one sample; a backward pass counts two
    curve: tuple[float, ...] = ()  # the objective after each iteration


class Search(Protocol):
    """A search for the times of a problem."""

    @property
    def source(self) -> str:
        """Its name and publication, in one line."""
        ...

    @property
    def needs(self) -> frozenset[Need]:
        """The parts of a problem it uses besides schedule and steps."""
        ...

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found: ...
