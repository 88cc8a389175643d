"""The walk of `ld3 reproduce`: a spec file, its words for a model, the experiment, the files."""

import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from ld3 import __version__
from ld3.errors import unknown
from ld3.pictures import plots
from ld3.reproduce.bound import BoundWords, run_bound
from ld3.reproduce.changes import ChangesWords, run_changes
from ld3.reproduce.cross import CrossWords, run_cross
from ld3.reproduce.draw import draw_panels
from ld3.reproduce.grid import GridWords, PicturesWords, run_grid, run_pictures
from ld3.reproduce.illustration import IllustrationWords, run_illustration
from ld3.reproduce.result import Made, Result, markdown
from ld3.reproduce.spec import Experiment
from ld3.reproduce.stage import Stage
from ld3.reproduce.training import TrainingWords, run_training
from ld3.runs import Interrupted
from ld3.scores import Tell, silent
from ld3.spec import validated
from ld3.store import write_bytes, write_json
from ld3.zoo.loading import check_device


@dataclass(frozen=True)
class Kind:
    """The words of a kind of experiment, and what it does with them."""

    words: type[BaseModel]
    run: Callable[[Any, Stage], Made]


KINDS = {
    "grid": Kind(GridWords, run_grid),
    "changes": Kind(ChangesWords, run_changes),
    "cross": Kind(CrossWords, run_cross),
    "training": Kind(TrainingWords, run_training),
    "bound": Kind(BoundWords, run_bound),
    "illustration": Kind(IllustrationWords, run_illustration),
    "pictures": Kind(PicturesWords, run_pictures),
}


def run_reproduce(
    experiment: Experiment,
    model: str | None = None,
    *,
    quick: bool = False,
    out: Path = Path("reproduce"),
    jobs: int = 1,
    tell: Tell = silent,
    features: Path | None = None,
    device: str = "cpu",
) -> Result:
    """Run an experiment on a small model, or with the paper's words on a model of one's own.

    What was computed before, by this or another experiment in `out`, is read.
    """
    name = model or experiment.default
    stage = Stage(
        model=experiment.model_of(name), folder=out / folder_name(experiment, name, quick),
        cache=out / "cache", tell=tell, jobs=jobs, features=features, device=device,
    )  # fmt: skip
    kind, words, spec = read_words(experiment, name, quick, stage)
    plots()  # said before hours of work, not after
    check_device(device)
    try:
        made = kind.run(words, stage)
    except KeyboardInterrupt:
        raise Interrupted(
            f"what was finished is in {stage.cache}; the same command goes on from there"
        ) from None
    command = f"ld3 reproduce {experiment.name} --model {name}" + " --quick" * quick
    versions = {
        "ld3": __version__, "torch": str(torch.__version__), "python": platform.python_version(),
    }  # fmt: skip
    return Result(
        **dict(made), name=experiment.name, title=experiment.title, place=experiment.place,
        folder=stage.folder.name, model=name, quick=quick, command=command, words=spec,
        versions=versions,
    )  # fmt: skip


def folder_name(experiment: Experiment, model: str, quick: bool) -> str:
    """Of the result: other models than the default, and quick runs, have their own."""
    other = "" if model == experiment.default else "-" + re.sub(r"[^\w]+", "-", model)
    return experiment.name + other + "-quick" * quick


def read_words(
    experiment: Experiment, model: str, quick: bool, stage: Stage
) -> tuple[Kind, BaseModel, dict[str, Any]]:
    """Checked to the last word, before anything runs."""
    if experiment.kind not in KINDS:
        raise unknown("kind of experiment", experiment.kind, KINDS)
    kind = KINDS[experiment.kind]
    spec = {k: v for k, v in experiment.words(model, quick).items() if k != "model"}
    words = validated(kind.words, spec)
    words.checked(stage)  # type: ignore[attr-defined]
    return kind, words, spec


def write_result(result: Result, out: Path) -> Iterator[Path]:
    """`result.json`, `result.md` and, where there are curves, `result.png`, in a folder of it."""
    folder = out / result.folder
    write_json(folder / "result.json", result.model_dump(mode="json"))
    yield folder / "result.json"
    write_bytes(folder / "result.md", markdown(result).encode())
    yield folder / "result.md"
    if result.panels:
        draw_panels(folder / "result.png", result.panels)
        yield folder / "result.png"
    for picture in result.pictures:
        yield folder / picture
