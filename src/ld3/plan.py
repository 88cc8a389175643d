"""A plan: what is learned, stored and used. A solver, its times, and for which model.

`plan.json` is for people and programs: times and network times in full precision, what was added to
the solver's weights if that was learned too (row n of `corrections` goes to x_T and the first n
data estimates, see :mod:`ld3.table`), the noise schedule, the model it was learned for, how it was
learned and how well it did. Reading one checks everything; using one with another model is refused
with the reason unless it is forced.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer
from torch import Tensor

from ld3.density import DENSITY, SHIFTS, TRIED, Warp, looked_up, shares
from ld3.errors import Ld3Error, PlanError
from ld3.grids import Knots, TimeGrid, knots
from ld3.models import Model
from ld3.options import PipelineOptions
from ld3.predictions import Prediction
from ld3.schedules import Flow, Schedule, schedule_from_json, schedule_to_json
from ld3.solvers import Solver, make_solver
from ld3.store import read_json, write_json
from ld3.table import Increments, Table, TunedSolver, compile_table

MAX_STEPS = 1000
Number = Annotated[float, Field(allow_inf_nan=False)]
Times = Annotated[list[Number], Field(min_length=2, max_length=MAX_STEPS + 1)]
Row = Annotated[list[Annotated[float, Field(ge=-1e3, le=1e3)]], Field(max_length=2 * MAX_STEPS + 1)]
Corrections = Annotated[list[Row], Field(max_length=2 * MAX_STEPS)] | None
Knot = Annotated[float, Field(ge=-100, le=100)]
Text = Annotated[str, Field(max_length=500)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SolverPart(_Part):
    name: Text
    order: int
    variant: Text = ""


class ModelPart(_Part):
    """The model a plan was learned for."""

    name: Text
    digest: Text
    shape: Annotated[list[int], Field(min_length=1, max_length=8)]
    prediction: Prediction
    conditions: Text = ""
    guidance: Number = 1.0
    guidance_range: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = None
    options: PipelineOptions | None = None

    @field_serializer("options")
    def _said(self, options: PipelineOptions | None) -> dict[str, Any] | None:
        return None if options is None else options.said()


class Member(_Part):
    """Another number of evaluations in the same file."""

    nfe: Annotated[int, Field(ge=1, le=2 * MAX_STEPS)]
    times: Times
    net_times: Times
    corrections: Corrections = None


class FamilyPart(_Part):
    """A family of grids for every number of evaluations, see :mod:`ld3.density`."""

    low: Annotated[int, Field(ge=1, le=MAX_STEPS)]  # it was learned for low .. high evaluations
    high: Annotated[int, Field(ge=1, le=MAX_STEPS)]
    density: Annotated[list[Knot], Field(min_length=2 * DENSITY, max_length=2 * DENSITY)]
    shifts: Annotated[list[Knot], Field(min_length=2 * SHIFTS, max_length=2 * SHIFTS)]


class Plan(_Part):
    """Solver + times + for which model."""

    format: Literal["ld3-plan-1"] = "ld3-plan-1"
    nfe: Annotated[int, Field(ge=1, le=2 * MAX_STEPS)]
    solver: SolverPart
    times: Times
    net_times: Times
    corrections: Corrections = None
    family: FamilyPart | None = None
    members: Annotated[list[Member], Field(max_length=100)] = []
    schedule: dict[str, Any]
    model: ModelPart
    learned: dict[str, Any] = {}
    scores: dict[str, Any] = {}

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
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole file"
            raise PlanError(f"{name}: {where}: {first['msg']}") from None
        if plan.family is not None and plan.family.low > plan.family.high:
            raise PlanError(f"{name}: family: got low {plan.family.low} above {plan.family.high}")
        _check_numbers(plan, name)
        for member in plan.members:
            _check_numbers(plan._with(member), f"{name}: member {member.nfe}")
        return plan

    def save(self, path: Path | str) -> None:
        """Write the plan, whole or not at all."""
        write_json(Path(path), self.model_dump(mode="json"))

    def at(self, nfe: int) -> "Plan":
        """The plan for another number of evaluations, if this one has a family or such a member."""
        for member in self.members:
            if member.nfe == nfe:
                return self._with(member)
        if nfe == self.nfe:
            return self
        if self.family is None:
            known = sorted({self.nfe, *(member.nfe for member in self.members)})
            raise PlanError(
                f"nfe: got {nfe}, wanted {', '.join(map(str, known))}: the plan was learned for "
                "that; learn one for all with --nfe 4-10"
            )
        solver = self.make_solver()
        each = solver.nfe(1)
        if nfe < each or nfe % each:
            raise PlanError(f"nfe: got {nfe}, wanted a multiple of {each} for {solver.name}")
        warp = Warp(self.noise_schedule, self.family.low // each, self.family.high // each)
        density, shifts = (
            torch.tensor(numbers, dtype=torch.float64, device="cpu")
            for numbers in (self.family.density, self.family.shifts)
        )
        grid = warp.grid(density, shifts, nfe // each)
        times, net_times = grid.times.tolist(), grid.net_times.tolist()
        return self._with(Member(nfe=nfe, times=times, net_times=net_times))

    @property
    def counts(self) -> list[int]:
        """The numbers of evaluations it was learned for."""
        known = {self.nfe, *(member.nfe for member in self.members)}
        if self.family is not None:
            each = self.make_solver().nfe(1)
            known |= set(range(self.family.low, self.family.high + 1, each))
        return sorted(known)

    def guess(self, nfe: int) -> "Plan":
        """A plan for a number of evaluations that was not learned, from this one's times.

        The plan is seen as a warp of the :mod:`bump <ld3.searches.density>` nearest to it: its
        point i of N has a share s(i/N) of that bump's steps before it. With n steps, point i has

            w s(i/n) + (1 - w) i/n,   w = max(0, 1 - |log2(n/N)|),   s linear in between,

        so that half or twice as many steps are a plain bump. What the network is told is shifted by
        w N/n of the plan's shift there: shorter steps, smaller shifts. Corrections belong to one
        number of evaluations and are left out.
        """
        each = self.make_solver().nfe(1)
        if nfe < each or nfe % each or nfe > MAX_STEPS:
            raise PlanError(
                f"nfe: got {nfe}, wanted a multiple of {each} from {each} to {MAX_STEPS} for "
                f"{self.solver.name}"
            )
        schedule, own, steps = self.noise_schedule, len(self.times) - 1, nfe // each
        weight = max(0.0, 1 - abs(math.log2(steps / own)))
        lam, told = schedule.lam(self.grid.times), schedule.lam(self.grid.net_times)
        first, last = lam[0].item(), lam[-1].item()
        u, v = (
            torch.linspace(0, 1, n + 1, dtype=torch.float64, device="cpu") for n in (own, steps)
        )

        def apart(bump: tuple[Tensor, Tensor]) -> float:
            return float((looked_up(u, bump[1], bump[0]) - lam).abs().max())

        at, share = min((shares(first, last, *bump) for bump in TRIED), key=apart)
        warped = torch.lerp(v, looked_up(v, u, looked_up(lam, at, share)), weight)
        there = looked_up(warped, share, at)
        shift = weight * own / steps * looked_up(v, u, told - lam)
        ends = (schedule.t_min, schedule.t_max)
        times, net_times = (schedule.time_at(x).clamp(*ends) for x in (there, there + shift))
        times[0], times[-1] = self.times[0], self.times[-1]
        return self._with(Member(nfe=nfe, times=times.tolist(), net_times=net_times.tolist()))

    def _with(self, member: Member) -> "Plan":
        return self.model_copy(update={**dict(member), "members": [], "family": None})

    @property
    def grid(self) -> TimeGrid:
        return TimeGrid.of(self.times, self.net_times)

    @property
    def state_times(self) -> torch.Tensor:
        """The solver's time of every state of its table, (nfe + 1,)."""
        each = self.make_solver().nfe(1)
        return self.grid.times.repeat_interleave(each)[each - 1 :]

    @property
    def tuned(self) -> TunedSolver:
        """The solver on its times, with the corrections."""
        if self.corrections is None:
            return TunedSolver(self.make_solver(), self.grid)
        full = torch.zeros(self.nfe, self.nfe + 1, dtype=torch.float64, device="cpu")
        for n, row in enumerate(self.corrections):
            full[n, : len(row)] = torch.tensor(row, dtype=torch.float64, device="cpu")
        return TunedSolver(self.make_solver(), self.grid, full)

    @property
    def noise_schedule(self) -> Schedule:
        return schedule_from_json(self.schedule)

    def make_solver(self) -> Solver:
        return make_solver(self.solver.name, self.solver.order, self.solver.variant or None)

    def knots(self) -> Knots:
        return knots(self.noise_schedule, self.grid)

    def table(self) -> Table:
        """The plan as numbers on the network's own output."""
        return compile_table(
            self.make_solver(), self.knots(), self.model.prediction, self.tuned.corrections
        )

    def increments(self) -> Increments:
        """The plan step by step, in the form that loses the fewest digits: x0 for methods that
        extrapolate x0, else the velocity on flows and the noise on all others."""
        schedule, solver = self.noise_schedule, self.make_solver()
        table = compile_table(solver, self.knots(), "x0", self.tuned.corrections)
        if solver.form == "x0":
            return table.increments("x0", schedule)
        return table.increments("flow" if isinstance(schedule, Flow) else "eps", schedule)

    @staticmethod
    def rows(tuned: TunedSolver) -> list[list[float]] | None:
        """Corrections as a plan holds them."""
        if tuned.corrections is None:
            return None
        return [row[: n + 2].tolist() for n, row in enumerate(tuned.corrections)]

    def check_fits(self, model: Model, digest: str) -> None:
        """Refuse a model that is not the one the plan was learned for."""
        pairs = (
            ("noise schedule", schedule_to_json(model.schedule), self.schedule),
            ("prediction", model.prediction, self.model.prediction),
            ("shape", list(model.shape), self.model.shape),
            ("weights", digest, self.model.digest),
        )
        for what, got, wanted in pairs:
            if got != wanted:
                raise PlanError(
                    f"plan: got a model with {what} {got}, wanted {wanted} as in "
                    f"{self.model.name!r}, for which the plan was learned; learn one for this "
                    "model, or force its use"
                )


def _check_numbers(plan: Plan, name: str) -> None:
    """Times inside the range, as many as the solver takes, corrections to match."""
    try:
        grid = plan.grid.checked(plan.noise_schedule)
        wanted = plan.make_solver().nfe(grid.steps)
    except Ld3Error as error:
        raise PlanError(f"{name}: {error}") from None
    if plan.nfe != wanted:
        raise PlanError(f"{name}: got nfe {plan.nfe}, wanted {wanted} for {grid.steps} steps")
    if plan.corrections is not None:
        lengths = [len(row) for row in plan.corrections]
        if lengths != list(range(2, wanted + 2)):
            raise PlanError(
                f"{name}: corrections: got rows of {lengths[:12]} numbers, wanted "
                f"2, 3, .. {wanted + 1}: one row an evaluation"
            )
