"""Choosing among grids by samples: the mean distance to the teacher on the validation pairs.

Authors of searches without gradients tune what is left by looking at samples: the coefficient of
GITS, the round at which AYS stops. Here the solver, the distance and the validation pairs of the
problem decide. Every grid that is tried costs one sampling run per pair.
"""

import math
from collections.abc import Iterable

from ld3.grids import TimeGrid
from ld3.problem import Problem, Student
from ld3.searches.protocol import Found
from ld3.table import TunedSolver


class Validation:
    """Mean distances of grids on the validation pairs, with a count of what they cost."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.student = Student(problem)
        self.losses: list[float] = []  # in the order of the trials

    def loss(self, grid: TimeGrid) -> float:
        """inf where a sample is not finite."""
        table = TunedSolver(self.problem.solver, grid).table(self.problem.model.schedule)
        loss = self.student.mean_loss(table)
        self.losses.append(loss if math.isfinite(loss) else math.inf)
        return self.losses[-1]

    def best(self, grids: Iterable[TimeGrid], patience: int = 0) -> int:
        """The number of the grid of lowest loss.

        With `patience`, trials end after that many grids in a row without a lower one.
        """
        for grid in grids:
            self.loss(grid)
            lowest = self.losses.index(min(self.losses))
            if patience and len(self.losses) - lowest > patience:
                break
        return lowest

    def found(self, grid: TimeGrid, spent: int) -> Found:
        """The grid as a result; the curve has the finite losses of all trials."""
        tuned = TunedSolver(self.problem.solver, grid)
        curve = tuple(loss for loss in self.losses if math.isfinite(loss))
        return Found(tuned, spent + self.student.evaluations, curve)
