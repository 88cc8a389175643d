"""The options of a run: one frozen object, from the command line and a TOML file.

All commands share one notation: lists with commas (`4,6`), ranges of whole numbers (`4-10`), and
solvers as NAME, NAME:ORDER or NAME:ORDER:VARIANT.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from ld3.errors import SpecError, bad_option, unknown
from ld3.known_grids import METHODS, make_method
from ld3.learner.presets import Preset, for_family, make_preset, without_gradients
from ld3.learner.recipes import Learn, change_recipe
from ld3.metrics.inception import Resize
from ld3.options import PipelineOptions
from ld3.parameters import GUIDANCE
from ld3.runs.ranks import device_of
from ld3.searches.registry import SEARCHES
from ld3.seeds import MAX_PAIRS, MAX_RUN
from ld3.solvers import Solver, make_solver
from ld3.store import read_toml

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
MAX_NFE, MAX_PASSES = 100, 200
Count = Annotated[int, Field(ge=1, le=MAX_NFE)]
Scale = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
DTYPES: tuple[str, ...] = get_args(Dtype)
BATCH = 64  # samples at a time


class Settings(BaseModel):
    """Options that all runs have: of the model, the distance, the teacher and the device."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    model: str = "fashion"
    distance: str = "auto"
    preset: str = "standard"
    recipe: dict[str, float | int | str | bool] = {}
    pairs: Annotated[int, Field(ge=2, le=MAX_PAIRS)] | None = None
    valid: Annotated[int, Field(ge=2, le=MAX_PAIRS)] | None = None
    held_out: Annotated[int, Field(ge=2, le=100_000)] = 64
    guidance: Scale = 1.0
    teacher_solver: str | None = None
    teacher_order: int | None = None
    teacher_variant: str | None = None
    teacher_grid: str | None = None
    teacher_steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    reference_steps: Annotated[int, Field(ge=1, le=10_000)] | None = None
    batch: Annotated[int, Field(ge=1, le=4096)] | None = None
    device: Annotated[str, AfterValidator(device_of)] = "cpu"
    dtype: Dtype | None = None
    pipeline: Annotated[
        PipelineOptions | None,
        BeforeValidator(lambda v: PipelineOptions.checked(v) if isinstance(v, dict) else v),
        PlainSerializer(lambda options: options and options.said()),
    ] = None
    out: Path = Path("runs")

    def __init__(self, **options: Any) -> None:
        """Unknown options and bad values are a :class:`SpecError`."""
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise bad_option(type(self), error) from None

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        self.make_preset(5)
        if self.teacher_grid is not None:
            make_method(self.teacher_grid)
        return self

    @classmethod
    def read(cls, flags: Mapping[str, Any], file: Path | None = None) -> Self:
        """Options win over the file."""
        return cls(**options_of(flags, file))

    @property
    def teacher_changes(self) -> dict[str, Any]:
        """What replaces parts of the preset's teacher. Another solver has its own order."""
        parts = {
            name: getattr(self, f"teacher_{name}")
            for name in ("solver", "order", "variant", "grid", "steps")
        }
        if self.teacher_solver is not None:
            made = read_solver(self.teacher_solver, self.teacher_order, self.teacher_variant)
            parts |= {"solver": made.name, "order": made.order, "variant": made.variant}
        return {name: value for name, value in parts.items() if value is not None}

    def make_preset(self, nfe: int) -> Preset:
        """The preset with the changes of the options."""
        preset = self._taught_preset(nfe)
        return replace(preset, recipe=change_recipe(preset.recipe, self.recipe))

    def _taught_preset(self, nfe: int) -> Preset:
        """The preset with its teacher and pairs, and the recipe it has by itself."""
        preset = make_preset(self.preset, nfe, self.pairs, self.valid)
        teacher = replace(preset.teacher, **self.teacher_changes)
        teacher.make_solver()
        return replace(preset, teacher=teacher)

    @property
    def guidances(self) -> tuple[float, ...]:
        """The scale to learn for; of a range the middle, and both ends."""
        return (self.guidance,)


