"""What a run is asked to do: one frozen object, from flags and a TOML file with the same words."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    field_validator,
)

from ld3.errors import SpecError, unknown
from ld3.learner.learn import Learn, Recipe
from ld3.learner.presets import PRESETS
from ld3.options import PipelineOptions
from ld3.searches import make_method
from ld3.solvers import make_solver
from ld3.store import read_bytes

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
Count = Annotated[int, Field(ge=1, le=100)]
DTYPES: tuple[str, ...] = get_args(Dtype)
Spec = TypeVar("Spec", bound=BaseModel)


class RunSpec(BaseModel):
    """`ld3 learn`, in words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = "fashion"
    solver: str = "dpmpp"
    order: int | None = None
    variant: str | None = None
    nfe: Annotated[tuple[Count, ...], Field(min_length=1)] = (5,)
    preset: str = "standard"
    learn: Learn | None = None
    start: str = "best"
    distance: str = "auto"
    pairs: Annotated[int, Field(ge=2, le=100_000)] | None = None
    guidance: Annotated[float, Field(ge=0, le=100)] = 1.0
    guidance_to: Annotated[float, Field(ge=0, le=100)] | None = None
    family: tuple[Count, Count] | None = None
    refine: bool = False
    gradient_free: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    held_out: Annotated[int, Field(ge=2, le=100_000)] = 64
    judged: Annotated[int, Field(ge=0, le=100_000)] = 200
    recipe: dict[str, float | int | str | bool] = {}
    slope: Literal["auto", "exact", "secant"] = "auto"
    teacher_solver: str | None = None
    teacher_order: int | None = None
    teacher_variant: str | None = None
    teacher_grid: str | None = None
    teacher_steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    device: str = "cpu"
    dtype: Dtype | None = None
    pipeline: PipelineOptions | None = None
    tensorboard: bool = False
    out: Path = Path("runs")

    @field_validator("pipeline", mode="before")
    @classmethod
    def _known_options(cls, value: object) -> object:
        return PipelineOptions.checked(value) if isinstance(value, dict) else value

    @field_serializer("pipeline")
    def _said(self, options: PipelineOptions | None) -> dict[str, Any] | None:
        return None if options is None else options.said()

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, value: str) -> str:
        if value not in PRESETS:
            raise unknown("preset", value, PRESETS)
        return value

    @field_validator("recipe")
    @classmethod
    def _known_recipe(cls, value: dict[str, Any]) -> dict[str, Any]:
        known = {field.name: field for field in fields(Recipe)}
        for word, got in value.items():
            if word not in known:
                raise unknown("word of a recipe", word, known)
            default = known[word].default
            number = isinstance(default, float) and isinstance(got, int | float)
            if isinstance(got, bool) != isinstance(default, bool) or not (
                number or isinstance(got, type(default))
            ):
                raise SpecError(f"recipe {word}: got {got!r}, wanted something like {default!r}")
        Recipe(**value)  # out of range is said here
        return value

    @property
    def teacher(self) -> dict[str, Any]:
        """What replaces parts of the preset's teacher. Another solver has its own order."""
        words = {
            name: getattr(self, f"teacher_{name}")
            for name in ("solver", "order", "variant", "grid", "steps")
        }
        if self.teacher_solver is not None:
            words |= {"order": self.teacher_order or 0, "variant": self.teacher_variant or ""}
        return {name: value for name, value in words.items() if value is not None}

    @classmethod
    def read(cls, flags: dict[str, Any], file: Path | None = None) -> "RunSpec":
        """Flags win over the file; unknown words and bad values are a :class:`SpecError`."""
        spec = validated(cls, _ranges(words_of(flags, file)))
        make_solver(spec.solver, spec.order, spec.variant)  # a wrong name is said here
        if spec.teacher_solver is not None:
            make_solver(spec.teacher_solver, spec.teacher_order, spec.teacher_variant)
        for grid in (spec.teacher_grid, None if spec.start == "best" else spec.start):
            if grid is not None and not grid.endswith(".json"):
                make_method(grid)
        return spec


def words_of(flags: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """Those of a TOML file, and flags that were given, which win; tables of words are joined."""
    words: dict[str, Any] = {}
    if file is not None:
        try:
            words = tomllib.loads(read_bytes(file).decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SpecError(f"{file}: got something that is not TOML ({error})") from None
    for key, value in flags.items():
        both = isinstance(value, dict) and isinstance(words.get(key), dict)
        if value is not None:
            words[key] = words[key] | value if both else value
    return words


def validated(kind: type[Spec], words: Mapping[str, Any]) -> Spec:
    """A spec of that kind; unknown words and bad values are a :class:`SpecError`."""
    try:
        return kind.model_validate(words)
    except ValidationError as error:
        first = error.errors()[0]
        word = str(first["loc"][0]) if first["loc"] else "spec"
        if first["type"] == "extra_forbidden":
            raise unknown("word in the spec", word, kind.model_fields) from None
        raise SpecError(f"{word}: got {first['input']!r}: {first['msg']}") from None


def _ranges(words: dict[str, Any]) -> dict[str, Any]:
    """`nfe` "4-10" is a family, `guidance` "1-4" a range; one number stands for itself."""
    words = dict(words)
    nfe = words.get("nfe")
    counts = list(nfe) if isinstance(nfe, list | tuple) else [nfe]
    if nfe is not None:
        spans = [span for span in map(_span, counts) if span]
        if spans and len(counts) > 1:
            raise SpecError(f"nfe: got {nfe!r}, wanted one range such as 4-10, or numbers")
        if spans:
            words["family"] = tuple(int(end) for end in spans[0])
            del words["nfe"]
        else:
            words["nfe"] = counts
    scale = _span(words.get("guidance"))
    if scale:
        words["guidance"], words["guidance_to"] = scale
    for name, low, high in (
        ("nfe", *_pair(words.get("family"))),
        ("guidance", words.get("guidance", 1.0), words.get("guidance_to")),
    ):
        both = isinstance(low, int | float) and isinstance(high, int | float)
        if both and not low < high:
            raise SpecError(f"{name}: got {low:g}-{high:g}, wanted a rising range")
    return words


def _pair(value: object) -> tuple[Any, Any]:
    return tuple(value) if isinstance(value, list | tuple) and len(value) == 2 else (None, None)


def _span(text: object) -> tuple[float, float] | None:
    """ "4-10" -> (4, 10); None for what is no range."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", str(text).strip())
    return None if found is None else (float(found[1]), float(found[2]))
