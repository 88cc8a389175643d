"""Where learning begins: the best known grids, by forward passes on the validation pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ld3.known_grids import BUMPS, GRIDS, make_grid
from ld3.problem import SECANT, Problem, Student
from ld3.searches.protocol import Report, silent
from ld3.table import TunedSolver

TRIED = (*GRIDS, *BUMPS)
SCREEN = 6  # validation pairs on which all grids are compared
FINALISTS = 6  # grids that are compared on all pairs
ROUGH = 0.5  # roughness above which secants are used


@dataclass(frozen=True)
class Starts:
    """The best known grids of a problem, best first."""

    names: Sequence[str]
    losses: dict[str, float]  # of the finalists, on all validation pairs
    roughness: float  # of the network, on the best grid
    evaluations: int
    passes: int = 0


def find_starts(
    problem: Problem, count: int = 1, power: float = 1.0, progress: Report = silent
) -> Starts:
    """The `count` grids of lowest (mean d^power)^(1/power).

    All known grids are compared on a few validation pairs, the best of them on all.
    """
    student, schedule = Student(problem), problem.model.schedule

    def losses(names: Sequence[str], limit: int) -> dict[str, float]:
        found, grids = {}, [make_grid(name, schedule, problem.steps) for name in names]
        tables = [TunedSolver(problem.solver, grid).table(schedule) for grid in grids]
        each = student.mean_losses(tables, limit=limit, power=power)
        for done, (name, loss) in enumerate(zip(names, each, strict=True)):
            found[name] = loss
            progress(done + 1, len(names))
        finite = [name for name in names if math.isfinite(found[name])] or names
        return {name: found[name] for name in sorted(finite, key=lambda name: found[name])}

    finalists = losses(list(losses(TRIED, SCREEN))[:FINALISTS], 0)
    names = tuple(finalists)[:count]
    rough = student.roughness(make_grid(names[0], schedule, problem.steps))
    return Starts(names, finalists, rough, student.evaluations, student.passes)


def with_secant(problem: Problem, roughness: float) -> Problem:
    """The problem, with secants instead of slopes if the network is rough."""
    return replace(problem, secant=SECANT) if roughness > ROUGH else problem
