"""Pictures of a plan: the same noise by reference, best known grid and plan; and its times."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from ld3.images import is_image
from ld3.known_grids import METHODS, make_grid
from ld3.models import Model
from ld3.plan import Plan
from ld3.report.figures import draw_rows
from ld3.report.plans import draw_plan
from ld3.runs.sample import model_of_plan
from ld3.scores import Scores, best_of
from ld3.seeds import seeds_for
from ld3.table import Table, TunedSolver
from ld3.teacher import Teacher, sample_table

SHOWN = 12


def write_pictures(
    plan: Plan, folder: Path, device: str = "cpu", model: Model | str | None = None
) -> Iterator[Path]:
    """samples.png, for models of images, and times.png."""
    scores = {name: s for name, s in plan.scores.items() if isinstance(s, Scores)}
    if scores:
        best = best_of(scores, METHODS)
        own = model_of_plan(plan, device, model=model).model
        grid = make_grid(best, own.schedule, len(plan.times) - 1)
        reference = Teacher(**plan.learned.reference)
        tables = {
            f"reference, {reference.nfe}": reference.table(own.schedule, own.prediction),
            f"{best}, {plan.nfe}": TunedSolver(plan.make_solver(), grid).table(
                own.schedule, own.prediction
            ),
            f"learned, {plan.nfe}": plan.table(),
        }

        def draw(table: Table) -> Tensor:
            seeds = seeds_for("pictures", SHOWN)
            return sample_table(own, table, seeds, guidance=plan.model.guidance, device=device)

        rows = [(label, draw(table)) for label, table in tables.items()]
        if is_image(rows[0][1]):
            draw_rows(folder / "samples.png", rows)
            yield folder / "samples.png"
    draw_plan(plan, folder / "times.png")
    yield folder / "times.png"
