"""The options of `ld3 evaluate`, and the tables that it evaluates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ld3.errors import SpecError, unknown
from ld3.known_grids import METHODS, make_method
from ld3.metrics.inception import Resize
from ld3.plan import Plan
from ld3.runs.plans import known_table
from ld3.runs.session import Session
from ld3.runs.spec import Counts, Names, Settings, listed, read_solver, solver_title, steps_of
from ld3.table import Table
from ld3.zoo.loading import is_safe_to_open

KEYS = {  # names of --metrics, and what SetMetrics calls them
    "fid": "frechet",
    "fid-accurate": "frechet_accurate",
    "kid": "kid_data",
    "cmmd": "cmmd_data",
    "precision": "precision_data",
    "recall": "recall_data",
    "agreement": "agreement",
    "clip": "clip",
}
ACCURATE = "accurate"  # the name of the reference solution among plans and grids


class EvaluateSpec(Settings):
    """`ld3 evaluate`; `what` are plans, known grids, or `accurate`."""

    what: Names = (ACCURATE,)
    solvers: Names = ("dpmpp",)
    nfe: Counts = (5,)
    samples: Annotated[int, Field(ge=40, le=10_000_000)] = 50_000
    metrics: Names = ("fid",)
    data: Path | None = None
    features: Path | None = None
    resize: Resize | None = None
    clip: Path | None = None
    infinity: bool = False
    keep: Literal["png", "npz"] | None = None
    force: bool = False
    out: Path = Path("evaluate")

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.metrics:
            if name not in KEYS:
                raise unknown("metric", name, KEYS)
        if "clip" in self.metrics and self.clip is None:
            raise SpecError(
                "clip: got no CLIP model, expected --clip FOLDER with one that transformers saved"
            )
        if self.infinity and "fid" not in self.metrics:
            raise SpecError("infinity: got metrics without fid, expected fid among --metrics")
        for name in self.grids:
            if name not in METHODS and not name.startswith("bump:"):
                raise unknown("plan or grid", name, ["PLAN.json", ACCURATE, *METHODS])
            make_method(name)
            for solver in self.solvers:
                for nfe in self.nfe:
                    steps_of(read_solver(solver), nfe)
        return self

    @property
    def plans(self) -> tuple[str, ...]:
        return tuple(name for name in self.what if name.endswith(".json"))

    @property
    def grids(self) -> tuple[str, ...]:
        return tuple(n for n in self.what if n != ACCURATE and not n.endswith(".json"))


@dataclass(frozen=True)
class Item:
    """What is evaluated once."""

    name: str
    solver: str
    nfe: int
    table: Table


def with_plan(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options, with those of the first plan where none is given: model, guidance, dtype."""
    names = map(str, listed(options.get("what") or []))
    file = next((name for name in names if name.endswith(".json")), None)
    if file is None:
        return dict(options)
    plan = Plan.load(file)
    own: dict[str, Any] = {"guidance": plan.model.guidance}
    if options.get("model") is None:
        safe = is_safe_to_open(plan.model.name)  # else `open_task` needs the model itself
        own |= {"model": plan.model.name if safe else "", "dtype": plan.learned.spec.get("dtype")}
        own["pipeline"] = plan.model.options
    given = {name: value for name, value in options.items() if value is not None}
    known = {name: value for name, value in own.items() if value is not None}
    extra, base = given.get("pipeline"), known.get("pipeline")
    if extra is not None and base is not None:
        given["pipeline"] = base.said() | extra
    return known | given


def items_of(spec: EvaluateSpec, session: Session) -> list[Item]:
    """Plans as they are; grids with each solver and number of evaluations; the accurate run."""
    items = list[Item]()
    for name in spec.what:
        if name == ACCURATE:
            reference, table = session.reference, session.table(session.reference)
            items.append(Item(name, solver_title(reference.make_solver()), reference.nfe, table))
        elif name in spec.plans:
            plan = Plan.load(name)
            if not spec.force:
                plan.check_fits(session.model, session.loaded.digest)
            solver_name = f"{plan.solver.name}-{plan.solver.order}"
            items.append(Item(_short(name, spec.plans), solver_name, plan.nfe, plan.table()))
        else:
            for solver in map(read_solver, spec.solvers):
                for nfe in spec.nfe:
                    table = known_table(session, solver, steps_of(solver, nfe), name)
                    items.append(Item(name, solver_title(solver), nfe, table))
    return items


def _short(file: str, files: Sequence[str]) -> str:
    """The name of a plan's file; with its folder where it is not the only one of that name."""
    path = Path(file)
    alone = sum(Path(other).name == path.name for other in files) == 1
    short = alone and path.name != "plan.json"
    return path.name if short else str(Path(path.parent.name, path.name))
