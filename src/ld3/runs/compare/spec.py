"""The options of a comparison, by the same names on the command line and in TOML."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from ld3.comparison import Kind
from ld3.errors import SpecError, unknown
from ld3.known_grids import GRIDS, HANDMADE, METHODS, PUBLISHED, make_method
from ld3.metrics.inception import Resize
from ld3.runs.compare.methods import LEARNED
from ld3.runs.engines import EngineName, make_engine
from ld3.runs.spec import Counts, Names, Settings, check_start, read_solver, steps_of
from ld3.searches.registry import SEARCHES
from ld3.seeds import MAX_PAIRS
from ld3.solvers import Solver
from ld3.teacher import Teacher

TEACHER = Teacher(steps=40)
LISTS = ("methods", "solvers", "nfe")  # options that take several values
SET_METRICS = (
    "frechet", "frechet_accurate", "kid", "cmmd", "precision", "recall", "agreement",
)  # fmt: skip
VARIANTS = (
    "ays-kl",
    "ays-early",
    "ddss-ggdm",
    "gs",
    "ld3-paper",
)  # dear, or of others: a group of their own


class CompareSpec(Settings):
    """`ld3 compare`."""

    methods: Names = ("handmade", "published", "ld3")
    solvers: Names = ("dpmpp",)
    nfe: Counts = (4, 6)
    seeds: Annotated[int, Field(ge=1, le=100)] = 1
    pairs: Annotated[int, Field(ge=2, le=MAX_PAIRS)] = 128
    valid: Annotated[int, Field(ge=2, le=MAX_PAIRS)] = 32
    held_out: Annotated[int, Field(ge=2, le=5_000)] = 64
    start: str = "best"
    full: bool = False
    judged: Annotated[int, Field(ge=40, le=100_000, alias="samples")] = 1000
    features: Path | None = None
    resize: Resize | None = None
    data: Path | None = None
    metrics: Names = SET_METRICS
    jobs: Annotated[int, Field(ge=1, le=256)] = 1
    engine: EngineName = "local"
    gpus_per_cell: Annotated[float, Field(ge=0, le=64)] = 0.0
    out: Path = Path("compare")

    @model_validator(mode="before")
    @classmethod
    def _data_is_for_set_metrics(cls, options: Any) -> Any:
        """--data implies --full."""
        known = isinstance(options, dict) and options.get("data") is not None
        return {"full": True} | options if known else options

    @model_validator(mode="after")
    def _known(self) -> Self:
        _ = self.names, self.teacher, make_engine(self.engine, self.jobs, self.gpus_per_cell)
        for name in self.metrics:
            if name not in SET_METRICS:
                raise unknown("metric", name, SET_METRICS)
        check_start(self.start)
        for solver in self.made_solvers:
            for nfe in self.nfe:
                steps_of(solver, nfe)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The methods one by one, groups replaced by their members."""
        known = groups()
        names: list[str] = []
        for name in self.methods:
            if name in known:
                names += known[name]
            elif name in SEARCHES or name in LEARNED:
                names.append(name)
            elif name in METHODS or name.startswith("bump:"):
                make_method(name)
                names.append(name)
            else:
                every = [*known, *METHODS, *SEARCHES, *LEARNED, "bump:CENTRE:WIDTH"]
                raise unknown("method", name, every)
        if not names:
            raise SpecError(f"methods: got {', '.join(self.methods)}, which has no members")
        return tuple(dict.fromkeys(names))

    @property
    def made_solvers(self) -> tuple[Solver, ...]:
        return tuple(dict.fromkeys(read_solver(text) for text in self.solvers))

    @property
    def teacher(self) -> Teacher:
        """One for all cells, so that distances at different evaluations can be compared."""
        return Teacher(**{**vars(TEACHER), **self.teacher_changes})


def groups() -> dict[str, tuple[str, ...]]:
    """Names of several methods."""
    parts = {
        "handmade": tuple(name for name in GRIDS if name in HANDMADE),
        "published": tuple(name for name in GRIDS if name in PUBLISHED),
        "searched": tuple(name for name in SEARCHES if name not in VARIANTS),
        "learned": tuple(name for name in LEARNED if name not in VARIANTS),
    }
    everything = tuple(name for names in parts.values() for name in names)
    return parts | {"all": everything, "variants": VARIANTS}


def kind_of(method: str) -> Kind:
    """Learned methods are those of the learner, all others are baselines."""
    if method in LEARNED:
        return "learned"
    if method in SEARCHES:
        return "searched"
    return "published" if method in PUBLISHED else "handmade"


def needs_of(method: str) -> list[str]:
    """What a method looks at besides schedule and steps."""
    search = SEARCHES.get(method) or LEARNED.get(method)
    return [] if search is None else sorted(search.needs)


def source_of(method: str) -> str:
    """Where a method is from."""
    search = SEARCHES.get(method) or LEARNED.get(method)
    return make_method(method).source if search is None else search.source
