"""Spec files: each table and figure of the paper as an experiment, in words.

A file `specs/NAME.toml` says what the paper shows and claims, what kind of experiment that is, the
words for the paper's own models (`[paper.words]`), and for each small model that runs here
(`[models.fashion]`, ..). `[quick]` holds what is changed for the smallest sizes.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ld3.errors import SpecError, unknown
from ld3.spec import validated
from ld3.store import read_bytes

SPECS = Path(__file__).parent / "specs"
Words = dict[str, Any]

ELSEWHERE = {
    "Table 1": "properties of methods in words: nothing to run",
    "Tables 11, 12 and 13": "quote others' distillation; LD3's rows are those of fid-grid and cost",
    "Table 9 and Figure 8": "point clouds: not there yet",
    "Table 10 and Figure 9": "molecular docking: not there yet",
}
"""What of the paper has no experiment here, and why."""


class Paper(BaseModel):
    """The paper's own setting."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: Annotated[tuple[str, ...], Field(min_length=1)]  # as one has to name them
    about: str  # what they are
    words: Words


class Experiment(BaseModel):
    """One table or figure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: str
    title: str
    place: str  # tables and figures
    claim: str  # of the paper, in our words
    reported: tuple[str, ...]  # its figures
    here: str  # what the small models can and cannot say about it
    paper: Paper
    models: Annotated[dict[str, Words], Field(min_length=1)]  # the first is the default
    quick: Words

    @property
    def default(self) -> str:
        return next(iter(self.models))

    def words(self, model: str, quick: bool = False) -> Words:
        """Those of a small model, or the paper's for a model of one's own."""
        if model in self.models:
            words = self.models[model]
        elif ":" in model:
            words = self.paper.words
        else:
            raise unknown(
                f"model for {self.name}", model, [*self.models, "package.module:function"]
            )
        return merged(words, self.quick) if quick else dict(words)

    def model_of(self, model: str) -> str:
        """What a section calls by its own name may be a function of the package."""
        return str(self.models.get(model, {}).get("model", model))


def merged(words: Mapping[str, Any], over: Mapping[str, Any]) -> Words:
    """Words of `over` win, table by table."""
    both = dict(words)
    for word, value in over.items():
        own = both.get(word)
        nested = isinstance(own, Mapping) and isinstance(value, Mapping)
        both[word] = merged(own, value) if nested else value  # type: ignore[arg-type]
    return both


def experiments() -> list[str]:
    """All names, in the order of the paper."""
    order = {name: number for number, name in enumerate(ORDER)}
    names = [file.stem for file in SPECS.glob("*.toml")]
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))


ORDER = (
    "illustration", "radius", "pictures", "fid-grid", "discretization", "latent", "text-to-image",
    "flow", "ablation", "cross-solver", "cost", "training-size", "rmsd", "bound", "ays",
    "ddim-imagenet", "ddim-bedroom", "training", "conditions",
)  # fmt: skip


def load_experiment(name: str) -> Experiment:
    """By name; an unknown one is a :class:`SpecError` with the nearest."""
    if name not in experiments():
        raise unknown("experiment", name, experiments())
    return read_experiment(SPECS / f"{name}.toml")


def read_experiment(file: Path) -> Experiment:
    """A spec file."""
    try:
        words = tomllib.loads(read_bytes(file).decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{file}: got something that is not TOML ({error})") from None
    return validated(Experiment, {"name": file.stem} | words)


def paper_text(experiment: Experiment) -> str:
    """The paper's own spec, as it stands in the file."""
    text = (SPECS / f"{experiment.name}.toml").read_text()
    begin = text.index("[paper]")
    end = text.index("\n[models.", begin)
    return text[begin:end].rstrip()
