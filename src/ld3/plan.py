"""A plan: a solver, its times, and the model they were learned for.

`plan.json` is for people and programs: times and network times in full precision, the learned
corrections of the solver's weights (row n of `corrections` goes to x_T and the first n data
estimates, see :mod:`ld3.table`), guidance where it was learned (row j of `guidance` goes to the
directions of the guided evaluations up to j, see :mod:`ld3.guidance`), the noise schedule, the
model it was learned for, how it was learned and how well it did. Reading one checks everything.
Using one with another model is refused with the reason unless it is forced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_serializer,
    model_serializer,
)  # fmt: skip
from torch import Tensor

from ld3.density import DENSITY, SHIFTS, Warp
from ld3.errors import Ld3Error, PlanError, SpecError, wrong_part
from ld3.grids import Knots, TimeGrid, knots
from ld3.guidance import Guidance
from ld3.model_checks import fingerprint
from ld3.models import Cond, Model
from ld3.options import PipelineOptions
from ld3.predictions import Prediction
from ld3.schedule_json import schedule_from_json, schedule_to_json
from ld3.schedules import Flow, Schedule
from ld3.scores import FamilyScores, Number, Scores
from ld3.solvers import Solver, make_solver
from ld3.spaces import space_of
from ld3.store import read_json, write_json
from ld3.table import Increments, Table, TunedSolver, with_guidance
from ld3.teacher import sample_batches

MAX_STEPS = 1000
Times = Annotated[list[Number], Field(min_length=2, max_length=MAX_STEPS + 1)]
Row = Annotated[list[Annotated[float, Field(ge=-1e3, le=1e3)]], Field(max_length=2 * MAX_STEPS + 1)]
Corrections = Annotated[list[Row], Field(max_length=2 * MAX_STEPS)] | None
Knot = Annotated[float, Field(ge=-100, le=100)]
Text = Annotated[str, Field(max_length=500)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SolverPart(_Part):
    """A solver by name; one that is not in the registry brings the whole table of the plan."""

    name: Text
    order: int  # order of accuracy
    variant: Text = ""  # variant, such as bh2
    table: "TablePart | None" = None  # for solvers that are not in the registry


class TablePart(_Part):
    """A whole table in x0 form."""

    # weights of state 1..M: of x_T, then of the estimates
    rows: Annotated[list[Row], Field(min_length=1, max_length=2 * MAX_STEPS)]
    # times that the network gets
    net_times: Annotated[list[Number], Field(min_length=1, max_length=2 * MAX_STEPS)]


class GuidancePart(_Part):
    """Guidance in the plan, see :mod:`ld3.guidance`."""

    guided: Annotated[list[int], Field(max_length=2 * MAX_STEPS)]  # evaluations with both passes
    # weights A of evaluation 0..M-1
    rows: Annotated[list[Row], Field(min_length=1, max_length=2 * MAX_STEPS)]

    @classmethod
    def of(cls, guidance: Guidance) -> "GuidancePart":
        lengths = _guidance_lengths(guidance.guided, len(guidance.weights))
        rows = [row[:n].tolist() for row, n in zip(guidance.weights, lengths, strict=True)]
        return cls(guided=list(guidance.guided), rows=rows)

    def numbers(self) -> Guidance:
        return Guidance(tuple(self.guided), _padded(self.rows, len(self.guided)))


class ModelPart(_Part):
    """The model a plan was learned for."""

    name: Text
    digest: Text  # hash of the weights
    # shape of one sample, without the batch
    shape: Annotated[list[int], Field(min_length=1, max_length=8)]
    prediction: Prediction  # what the network predicts
    conditions: Text = ""  # description of the conditions
    guidance: Number = 1.0  # scale of classifier-free guidance
    # lowest and highest scale
    guidance_range: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = None
    options: PipelineOptions | None = None  # options of a pipeline

    @field_serializer("options")
    def _said(self, options: PipelineOptions | None) -> dict[str, Any] | None:
        return None if options is None else options.said()


class Member(_Part):
    """Another number of evaluations in the same file."""

    nfe: Annotated[int, Field(ge=1, le=2 * MAX_STEPS)]  # network evaluations
    times: Times  # that the solver visits, from noise to data
    net_times: Times  # that the network receives
    corrections: Corrections = None  # learned coefficients, see ld3.table


class FamilyPart(_Part):
    """A family of grids for every number of evaluations, see :mod:`ld3.density`."""

    low: Annotated[int, Field(ge=1, le=MAX_STEPS)]  # lowest NFE it was learned for
    high: Annotated[int, Field(ge=1, le=MAX_STEPS)]  # highest NFE it was learned for
    # density of steps in lam
    density: Annotated[list[Knot], Field(min_length=2 * DENSITY, max_length=2 * DENSITY)]
    # curve of network times
    shifts: Annotated[list[Knot], Field(min_length=2 * SHIFTS, max_length=2 * SHIFTS)]


class StartsPart(_Part):
    """Which grids learning began with, and how they did on the validation pairs."""

    chosen: list[Text] = []  # names of the starts that were used
    losses: dict[Text, Number] = {}  # validation loss of each
    roughness: Number = 0.0  # how much slopes over short and long stretches of time differ
    evaluations: int = 0  # network evaluations on one sample
    passes: int = 0  # the same, with a guided evaluation as two


class CandidatePart(_Part):
    """A way to spend a number of passes, and its loss before learning."""

    nfe: Annotated[int, Field(ge=1, le=2 * MAX_STEPS)]  # network evaluations
    guided: Annotated[list[int], Field(max_length=2 * MAX_STEPS)]  # evaluations with both passes
    grid: Text  # time grid
    loss: Number  # loss before learning
    pairs: int  # validation pairs of that loss
    learned: Number | None = None  # after learning: mean distance over all pairs


class Provenance(_Part):
    """How a plan was learned. What other versions wrote besides is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    spec: dict[str, Any] = {}  # options of the run
    preset: dict[str, Any] = {}  # recipe, pairs and teacher
    reference: dict[str, Any] = {}  # the solution that `to_accurate` compares with
    teacher_check: dict[Text, Number] = {}  # its error, and the student's expected one
    starts: StartsPart = StartsPart()  # grids tried as a start
    start: Text = ""  # start of the learning run that ended best
    distance: Text = ""  # distance that was minimised, and why if `auto` chose it
    secant: Number = 0.0  # slopes in time are secants of this half-width in lam; 0: exact
    # network evaluations on one sample, a backward pass as two
    evaluations: Annotated[int, Field(ge=0)] = 0
    passes: Annotated[int, Field(ge=0)] = 0  # the same, with a guided evaluation as two
    # network evaluations of the training pairs
    teacher_evaluations: Annotated[int, Field(ge=0)] = 0
    # candidates of `--passes`
    candidates: Annotated[list[CandidatePart], Field(max_length=1000)] = []
    skipped: Annotated[int, Field(ge=0)] = 0  # batches whose loss was not finite
    validation: Number | None = None  # loss on the validation pairs
    rounding: dict[Text, Number] = {}  # RMS error of rounding network times, by kind
    versions: dict[Text, Text] = {}  # versions of Python and packages


