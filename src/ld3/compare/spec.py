"""What a comparison is asked to do, in the same words as flags and as TOML."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ld3.comparison import Kind
from ld3.errors import SpecError, unknown
from ld3.learner.presets import Teacher
from ld3.learner.starts import GRIDS
from ld3.searches import HANDMADE, METHODS, PUBLISHED, make_method
from ld3.searches.registry import SEARCHES
from ld3.solvers import Solver, make_solver
from ld3.spec import Count, Dtype, validated, words_of

TEACHER = Teacher(steps=40)
LISTS = ("methods", "solvers", "nfe")  # words that take several values, with commas or repeated
VARIANTS = ("ays-kl", "ddss-ggdm", "ld3-paper")  # of others, some very dear: a group of their own
MANY = 10_000  # pairs a seed at most: each seed has a range of its own


class CompareSpec(BaseModel):
    """`ld3 compare`, in words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = "fashion"
    methods: Annotated[tuple[str, ...], Field(min_length=1)] = ("handmade", "published", "ld3")
    solvers: Annotated[tuple[str, ...], Field(min_length=1)] = ("dpmpp",)
    nfe: Annotated[tuple[Count, ...], Field(min_length=1)] = (4, 6)
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    pairs: Annotated[int, Field(ge=2, le=MANY)] = 128
    valid: Annotated[int, Field(ge=2, le=MANY)] = 32
    held_out: Annotated[int, Field(ge=2, le=5_000)] = 64
    guidance: Annotated[float, Field(ge=0, le=100)] = 1.0
    distance: str = "auto"
    teacher_solver: str | None = None
    teacher_order: int | None = None
    teacher_variant: str | None = None
    teacher_grid: str | None = None
    teacher_steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    full: bool = False
    judged: Annotated[int, Field(ge=40, le=100_000)] = 1000
    features: Path | None = None
    device: str = "cpu"
    dtype: Dtype | None = None
    jobs: Annotated[int, Field(ge=1, le=256)] = 1
    out: Path = Path("compare")

    @field_validator("nfe", "solvers", "methods")
    @classmethod
    def _once(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(value))

    @classmethod
    def read(cls, flags: Mapping[str, Any], file: Path | None = None) -> "CompareSpec":
        """Flags win over the file; unknown words and bad values are a :class:`SpecError`."""
        words = words_of(flags, file)
        spec = validated(cls, words | {w: _listed(words[w]) for w in LISTS if w in words})
        _ = spec.names, spec.teacher  # wrong names are said here
        for solver in spec.made_solvers:
            for nfe in spec.nfe:
                steps_of(solver, nfe)
        if spec.teacher_grid is not None:
            make_method(spec.teacher_grid)
        return spec

    @property
    def names(self) -> tuple[str, ...]:
        """The methods one by one, groups replaced by their members."""
        known = groups()
        names: list[str] = []
        for word in self.methods:
            if word in known:
                names += known[word]
            elif word in SEARCHES or word in METHODS or word.startswith("bump:"):
                if word not in SEARCHES:
                    make_method(word)
                names.append(word)
            else:
                raise unknown("method", word, [*known, *METHODS, *SEARCHES, "bump:CENTRE:WIDTH"])
        if not names:
            raise SpecError(f"methods: got {', '.join(self.methods)}, which has no members")
        return tuple(dict.fromkeys(names))

    @property
    def made_solvers(self) -> tuple[Solver, ...]:
        return tuple(dict.fromkeys(read_solver(word) for word in self.solvers))

    @property
    def teacher(self) -> Teacher:
        """One for all cells, so that distances at different evaluations can be compared."""
        own = TEACHER
        name = self.teacher_solver or own.solver
        plain = self.teacher_solver is None
        solver = make_solver(
            name,
            self.teacher_order or (own.order if plain else None),
            self.teacher_variant or (own.variant if plain else None),
        )
        steps, grid = self.teacher_steps or own.steps, self.teacher_grid or own.grid
        return Teacher(name, solver.order, solver.variant, grid, steps)


def groups() -> dict[str, tuple[str, ...]]:
    """Words that stand for several methods."""
    plain = [name for name in SEARCHES if name not in VARIANTS]
    parts = {
        "handmade": tuple(name for name in GRIDS if name in HANDMADE),
        "published": tuple(name for name in GRIDS if name in PUBLISHED),
        "searched": tuple(name for name in plain if kind_of(name) == "searched"),
        "learned": tuple(name for name in plain if kind_of(name) == "learned"),
    }
    everything = tuple(name for names in parts.values() for name in names)
    return parts | {"all": everything, "variants": VARIANTS}


def kind_of(method: str) -> Kind:
    """Methods of LD3's own family are learned, all others are baselines."""
    if method in SEARCHES:
        return "learned" if method == "ld3" or method.startswith("ld3-") else "searched"
    return "published" if method in PUBLISHED else "handmade"


def read_solver(word: str) -> Solver:
    """`unipc`, `ipndm:3` or `unipc:3:bh2`."""
    name, _, rest = word.partition(":")
    order, _, variant = rest.partition(":")
    if rest and not order.isdecimal():
        raise SpecError(f"solvers: got {word!r}, wanted NAME, NAME:ORDER or NAME:ORDER:VARIANT")
    return make_solver(name, int(order) if order else None, variant or None)


def title(solver: Solver) -> str:
    """`unipc-3`, with the variant if it is not the solver's own."""
    own = make_solver(solver.name).variant
    return f"{solver.name}-{solver.order}" + f" {solver.variant}" * (solver.variant != own)


def steps_of(solver: Solver, nfe: int) -> int:
    """How many steps cost that many evaluations."""
    each = solver.nfe(1)
    if nfe < each or nfe % each:
        raise SpecError(
            f"nfe: got {nfe}, wanted a multiple of {each}: {solver.name} takes {each} evaluations "
            "a step"
        )
    return nfe // each


def _listed(value: object) -> list[object]:
    """ "a,b" and ["a", "b"] are the same."""
    several = value if isinstance(value, list | tuple) else [value]
    parts: list[object] = []
    for one in several:
        parts += [p.strip() for p in one.split(",") if p.strip()] if isinstance(one, str) else [one]
    return parts
