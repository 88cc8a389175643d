"""Images of a plan: the same noise by reference, default schedule, best known schedule and plan."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from ld3.images import as_images
from ld3.known_grids import METHODS, default_grid, make_grid
from ld3.models import Model
from ld3.plan import Plan
from ld3.report.figures import draw_rows
from ld3.report.plans import draw_plan
from ld3.runs.sample import model_of_plan
from ld3.scores import Scores, best_of
from ld3.seeds import seeds_for
from ld3.table import Table, TunedSolver
from ld3.teacher import Teacher, sample_table

SHOWN = 8


def write_pictures(
    plan: Plan, folder: Path, device: str = "cpu", model: Model | str | None = None
) -> Iterator[Path]:
    """samples.png, for models of images and point clouds, and times.png."""
    rows = image_rows(plan, device, model)
    if rows:
        draw_rows(folder / "samples.png", rows)
        yield folder / "samples.png"
    draw_plan(plan, folder / "times.png")
    yield folder / "times.png"


def image_rows(
    plan: Plan, device: str = "cpu", model: Model | str | None = None, count: int = SHOWN
) -> list[tuple[str, Tensor]]:
    """Labelled images (B,C,H,W) by reference, default schedule, best known schedule and plan, from
    the same `count` seeds; none for samples that are no images, and for a plan without scores."""
    scores = {name: s for name, s in plan.scores.items() if isinstance(s, Scores)}
    if not scores:
        return []
    best = best_of(scores, METHODS)
    own = model_of_plan(plan, device, model=model).model
    reference = Teacher(**plan.learned.reference)

    def known(name: str) -> Table:
        grid = make_grid(name, own.schedule, len(plan.times) - 1)
        return TunedSolver(plan.make_solver(), grid).table(own.schedule, own.prediction)

    usual = default_grid(own.schedule)
    grids = {f"default: {usual}": usual} | {f"best known: {best}": best}
    if usual == best:
        grids = {f"default and best known: {best}": best}
    exact = reference.table(own.schedule, own.prediction)
    tables = {f"reference, {reference.nfe} evaluations": exact}
    tables |= {f"{label}, {plan.nfe}": known(name) for label, name in grids.items()}
    tables |= {f"learned, {plan.nfe}": plan.table()}

    def draw(table: Table) -> Tensor:
        seeds = seeds_for("images", count)
        return sample_table(own, table, seeds, guidance=plan.model.guidance, device=device)

    drawn = [(label, as_images(draw(table))) for label, table in tables.items()]
    return [(label, images) for label, images in drawn if images is not None]
