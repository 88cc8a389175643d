"""The walk of `ld3 reproduce`: a spec file, its options for a model, the experiment, the files."""

import platform
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from ld3 import __version__
from ld3.errors import unknown
from ld3.experiment import Experiment, ExperimentResult, Findings, Options
from ld3.report.experiments import markdown
from ld3.report.figures import plots
from ld3.report.panels import draw_panels
from ld3.runs.engines import EngineName
from ld3.runs.experiments.ablation import AblationOptions, run_ablation
from ld3.runs.experiments.bound import BoundOptions, run_bound
from ld3.runs.experiments.comparison_grid import GridOptions, run_grid
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.cross_solver import CrossSolverOptions, run_cross_solver
from ld3.runs.experiments.docking import DockingOptions, run_docking
from ld3.runs.experiments.guidance import GuidanceOptions, run_guidance
from ld3.runs.experiments.illustration import IllustrationOptions, run_illustration
from ld3.runs.experiments.paper import paper_tables
from ld3.runs.experiments.points import PointsOptions, run_points
from ld3.runs.experiments.sample_images import ImagesOptions, run_images
from ld3.runs.experiments.shared_errors import SharedErrorOptions, run_shared_errors
from ld3.runs.experiments.spec import checked
from ld3.runs.experiments.step_counts import StepCountOptions, run_step_counts
from ld3.runs.experiments.training_curves import TrainingOptions, run_training
from ld3.runs.progress import Interrupted, Report, silent
from ld3.runs.ranks import ALONE, Ranks, device_of
from ld3.store import write_bytes, write_json
from ld3.zoo.loading import check_device


@dataclass(frozen=True)
class Kind:
    """The options of a kind of experiment, and what it does with them."""

    options: type[BaseModel]
    run: Callable[[Any, Context], Findings]


KINDS = {
    "comparison-grid": Kind(GridOptions, run_grid),
    "ablation": Kind(AblationOptions, run_ablation),
    "cross-solver": Kind(CrossSolverOptions, run_cross_solver),
    "training-curves": Kind(TrainingOptions, run_training),
    "bound": Kind(BoundOptions, run_bound),
    "illustration": Kind(IllustrationOptions, run_illustration),
    "sample-images": Kind(ImagesOptions, run_images),
    "points": Kind(PointsOptions, run_points),
    "step-counts": Kind(StepCountOptions, run_step_counts),
    "guidance": Kind(GuidanceOptions, run_guidance),
    "shared-errors": Kind(SharedErrorOptions, run_shared_errors),
    "docking": Kind(DockingOptions, run_docking),
}


def run_reproduce(
    experiment: Experiment,
    model: str | None = None,
    *,
    quick: bool = False,
    out: Path = Path("reproduce"),
    jobs: int = 1,
    report: Report = silent,
    features: Path | None = None,
    data: Path | None = None,
    resize: str | None = None,
    device: str = "cpu",
    ranks: Ranks = ALONE,
    engine: EngineName = "local",
    gpus_per_cell: float = 0.0,
) -> ExperimentResult:
    """Run an experiment on a model of its file, or with the paper's options on one's own model.

    What this or another experiment computed before in `out` is read.
    """
    name, device = model or experiment.default, device_of(device)
    context = Context(
        model=experiment.model_of(name), folder=out / folder_name(experiment, name, quick),
        out=out, report=report, jobs=jobs, features=features, data=data,
        resize=resize, device=device, ranks=ranks, engine_name=engine,
        gpus_per_cell=gpus_per_cell,
    )  # fmt: skip
    kind, options, given = read_options(experiment, name, quick, context)
    plots()  # a missing library is an error before hours of work, not after
    check_device(device)
    try:
        findings = kind.run(options, context)
    except KeyboardInterrupt:
        raise Interrupted(
            f"what was finished is in {out / 'cache'}; the same command goes on from there"
        ) from None
    tables = (*findings.tables, *paper_tables(experiment, name, findings.tables))
    return ExperimentResult(
        **(dict(findings) | {"tables": tables}), name=experiment.name, title=experiment.title,
        place=experiment.place, folder=context.folder.name, model=name, quick=quick, options=given,
        command=f"ld3 reproduce {experiment.name} --model {name}" + " --quick" * quick
        + (f" --data {data}" if data is not None else ""),
        versions={
            "ld3": __version__, "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    )  # fmt: skip


def folder_name(experiment: Experiment, model: str, quick: bool) -> str:
    """Of the result: other models than the default, and quick runs, have their own."""
    other = "" if model == experiment.default else "-" + re.sub(r"[^\w]+", "-", model)
    return experiment.name + other + "-quick" * quick


def read_options(
    experiment: Experiment, model: str, quick: bool, context: Context
) -> tuple[Kind, BaseModel, Options]:
    """Checked in full, before anything runs."""
    if experiment.kind not in KINDS:
        raise unknown("kind of experiment", experiment.kind, KINDS)
    kind = KINDS[experiment.kind]
    given = experiment.options(model, quick)
    options = checked(kind.options, given)
    options.checked(context)  # type: ignore[attr-defined]
    return kind, options, given


def write_result(result: ExperimentResult, out: Path, docs: Path | None = None) -> Iterator[Path]:
    """`result.json`, `result.md` and, where curves have more than two points, `result.png`, in a
    folder of `out`.

    With `docs`, the folder of the documentation, the page and the images are copied to
    `results/reproduce/NAME.md` and `images/reproduce/NAME*.png` in it.
    """
    folder = out / result.folder
    write_json(folder / "result.json", result.model_dump(mode="json"))
    write_bytes(folder / "result.md", markdown(result).encode())
    files = [folder / "result.json", folder / "result.md"]
    if any(len(curve.x) > 2 for panel in result.panels for curve in panel.curves):
        draw_panels(folder / "result.png", result.panels)
        files.append(folder / "result.png")
    files += [folder / image for image in result.images]
    yield from files
    if docs is not None:
        for file in files[1:]:
            kind = "results" if file.suffix == ".md" else "images"
            own = "" if file.stem == "result" else f"-{file.stem}"
            target = docs / kind / "reproduce" / f"{result.folder}{own}{file.suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            yield target