class RunSpec(Settings):
    """`ld3 learn`."""

    solver: str = "dpmpp"
    order: int | None = None
    variant: str | None = None
    nfe: Annotated[tuple[Count, ...], Field(min_length=1)] = (5,)
    learn: Learn | None = None
    passes: Annotated[int, Field(ge=3, le=MAX_PASSES)] | None = None
    start: str = "best"
    guidance_to: Scale | None = None
    family: tuple[Count, Count] | None = None
    refine: bool = False
    gradient_free: bool = False
    seed: Annotated[int, Field(ge=0, le=MAX_RUN)] = 0
    judged: Annotated[int, Field(ge=0, le=100_000, alias="samples")] = 150
    features: Path | None = None
    resize: Resize | None = None
    data: Path | None = None
    slope: Literal["auto", "exact", "secant"] = "auto"
    tensorboard: bool = False

    @model_validator(mode="before")
    @classmethod
    def _ranges(cls, options: Any) -> Any:
        return with_budget(with_ranges(options)) if isinstance(options, Mapping) else options

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.make_solver()
        check_start(self.start)
        if self.tensorboard and find_spec("tensorboard") is None:
            raise SpecError("tensorboard: the package is missing; pip install 'ld3[tracking]'")
        for name, ends in (("nfe", self.family), ("guidance", (self.guidance, self.guidance_to))):
            if ends is not None and ends[1] is not None and not ends[0] < ends[1]:
                raise SpecError(f"{name}: got {ends[0]:g}-{ends[1]:g}, expected a rising range")
        if self.learns_guidance:
            self._check_guidance()
        if self.family is not None:
            self._check_family(self.family)
        elif self.refine:
            raise SpecError(
                f"refine: got it with nfe {','.join(map(str, self.nfe))}, expected a range such as "
                "--nfe 4-10"
            )
        return self

    @property
    def learns_guidance(self) -> bool:
        return GUIDANCE in self.make_preset(self.nfe[0]).recipe.groups

    def _check_guidance(self) -> None:
        """Guidance in the plan needs guidance, and one number of evaluations."""
        if self.guidance == 1 and self.guidance_to is None:
            raise SpecError(
                "guidance: got 1 with --learn +guidance or --passes, expected another scale, such "
                "as --guidance 4"
            )
        if self.family is not None:
            raise SpecError(
                f"nfe: got the range {self.family[0]}-{self.family[1]} with --learn +guidance or "
                "--passes, expected a list such as 4,6"
            )
        for nfe in self.nfe:
            if self.passes is not None and not nfe < self.passes <= 2 * nfe:
                raise SpecError(
                    f"passes: got {self.passes} with nfe {nfe}, expected {nfe + 1} to {2 * nfe}: "
                    "one pass per evaluation, and one more for each that is guided"
                )

    def _check_family(self, family: tuple[int, int]) -> None:
        """Settings that the learner has for one number of evaluations only."""
        recipe = for_family(self.make_preset(family[0])).recipe
        for name in ("gamma", "shared"):
            if getattr(recipe, name, 0) > 0:
                raise SpecError(
                    f"recipe {name}: got {getattr(recipe, name):g} with the range of nfe "
                    f"{family[0]}-{family[1]}, expected 0; leave it out, or give a list such as 4,6"
                )

    def make_solver(self) -> Solver:
        return read_solver(self.solver, self.order, self.variant)

    def make_preset(self, nfe: int) -> Preset:
        preset = self._taught_preset(nfe)
        if self.gradient_free:
            preset = without_gradients(preset)
        learn = self.learn
        if self.passes is not None and not str(learn).endswith(GUIDANCE):
            learn = f"{learn or preset.recipe.learn}+{GUIDANCE}"  # type: ignore[assignment]
        changes = self.recipe if learn is None else self.recipe | {"learn": learn}
        return replace(preset, recipe=change_recipe(preset.recipe, changes))

    @property
    def guidances(self) -> tuple[float, ...]:
        low, high = self.guidance, self.guidance_to
        return (low,) if high is None else ((low + high) / 2, low, high)


def check_start(start: str) -> None:
    """`best`, a plan, or any name of `ld3 methods` that is not learned."""
    if start.startswith("bump:"):
        make_method(start)
    elif start not in ("best", *METHODS, *SEARCHES) and not start.endswith(".json"):
        known = ["best", "PLAN.json", *METHODS, *SEARCHES, "bump:CENTRE:WIDTH"]
        raise unknown("start", start, known)