class Plan(_Part):
    """A solver, its times, and the model they were learned for."""

    # version of the format; 2: with guidance
    format: Literal["ld3-plan-1", "ld3-plan-2"] = "ld3-plan-1"
    nfe: Annotated[int, Field(ge=1, le=2 * MAX_STEPS)]  # network evaluations
    solver: SolverPart
    times: Times  # that the solver visits, from noise to data
    net_times: Times  # that the network receives
    corrections: Corrections = None  # learned coefficients, see ld3.table
    guidance: GuidancePart | None = None  # for plans with guidance
    family: FamilyPart | None = None  # for plans of a range of NFE
    members: Annotated[list[Member], Field(max_length=100)] = []  # plans for other NFE
    schedule: dict[str, Any]  # noise schedule of the model
    model: ModelPart
    learned: Provenance = Provenance()  # how it was learned
    scores: dict[Text, Scores | FamilyScores] = {}  # by name of grid, `learned` for the plan

    @model_serializer(mode="wrap")
    def _as_before(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plans without guidance are written as they were before there was any."""
        content: dict[str, Any] = serialise(self)
        if self.guidance is None:
            content.pop("guidance", None)
        return content

    @classmethod
    def load(cls, path: Path | str) -> "Plan":
        """Read and check a plan from a file."""
        return cls.checked(read_json(Path(path)), str(path))

    @classmethod
    def checked(cls, content: object, name: str = "plan") -> "Plan":
        """A plan from parsed JSON, or a :class:`PlanError` that says what is wrong with it."""
        try:
            plan = cls.model_validate(content)
        except ValidationError as error:
            raise PlanError(f"{name}: {wrong_part(error)}") from None
        if plan.family is not None and plan.family.low > plan.family.high:
            raise PlanError(f"{name}: family: got low {plan.family.low} above {plan.family.high}")
        if plan.solver.table is not None and (plan.family is not None or plan.members):
            raise PlanError(f"{name}: a solver with its own table is for one number of evaluations")
        _check_numbers(plan, name)
        _check_guidance(plan, name)
        for member in plan.members:
            _check_numbers(plan.with_member(member), f"{name}: member {member.nfe}")
        return plan

    def save(self, path: Path | str) -> None:
        """Write the plan, whole or not at all."""
        write_json(Path(path), self.model_dump(mode="json"))

    def at(self, nfe: int) -> "Plan":
        """The plan for another number of evaluations, if this one has a family or such a member."""
        for member in self.members:
            if member.nfe == nfe:
                return self.with_member(member)
        if nfe == self.nfe:
            return self
        if self.family is None:
            known = sorted({self.nfe, *(member.nfe for member in self.members)})
            raise PlanError(
                f"nfe: got {nfe}, expected {', '.join(map(str, known))}: the plan was learned for "
                "that; learn one for all with --nfe 4-10"
            )
        solver = self.make_solver()
        each = solver.nfe(1)
        if nfe < each or nfe % each:
            raise PlanError(f"nfe: got {nfe}, expected a multiple of {each} for {solver.name}")
        warp = Warp(self.noise_schedule, self.family.low // each, self.family.high // each)
        density, shifts = (
            torch.tensor(numbers, dtype=torch.float64, device="cpu")
            for numbers in (self.family.density, self.family.shifts)
        )
        grid = warp.grid(density, shifts, nfe // each)
        times, net_times = grid.times.tolist(), grid.net_times.tolist()
        return self.with_member(Member(nfe=nfe, times=times, net_times=net_times))

    @property
    def counts(self) -> list[int]:
        """The numbers of evaluations it was learned for."""
        known = {self.nfe, *(member.nfe for member in self.members)}
        if self.family is not None:
            each = self.make_solver().nfe(1)
            known |= set(range(self.family.low, self.family.high + 1, each))
        return sorted(known)

    def with_member(self, member: Member) -> "Plan":
        """This plan with the times of a member."""
        update = {**dict(member), "members": [], "family": None}
        return self.without_guidance().model_copy(update=update)

    def without_guidance(self) -> "Plan":
        """The same solver and times, with full guidance at every evaluation."""
        if self.guidance is None:
            return self
        return self.model_copy(update={"guidance": None, "format": "ld3-plan-1"})

    @property
    def passes(self) -> int:
        """Runs of the network on one sample: one per evaluation, and one more if it is guided."""
        if self.model.guidance == 1:
            return self.nfe
        return self.nfe + (self.nfe if self.guidance is None else len(self.guidance.guided))

    @property
    def grid(self) -> TimeGrid:
        return TimeGrid.of(self.times, self.net_times)

    @property
    def state_times(self) -> torch.Tensor:
        """The solver's time of every state of its table, (nfe + 1,)."""
        each = self.nfe_per_step
        return self.grid.times.repeat_interleave(each)[each - 1 :]

    @property
    def tuned(self) -> TunedSolver:
        """The solver on its times, with corrections and guidance."""
        return tuned_from_json(dict(self), self.make_solver())

    @property
    def noise_schedule(self) -> Schedule:
        return schedule_from_json(self.schedule)

    def make_solver(self) -> Solver:
        return make_solver(self.solver.name, self.solver.order, self.solver.variant or None)

    @property
    def nfe_per_step(self) -> int:
        return self.nfe // (len(self.times) - 1)

    def knots(self) -> Knots:
        return knots(self.noise_schedule, self.grid)

    def table(self) -> Table:
        """The plan as numbers on the network's own output."""
        return self.table_for(self.noise_schedule, self.model.prediction)

    def table_for(self, schedule: Schedule, prediction: Prediction) -> Table:
        """The same for the very schedule of a model; differences are those of rounding."""
        own = self.solver.table
        if own is None:
            return self.tuned.table(schedule, prediction)
        rows, first = tensor_of(own.rows), torch.eye(1, self.nfe + 1, dtype=torch.float64)
        net_times = torch.tensor(own.net_times, dtype=torch.float64, device="cpu")
        table = Table(torch.cat([first, rows]), net_times)
        if self.guidance is not None:
            table = with_guidance(table, self.guidance.numbers())
        return table if prediction == "x0" else table.in_outputs(prediction, schedule)

    def increments(self) -> Increments:
        """The plan step by step, in the form that loses the fewest digits: x0 for methods that
        extrapolate x0, else the velocity on flows and the noise on all others."""
        schedule = self.noise_schedule
        table = self.table_for(schedule, "x0")
        if self.solver.table is not None or self.make_solver().form == "x0":
            return table.increments("x0", schedule)
        return table.increments("flow" if isinstance(schedule, Flow) else "eps", schedule)

    def sampler(
        self, model: Model, *, device: str = "cpu", batch: int = 64, force: bool = False
    ) -> "Sampler":
        """A function that draws samples of a model with this plan.

        A model that the plan was not learned for is refused, unless `force` is given.
        """
        if not force:
            own = model.digest if model.digest is not None else fingerprint(model, device)
            self.check_fits(model, own)
        table = self.table_for(model.schedule, model.prediction)
        return Sampler(model, table, self.model.guidance, device, batch)

    def check_fits(self, model: Model, digest: str) -> None:
        """Refuse a model that is not the one the plan was learned for."""
        pairs = (
            ("noise schedule", schedule_to_json(model.schedule), self.schedule),
            ("prediction", model.prediction, self.model.prediction),
            ("shape", list(model.shape), self.model.shape),
            ("weights", digest, self.model.digest),
        )
        for what, got, wanted in pairs:
            if what == "shape" and space_of(model) is not None:
                continue  # it is that of one molecule; a plan serves all
            if got != wanted:
                raise PlanError(
                    f"plan: got a model with {what} {got}, expected {wanted} as in "
                    f"{self.model.name!r}, for which the plan was learned; learn one for this "
                    "model, or force its use (--force)"
                )


@dataclass(frozen=True)
class Sampler:
    """Draws samples of a model with a compiled plan; made once, called many times."""

    model: Model
    table: Table
    guidance: float
    device: str = "cpu"
    batch: int = 64  # samples at a time

    def __call__(
        self, seeds: Sequence[int], cond: Cond = None, *, guidance: float | None = None
    ) -> Tensor:
        """Decoded samples (B, *S), one per seed, the same for a seed in any batch.

        `cond` has one row per seed; without it the model's own conditions for these seeds are used.
        """
        scale = self.guidance if guidance is None else guidance
        _check_rows(cond, len(seeds))
        parts = sample_batches(
            self.model, self.table, seeds, self.batch, guidance=scale, device=self.device, cond=cond
        )
        return torch.cat([made for _, made in parts])


def _check_rows(cond: Cond, count: int) -> None:
    rows = [cond] if isinstance(cond, Tensor) else list((cond or {}).values())
    for value in rows:
        if len(value) != count:
            raise SpecError(f"cond: got {len(value)} rows for {count} seeds, expected one per seed")


def rows_of(full: Tensor | None) -> list[list[float]] | None:
    """A lower triangular (M, M+1) as a plan holds it."""
    return None if full is None else [row[: n + 2].tolist() for n, row in enumerate(full)]


def tensor_of(rows: Sequence[Sequence[float]]) -> Tensor:
    """The inverse of :func:`rows_of`."""
    return _padded(rows, len(rows) + 1)


def _padded(rows: Sequence[Sequence[float]], width: int) -> Tensor:
    """Rows of different lengths as a matrix, with zeros behind them."""
    full = torch.zeros(len(rows), width, dtype=torch.float64, device="cpu")
    for n, row in enumerate(rows):
        full[n, : len(row)] = torch.tensor(row, dtype=torch.float64, device="cpu")
    return full


def _guidance_lengths(guided: Sequence[int], count: int) -> list[int]:
    """How many directions each of `count` evaluations may use: those of guided ones so far."""
    return [sum(i <= j for i in guided) for j in range(count)]


def tuned_to_json(tuned: TunedSolver) -> dict[str, Any]:
    """The numbers of a tuned solver, by the names they have in a plan."""
    grid = tuned.grid
    numbers: dict[str, Any] = {
        "times": grid.times.tolist(),
        "net_times": grid.net_times.tolist(),
        "corrections": rows_of(tuned.corrections),
    }
    if tuned.guidance is not None:
        numbers["guidance"] = GuidancePart.of(tuned.guidance).model_dump()
    return numbers


def tuned_from_json(content: Mapping[str, Any], solver: Solver) -> TunedSolver:
    """The inverse of :func:`tuned_to_json`."""
    grid, rows = TimeGrid.of(content["times"], content["net_times"]), content["corrections"]
    part = content.get("guidance")
    guidance = None if part is None else GuidancePart.model_validate(part).numbers()
    return TunedSolver(solver, grid, None if rows is None else tensor_of(rows), guidance)


def _check_numbers(plan: Plan, name: str) -> None:
    """Times inside the range, as many as the solver takes, and tables to match."""
    try:
        grid = plan.grid.checked(plan.noise_schedule)
        own = plan.solver.table
        wanted = plan.make_solver().nfe(grid.steps) if own is None else len(own.net_times)
    except Ld3Error as error:
        raise PlanError(f"{name}: {error}") from None
    if plan.nfe != wanted or wanted % grid.steps:
        raise PlanError(f"{name}: got nfe {plan.nfe}, expected {wanted} for {grid.steps} steps")
    if own is not None and plan.corrections is not None:
        raise PlanError(f"{name}: got corrections beside a table of its own, expected one of them")
    tables = {"corrections": plan.corrections, "solver.table": own and own.rows}
    for what, rows in tables.items():
        lengths = [len(row) for row in rows or ()]
        if rows is not None and lengths != list(range(2, wanted + 2)):
            raise PlanError(
                f"{name}: {what}: got rows of {lengths[:12]} numbers, expected "
                f"2, 3, .. {wanted + 1}: one row per evaluation"
            )
    if own is not None:
        times = plan.noise_schedule
        if not all(times.t_min <= t <= times.t_max for t in own.net_times):
            raise PlanError(f"{name}: solver.table: got network times outside of the schedule")


def _check_guidance(plan: Plan, name: str) -> None:
    """Guided evaluations in order, and a row for each evaluation."""
    part = plan.guidance
    if (part is None) != (plan.format == "ld3-plan-1"):
        raise PlanError(
            f"{name}: format: got {plan.format} {'with' if part else 'without'} guidance, expected "
            "ld3-plan-1 without and ld3-plan-2 with it"
        )
    if part is None:
        return
    if plan.family is not None or plan.members:
        raise PlanError(f"{name}: guidance: got some in a plan for several NFE, expected one NFE")
    if part.guided != sorted(set(part.guided)) or not set(part.guided) <= set(range(plan.nfe)):
        raise PlanError(
            f"{name}: guidance: got guided evaluations {part.guided[:12]}, expected rising numbers "
            f"from 0 to {plan.nfe - 1}"
        )
    lengths, wanted = [len(row) for row in part.rows], _guidance_lengths(part.guided, plan.nfe)
    if lengths != wanted:
        raise PlanError(
            f"{name}: guidance: got rows of {lengths[:12]} numbers, expected {wanted[:12]}: one "
            "for each guided evaluation so far"
        )
