"""LD3 behind the same door as all others: the learner of :mod:`.ld3` on a given problem.

It begins with the best of the known grids on the validation pairs and keeps what was best on them.
The recipe is that of a preset; the pairs are those of the problem, whatever the preset asks for.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from ld3.learner.learn import Recipe, begin, learn
from ld3.learner.presets import make_preset
from ld3.learner.starts import finalists, ranked
from ld3.parameters import tuned_table
from ld3.problem import ROUGH, SECANT, Problem, Student, roughness
from ld3.searches import make_grid
from ld3.searches.protocol import Found, Need, Tell
from ld3.searches.trajectories import is_latent
from ld3.table import Tuned

What = Literal["standard", "times", "paper"]
SOURCES: dict[What, str] = {
    "standard": "LD3, ours: times, network times and coefficients by our recipe",
    "times": "LD3, ours: times and network times by the same recipe",
    "paper": "LD3 (Tong et al. 2025): the paper's settings",
}


@dataclass(frozen=True)
class LD3:
    """Gradient descent through the solver on the distance to the teacher."""

    needs: ClassVar[frozenset[Need]] = frozenset({"model", "pairs", "solver"})

    what: What = "standard"

    @property
    def source(self) -> str:
        return SOURCES[self.what]

    def recipe(self, problem: Problem) -> Recipe:
        """Of the preset, for a problem."""
        if self.what == "paper":
            return make_preset(
                "paper-latent" if is_latent(problem) else "paper-pixel", problem.nfe
            ).recipe
        recipe = make_preset("standard", problem.nfe).recipe
        return replace(recipe, learn="times+net") if self.what == "times" else recipe

    def __call__(self, problem: Problem, seed: int, tell: Tell) -> Found:
        schedule, recipe = problem.model.schedule, self.recipe(problem)
        student = Student(problem)

        def loss(name: str, pairs: int) -> float:
            grid = make_grid(name, schedule, problem.steps)
            table = tuned_table(problem.solver, schedule, Tuned(grid))
            return student.mean_loss(table, limit=pairs, power=recipe.power)

        start = make_grid(
            ranked(finalists(loss, lambda done, total: None))[0], schedule, problem.steps
        )
        spent = student.evaluations
        if roughness(problem, start) > ROUGH:
            problem = replace(problem, secant=SECANT)
        spent += min(4, len(problem.valid)) * (problem.nfe + 4 * (problem.nfe - 1))
        state = begin(problem, recipe, start)
        curve, tuned, final = [], Tuned(start), state
        for progress in learn(problem, recipe, state, seed):
            curve.append(progress.loss)
            tuned, final = progress.tuned, progress.state
            tell(progress.iteration, progress.total)
        return Found(tuned, spent + final.evaluations, tuple(curve))