def options_of(flags: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """Those of a TOML file, and flags that were given, which win; tables are joined."""
    options = {} if file is None else read_toml(file)
    for key, value in flags.items():
        both = isinstance(value, dict) and isinstance(options.get(key), dict)
        if value is not None:
            options[key] = options[key] | value if both else value
    return options


def read_solver(text: str, order: int | None = None, variant: str | None = None) -> Solver:
    """`unipc`, `ipndm:3` or `unipc:3:bh2`; `order` and `variant` may also be given apart."""
    name, _, rest = text.partition(":")
    number, _, kind = rest.partition(":")
    if rest and not number.isdecimal():
        raise SpecError(f"solver: got {text!r}, expected NAME, NAME:ORDER or NAME:ORDER:VARIANT")
    if rest and (order is not None or (kind and variant is not None)):
        raise SpecError(f"solver: got {text!r} and --order or --variant; give one of them")
    return make_solver(name, int(number) if number else order, kind or variant)


def solver_title(solver: Solver) -> str:
    """`unipc-3`, with the variant if it is not the solver's own."""
    own = make_solver(solver.name).variant
    return f"{solver.name}-{solver.order}" + f" {solver.variant}" * (solver.variant != own)


def steps_of(solver: Solver, nfe: int) -> int:
    """How many steps cost that many evaluations."""
    each = solver.nfe(1)
    if nfe < each or nfe % each:
        raise SpecError(
            f"nfe: got {nfe}, expected a multiple of {each}: {solver.name} takes {each} "
            "evaluations per step"
        )
    return nfe // each


def listed(value: object) -> list[object]:
    """ "a,b" and ["a", "b"] are the same list."""
    parts: list[object] = []
    for one in value if isinstance(value, list | tuple) else [value]:
        parts += [p.strip() for p in one.split(",") if p.strip()] if isinstance(one, str) else [one]
    return parts


def counted(
    value: object, name: str = "nfe", such_as: str = "4-10", limit: int = 1000
) -> list[object]:
    """A list of whole numbers in which "4-6" means 4, 5, 6; at most `limit` of them."""
    numbers: list[object] = []
    for part in listed(value):
        ends = span(part)
        if ends is None or not all(float(end).is_integer() for end in ends):
            numbers.append(part)
            continue
        low, high = (int(end) for end in ends)
        if not low <= high:
            raise SpecError(f"{name}: got {part}, expected rising ranges such as {such_as}")
        if high - low >= limit - len(numbers):
            raise SpecError(f"{name}: got {part}, expected at most {limit} numbers")
        numbers += range(low, high + 1)
    return numbers


_ONCE = (Field(min_length=1), AfterValidator(lambda values: tuple(dict.fromkeys(values))))
Names = Annotated[tuple[str, ...], BeforeValidator(listed), *_ONCE]
Counts = Annotated[tuple[Count, ...], BeforeValidator(lambda value: counted(value)), *_ONCE]


def span(text: object) -> tuple[float, float] | None:
    """ "4-10" -> (4, 10); None for what is no range."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)-([0-9]+(?:\.[0-9]+)?)", str(text).strip())
    return None if found is None else (float(found[1]), float(found[2]))


def with_ranges(options: Mapping[str, Any]) -> dict[str, Any]:
    """`nfe` "4-10" is one family, `guidance` "1-4" one range; lists and numbers stay."""
    options = dict(options)
    if options.get("nfe") is not None:
        counts = listed(options["nfe"])
        spans = [ends for ends in map(span, counts) if ends]
        if spans and len(counts) > 1:
            raise SpecError(
                f"nfe: got {','.join(map(str, counts))}; give either a list such as 4,6 or one "
                "range such as 4-10"
            )
        if spans:
            low, high = (int(end) for end in spans[0])
            if not 1 <= low <= high <= MAX_NFE:
                raise SpecError(f"nfe: got {counts[0]}, expected a rising range within 1-{MAX_NFE}")
            options["family"] = (low, high)
            del options["nfe"]
        else:
            options["nfe"] = counts
    scale = span(options.get("guidance"))
    if scale:
        options["guidance"], options["guidance_to"] = scale
    return options


def with_budget(options: dict[str, Any]) -> dict[str, Any]:
    """`passes` P without `nfe`: all numbers N of evaluations with N < P <= 2 N."""
    passes, solver = options.get("passes"), options.get("solver", "dpmpp")
    if str(passes).isdecimal() and not options.get("nfe") and "family" not in options:
        each = read_solver(str(solver)).nfe(1)
        options = {**options, "nfe": counts_within(min(int(str(passes)), MAX_PASSES), each)}
    return options


def counts_within(passes: int, each: int) -> list[int]:
    """All N with N < passes <= 2 N that are multiples of `each`; without any, `each` itself."""
    most = min(passes - 1, MAX_NFE)
    return [n for n in range(-(-passes // 2), most + 1) if n % each == 0] or [each]
