"""Spec files `specs/NAME.toml`: each table and figure of the paper, or of these docs.

A file says what the paper shows and claims, the kind of experiment, the options for the paper's own
models (`[paper.options]`), and those for each model that runs here (`[models.fashion]`, ..).
`[quick]` holds what is changed for the smallest sizes.
"""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ld3.errors import bad_option, unknown
from ld3.experiment import Experiment, Options
from ld3.store import read_text, read_toml

Kind = TypeVar("Kind", bound=BaseModel)
SPECS = Path(__file__).parent / "specs"
ORDER = (
    "illustration", "radius", "images", "fid-grid", "discretization", "latent", "text-to-image",
    "flow", "points", "docking", "ablation", "cross-solver", "cost", "training-size", "rmsd",
    "bound", "distillation", "ays", "ddim-imagenet", "ddim-bedroom", "training", "conditions",
    "known-grids", "every-method", "every-measure", "real-images", "baselines", "shared-errors",
    "parameter-groups", "step-counts", "guidance", "guidance-passes", "recipe", "shared-term",
)  # fmt: skip
"""All names: the paper's in its order, then our own."""
OLD_NAMES = {"pictures": "images"}
"""Names of experiments and of their models before, which are still taken."""


def experiment_names() -> list[str]:
    order = {name: number for number, name in enumerate(ORDER)}
    names = [file.stem for file in SPECS.glob("*.toml")]
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))


def all_experiments() -> list[Experiment]:
    return [load_experiment(name) for name in experiment_names()]


def load_experiment(name: str) -> Experiment:
    """By name; an unknown one is a :class:`SpecError` with the nearest."""
    name = OLD_NAMES.get(name, name)
    if name not in experiment_names():
        raise unknown("experiment", name, experiment_names())
    return read_experiment(SPECS / f"{name}.toml")


def read_experiment(file: Path) -> Experiment:
    """A spec file."""
    experiment = checked(Experiment, {"name": file.stem} | read_toml(file))
    if experiment.paper is None:
        return experiment
    text = read_text(file)
    section = text[text.index("[paper]") : text.index("\n[models.")].rstrip()
    return experiment.model_copy(update={"paper_text": section})


def checked(kind: type[Kind], options: Options) -> Kind:
    """Options as an object; wrong ones are a :class:`SpecError` in one line."""
    try:
        return kind(**options)
    except ValidationError as error:
        raise bad_option(kind, error) from None
