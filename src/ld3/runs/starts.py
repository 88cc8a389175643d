"""Where a run begins: the best known grids on some validation pairs, or what the spec names."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from ld3.errors import StoreError
from ld3.learner.starts import SCREEN, TRIED, finalists, ranked
from ld3.parameters import tuned_table
from ld3.plan import Plan
from ld3.problem import Problem, Student, roughness
from ld3.runs.jobs import Job
from ld3.runs.kept import measure_of, remembered
from ld3.scores import Tell
from ld3.searches import make_grid
from ld3.store import read_json, write_json
from ld3.table import Tuned


@dataclass(frozen=True)
class Starts:
    """Which grids to begin with, and what it took to find them."""

    chosen: tuple[str, ...]  # names of grids, or the path of a plan
    losses: dict[str, float]  # on the first validation pairs
    roughness: float
    evaluations: int

    @classmethod
    def of(cls, content: Any) -> "Starts":
        """From JSON."""
        losses = {str(name): float(loss) for name, loss in content["losses"].items()}
        chosen = tuple(str(name) for name in content["chosen"])
        return cls(chosen, losses, float(content["roughness"]), int(content["evaluations"]))


def find_starts(job: Job, problem: Problem, tell: Tell, fresh: bool) -> Starts:
    """The best known grids on some validation pairs, or what the spec names; kept in a file."""
    file = job.folder / "starts.json"
    if file.exists() and not fresh:
        try:
            return Starts.of(read_json(file))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise StoreError(f"{file}: wanted the starts of a run; begin with --fresh") from None
    student, power = Student(problem), job.preset.recipe.power
    losses: dict[str, float] = {}
    chosen: tuple[str, ...] = (job.spec.start,)
    if job.spec.start == "best":

        def loss(name: str, pairs: int) -> float:
            table = tuned_table(job.solver, problem.model.schedule, start_of(name, job))

            def measure() -> dict[str, Any]:
                value = student.mean_loss(table, limit=pairs, power=power)
                return {"loss": value if math.isfinite(value) else None}

            what = ["start", pairs, len(problem.valid), power, *measure_of(job)]
            value = remembered(job, table, what, measure)["loss"]
            return math.inf if value is None else float(value)

        losses = finalists(loss, lambda done, total: tell("trying starts", done, total))
        chosen = tuple(ranked(losses)[: job.preset.starts])
    rough = roughness(problem, start_of(chosen[0], job).grid)
    seen = min(SCREEN, len(problem.valid)) * len(TRIED) + len(problem.valid) * len(losses)
    screened = (problem.nfe - 1) * seen if losses else 0
    cost = screened + 4 * (problem.nfe + 4 * (problem.nfe - 1))
    starts = Starts(chosen, losses, rough if math.isfinite(rough) else 0.0, cost)
    write_json(file, asdict(starts))
    return starts


def start_of(name: str, job: Job) -> Tuned:
    """A grid by name; of a plan its corrections too, if they are of this solver and go on."""
    schedule = job.loaded.model.schedule
    if not name.endswith(".json"):
        return Tuned(make_grid(name, schedule, job.steps))
    plan = Plan.load(name)
    grid = plan.grid.checked(schedule, job.steps)
    goes_on = "coefficients" in job.preset.recipe.learn and plan.make_solver() == job.solver
    return Tuned(grid, plan.tuned.corrections if goes_on else None)
