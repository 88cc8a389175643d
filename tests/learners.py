"""Small methods for the tests of comparisons: a real learner, and some that are made to fail."""

from dataclasses import dataclass, field

from ld3.errors import ModelError
from ld3.learner.learn import learning
from ld3.learner.recipes import PreconditionedAdam
from ld3.problem import Problem
from ld3.searches import make_grid
from ld3.searches.registry import Found, Need, Report
from ld3.table import TunedSolver

ALL: frozenset[Need] = frozenset({"model", "pairs", "solver"})


@dataclass
class Small:
    """LD3 with few iterations."""

    source: str = "LD3, a short run"
    needs: frozenset[Need] = ALL
    seen: list[tuple[int, ...]] = field(default_factory=list)  # seeds of the pairs it was given

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        self.seen.append(problem.train.seeds)
        recipe = PreconditionedAdam(
            learn="times+net+coefficients", epochs=4, precondition=8, rate=0.08
        )
        start = make_grid("edm", problem.model.schedule, problem.steps)
        curve = []
        for last in learning(problem, recipe, start, seed=seed):
            curve.append(last.best if last.loss is None else last.loss)
            progress(max(1, last.iteration), last.total)
        return Found(last.tuned, last.state.evaluations, tuple(curve))


@dataclass
class Copy:
    """A known grid under another name."""

    grid: str
    source: str = "a copy"
    needs: frozenset[Need] = ALL

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        grid = make_grid(self.grid, problem.model.schedule, problem.steps)
        return Found(TunedSolver(problem.solver, grid), 12)


@dataclass
class Fails:
    """Gives up with a reason."""

    source: str = "none"
    needs: frozenset[Need] = ALL

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        raise ModelError("search: got nowhere <b>, wanted somewhere; try again")
