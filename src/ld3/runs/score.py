"""How a plan does on held-out noise, at the guidance scale it was learned for and at others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ld3.learner.starts import GRIDS
from ld3.models import Model
from ld3.plan import Plan
from ld3.runs.held_out import best_of, distances, known_table
from ld3.runs.jobs import Job, jobs
from ld3.scores import Scores, Tell, silent
from ld3.searches import METHODS
from ld3.spec import RunSpec

KEPT = (  # of the words a plan was learned by
    "preset", "distance", "dtype", "gradient_free",
    "teacher_solver", "teacher_order", "teacher_variant", "teacher_grid", "teacher_steps",
)  # fmt: skip


@dataclass(frozen=True)
class Scored:
    """A plan and all known grids at one guidance scale."""

    guidance: float
    plan: Scores
    grids: dict[str, Scores]

    @property
    def best_grid(self) -> str:
        """Picked on the very noise it is compared on, in its favour."""
        return best_of(self.grids, METHODS)

    @property
    def ratio(self) -> float:
        """The plan's distance over that of the best known grid."""
        return self.plan.distance / self.grids[self.best_grid].distance


def run_score(
    plan: Plan,
    guidances: Sequence[float] = (),
    held_out: int = 64,
    device: str = "cpu",
    out: Path = Path("runs"),
    force: bool = False,
    tell: Tell = silent,
    model: Model | None = None,
) -> Iterator[Scored]:
    """A plan against every known grid, by its own teacher and distance, at each guidance scale.

    Without `guidances`, at that of the plan. `force` takes a model that the plan was not learned
    for; `model` is one that has no name to load it by.
    """
    job = _job(plan, held_out, device, out, model)
    if not force:
        plan.check_fits(job.loaded.model, job.loaded.digest)
    tables = {name: known_table(job, name) for name in GRIDS} | {"plan": plan.table()}
    for scale in guidances or (plan.model.guidance,):
        grids = distances(job.at_guidance(scale), tables, tell)
        yield Scored(scale, grids.pop("plan"), grids)


def _job(plan: Plan, held_out: int, device: str, out: Path, model: Model | None) -> Job:
    """What the plan was learned by, as far as it matters to its scores."""
    said = plan.learned.get("spec")
    words = {
        "model": plan.model.name,
        "solver": plan.solver.name,
        "order": plan.solver.order,
        "variant": plan.solver.variant or None,
        "pipeline": plan.model.options,
        "held_out": held_out,
        "device": device,
        "out": out,
    }
    if isinstance(said, dict):
        words |= {word: said[word] for word in KEPT if word in said}
    (job,) = jobs(RunSpec.read(words), [plan.nfe], model)
    return job
