"""Images from the same noise by every method of a comparison."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from ld3.errors import SpecError
from ld3.experiment import Findings
from ld3.images import is_image
from ld3.report.figures import draw_rows
from ld3.runs.compare.cells import cells_of, find_cell, table_of
from ld3.runs.experiments.comparison_grid import first_places, grid_table, grid_values
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.scoring import LABELS, Scoring
from ld3.runs.spec import solver_title
from ld3.seeds import seeds_for


class ImagesOptions(BaseModel):
    """`compare` are options of `ld3 compare`; the first `count` held-out noises are drawn."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compare: dict[str, Any]
    count: int = 12

    def checked(self, context: Context) -> None:
        spec = context.compare_spec(self.compare)
        if not 1 <= self.count <= spec.held_out:
            raise SpecError(f"count: got {self.count}, expected 1 to held_out = {spec.held_out}")


def run_images(options: ImagesOptions, context: Context) -> Findings:
    """A figure for each solver and number of evaluations, and the distances."""
    spec = context.compare_spec(options.compare)
    comparison = context.compared(spec)
    scoring = Scoring.of(spec, context.report, context.ranks)
    session, seeds = scoring.session, seeds_for("held-out", options.count)
    target = session.held_out(spec.held_out).target[: options.count]
    if not is_image(target):
        raise SpecError(f"images: got {session.loaded.name}, expected a model of images")
    images = []
    for solver in spec.made_solvers:
        for nfe in spec.nfe:
            rows = [("teacher", target)]
            for cell in cells_of(spec):
                if (cell.solver, cell.nfe) != (solver, nfe) or cell.seed:
                    continue  # the first seed only
                tuned = find_cell(session, spec, cell).tuned
                if tuned is not None:
                    table = table_of(session, tuned)
                    rows.append((cell.method, session.samples(table, seeds)))
            name = f"{solver_title(solver).replace(' ', '-')}-nfe{nfe}.png"
            if context.ranks.is_first:
                draw_rows(context.folder / name, rows)
            images.append(name)
    values = grid_values(spec, comparison, scoring, scoring)
    label = LABELS["distance"]
    first = f"The first {options.count} held-out noises; each column of an image is one noise."
    return Findings(
        tables=(grid_table(spec, spec.names, values, "distance", label, set()),),
        images=tuple(images),
        notes=(first, first_places(spec, spec.names, values, "distance", label)),
        reference=session.reference.title,
    )
