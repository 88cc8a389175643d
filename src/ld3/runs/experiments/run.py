"""The walk of `ld3 reproduce`: a spec file, its options for a model, the experiment, the files."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ld3 import zoo
from ld3.errors import SpecError, unknown
from ld3.experiment import Experiment, ExperimentResult, Findings, Options, replaced, values_of
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
from ld3.runs.experiments.guidance_passes import GuidancePassesOptions, run_guidance_passes
from ld3.runs.experiments.illustration import IllustrationOptions, run_illustration
from ld3.runs.experiments.paper import paper_notes, paper_tables
from ld3.runs.experiments.points import PointsOptions, run_points
from ld3.runs.experiments.sample_images import ImagesOptions, run_images
from ld3.runs.experiments.shared_errors import SharedErrorOptions, run_shared_errors
from ld3.runs.experiments.spec import OLD_NAMES, checked
from ld3.runs.experiments.step_counts import StepCountOptions, run_step_counts
from ld3.runs.experiments.training_curves import TrainingOptions, run_training
from ld3.runs.progress import Report, resumable, silent
from ld3.runs.ranks import ALONE, Ranks, device_of
from ld3.runs.session import versions
from ld3.store import digest, read_bytes, write_bytes, write_json
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
    "guidance-passes": Kind(GuidancePassesOptions, run_guidance_passes),
    "shared-errors": Kind(SharedErrorOptions, run_shared_errors),
    "docking": Kind(DockingOptions, run_docking),
}


REPLACED = {"distance": ("distance", "lpips"), "nfe": ("nfe", ""), "samples": ("judged", "")}
"""What `--distance`, `--nfe` and `--samples` replace: the option, and how its old value starts."""


def run_reproduce(
    experiment: Experiment,
    model: str | None = None,
    *,
    quick: bool = False,
    distance: str | None = None,
    nfe: Sequence[int] | None = None,
    samples: int | None = None,
    out: Path = Path("reproduce"),
    jobs: int = 1,
    report: Report = silent,
    features: Path | None = None,
    data: Path | None = None,
    resize: str | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    batch: int | None = None,
    pipeline: Options | None = None,
    ranks: Ranks = ALONE,
    engine: EngineName = "local",
    gpus_per_cell: float = 0.0,
) -> ExperimentResult:
    """Run an experiment on a model of its file, or with the paper's options on one's own model.

    `distance` replaces LPIPS, `nfe` the numbers of evaluations and `samples` those of set metrics,
    where the options have them. `pipeline` are :class:`~ld3.options.PipelineOptions`. What this or
    another experiment computed before in `out` is read.
    """
    name, device = model or experiment.default, device_of(device)
    name = OLD_NAMES.get(name, name)
    every = {"distance": distance, "nfe": nfe and list(nfe), "samples": samples}
    changes = {option: value for option, value in every.items() if value is not None}
    network = {"dtype": dtype, "batch": batch, "pipeline": pipeline or None}
    loaded = (pipeline or {}) | ({} if dtype is None else {"dtype": dtype})
    context = Context(
        model=experiment.model_of(name), out=out,
        folder=out / folder_name(experiment, name, quick, changes, loaded),
        network={option: value for option, value in network.items() if value is not None},
        report=report, jobs=jobs, features=features, data=data,
        resize=resize, device=device, ranks=ranks, engine_name=engine,
        gpus_per_cell=gpus_per_cell,
    )  # fmt: skip
    kind, options, given = read_options(experiment, name, quick, context, changes)
    plots()  # a missing library is an error before hours of work, not after
    check_device(device)
    with resumable(f"what was finished is in {out / 'cache'}"):
        findings = kind.run(options, context)
    tables = (*findings.tables, *paper_tables(experiment, name, findings.tables))
    notes = (*findings.notes, *paper_notes(experiment, name, findings.tables, given))
    return ExperimentResult(
        **(dict(findings) | {"tables": tables, "notes": notes}), name=experiment.name,
        title=experiment.title, place=experiment.place, folder=context.folder.name,
        model=name, quick=quick, options=given,
        command=f"ld3 reproduce {experiment.name} --model {name}" + " --quick" * quick
        + "".join(f" --{option} {_text(value)}" for option, value in changes.items())
        + (f" --data {data}" if data is not None else "") + _as_typed(loaded),
        versions=versions(), weights=zoo.weights_behind(context.model),
    )  # fmt: skip


def folder_name(
    experiment: Experiment,
    model: str,
    quick: bool,
    changes: Mapping[str, Any] | None = None,
    loaded: Mapping[str, Any] | None = None,
) -> str:
    """Of the result: other models than the default, other options, and quick runs have their own.
    Where the weights of a distance are is not in it; of how a model is `loaded`, a digest is."""
    parts = [] if model == experiment.default else [model]
    for option, value in (changes or {}).items():
        text = _text(value)
        parts.append(text.partition(":")[0] if option == "distance" else f"{option}-{text}")
    parts += [digest(loaded)[:8]] if loaded else []
    return (
        "-".join((experiment.name, *(re.sub(r"[^\w]+", "-", p) for p in parts))) + "-quick" * quick
    )


def read_options(
    experiment: Experiment,
    model: str,
    quick: bool,
    context: Context,
    changes: Mapping[str, Any] | None = None,
) -> tuple[Kind, BaseModel, Options]:
    """Checked in full, before anything runs."""
    if experiment.kind not in KINDS:
        raise unknown("kind of experiment", experiment.kind, KINDS)
    kind = KINDS[experiment.kind]
    given = experiment.options(model, quick)
    for option, value in (changes or {}).items():
        name, start = REPLACED[option]
        old = [one for one in values_of(given, name) if str(one).startswith(start)]
        if not old:
            raise SpecError(
                f"--{option}: got {_text(value)}, but {experiment.name} with {model} has no "
                f"{start or option} to replace; leave it out"
            )
        given = replaced(given, name, value, start)
    options = checked(kind.options, given)
    options.checked(context)  # type: ignore[attr-defined]
    return kind, options, given


def _text(value: Any) -> str:
    """As on the command line."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _as_typed(loaded: Mapping[str, Any]) -> str:
    """Options of a network as on the command line; many prompts are a file."""
    given, typed = dict(loaded), ""
    prompts = given.pop("prompts", None) or ()
    if sum(map(len, prompts)) > 500:
        typed += " --prompts FILE"
    else:
        typed += "".join(f" --prompt {shlex.quote(one)}" for one in prompts)
    if "classes" in given:
        typed += f" --label {_text(list(given.pop('classes')))}"
    if "height" in given:
        typed += f" --resolution {given.pop('height')}x{given.pop('width')}"
    for name, value in given.items():
        flag = f" --{name.replace('_', '-')}"
        typed += flag if value is True else f"{flag} {shlex.quote(str(value))}"
    return typed


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
            write_bytes(target, read_bytes(file))
            yield target
