"""Images from the same noise by every method of a comparison."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import Tensor

from ld3.errors import SpecError
from ld3.experiment import Findings, Frozen
from ld3.images import as_images
from ld3.report.figures import draw_rows
from ld3.runs.compare.cells import found_cells
from ld3.runs.compare.spec import CompareSpec
from ld3.runs.experiments.comparison_grid import first_places, grid_table, grid_values
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.scoring import LABELS, Scoring
from ld3.runs.session import Session
from ld3.runs.spec import solver_title
from ld3.seeds import seeds_for


class ImagesOptions(Frozen):
    """`compare` are options of `ld3 compare`; the first `count` held-out seeds are drawn."""

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
    scoring = Scoring.of(spec, context)
    images = draw_methods(spec, scoring.session, options.count, context.own_folder, spec.names)
    values = grid_values(spec, comparison, scoring, scoring)
    label = LABELS["distance"]
    first = f"The first {options.count} held-out seeds; each column of an image is one seed."
    return Findings(
        tables=(grid_table(spec, spec.names, values, "distance", label, set()),),
        images=tuple(images),
        notes=(first, *first_places(spec, spec.names, values, "distance", label)),
        reference=scoring.session.reference.title,
    )


def draw_methods(
    spec: CompareSpec, session: Session, count: int, folder: Path | None, methods: Collection[str]
) -> list[str]:
    """The first held-out samples of the teacher and of some methods, the same noise in a column:
    one PNG for each solver and number of evaluations, by its name in `folder`, if there is one."""
    seeds, names = seeds_for("held-out", count), []
    found = [(c, r.tuned) for c, r in found_cells(session, spec, *methods) if not c.seed]

    def drawn(samples: Tensor) -> Tensor:
        images = as_images(samples)
        if images is None:
            name = session.loaded.name
            raise SpecError(f"images: got {name}, expected a model of images or point clouds")
        return images

    for solver in spec.made_solvers:
        for nfe in spec.nfe:
            rows = [("teacher", drawn(session.held_out(spec.held_out).target[:count]))]
            for cell, tuned in found:
                if (cell.solver, cell.nfe) == (solver, nfe) and tuned is not None:
                    samples = session.samples(session.table(tuned), seeds)
                    rows.append((cell.method, drawn(samples)))
            name = f"{solver_title(solver).replace(' ', '-')}-nfe{nfe}.png"
            if folder is not None:
                draw_rows(folder / name, rows)
            names.append(name)
    return names
