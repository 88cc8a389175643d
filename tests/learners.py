"""Small searches for the tests of comparisons."""

from dataclasses import dataclass, field

from ld3.errors import ModelError
from ld3.known_grids import make_grid
from ld3.problem import Problem
from ld3.searches.protocol import Found, Need, Report
from ld3.table import TunedSolver

ALL: frozenset[Need] = frozenset({"model", "pairs", "solver"})
QUICK = {"preset": "fast", "recipe": {"epochs": 4, "precondition": 8}}
"""Options that learn in a second."""


@dataclass
class Copy:
    """A known grid under another name, that remembers which pairs it was given."""

    grid: str = "edm"
    source: str = "a copy"
    needs: frozenset[Need] = ALL
    seen: list[tuple[int, ...]] = field(default_factory=list)

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        self.seen.append(problem.train.seeds)
        grid = make_grid(self.grid, problem.model.schedule, problem.steps)
        return Found(TunedSolver(problem.solver, grid), 12, (2.0, 1.0))


@dataclass
class Fails:
    """Gives up with a reason."""

    source: str = "none"
    needs: frozenset[Need] = ALL

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        raise ModelError("search: got nowhere <b>, expected somewhere; try again")
