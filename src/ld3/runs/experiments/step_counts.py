"""Plans for many numbers of evaluations: one family, a run each, or one plan interpolated."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from ld3.errors import SpecError
from ld3.experiment import Curve, Findings, Panel, ResultRow, ResultTable, Value, merged
from ld3.grids import TimeGrid
from ld3.interpolate import guess
from ld3.plan import Plan
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import RunRequest, learn_all, learning_values
from ld3.runs.experiments.scoring import LABELS, Scoring, title_of
from ld3.runs.family import run_family
from ld3.runs.plans import plan_of
from ld3.runs.run import Learned, Run
from ld3.runs.spec import Count
from ld3.table import TunedSolver

Row = list[Value | None]  # one value per number of evaluations


class StepCountOptions(BaseModel):
    """`learn` are options of `ld3 learn`, `scoring` of `ld3 compare`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: dict[str, Any]
    scoring: dict[str, Any]
    nfe: Annotated[tuple[Count, ...], Field(min_length=2)]
    seeds: Annotated[int, Field(ge=1, le=20)] = 1
    runs: dict[str, dict[str, Any]] = {}  # a run for each NFE, with changes of `learn`, by name
    family: bool = False  # one run for the range of `nfe`
    interpolated: tuple[Count, ...] = ()  # NFE of plans that are used for all others

    def checked(self, context: Context) -> None:
        context.compare_spec(self.scoring)
        for change in (*self.runs.values(), {}):
            self.request(context, change, self.nfe[0], 0)
        unknown = set(self.interpolated) - set(self.nfe)
        if unknown:
            raise SpecError(f"interpolated: got {sorted(unknown)}, expected numbers in nfe")

    def request(self, context: Context, change: dict[str, Any], nfe: int, seed: int) -> RunRequest:
        options = merged(self.learn, change) | {"nfe": [nfe], "seed": seed}
        return RunRequest(f"NFE {nfe}, seed {seed}", context.run_spec(options))


def run_step_counts(options: StepCountOptions, context: Context) -> Findings:
    """Distances by number of evaluations, and what each row costs to learn."""
    scoring = Scoring.of(context.compare_spec(options.scoring), context.report, context.ranks)
    solver = context.run_spec({**options.learn, "nfe": [options.nfe[0]]}).make_solver()
    rows: dict[str, Row] = {
        "best known grid": [
            scoring.known("best known", solver, n).get("distance") for n in options.nfe
        ]
    }
    costs: dict[str, Value] = {}
    wanted = [("", n) for n in options.interpolated]
    wanted += [(name, n) for name in options.runs for n in options.nfe]
    results = _learned(options, context, wanted)
    for source in options.interpolated:
        spec = options.request(context, {}, source, 0).spec
        plans = [plan_of(*result, spec, {}) for result in results["", source]]
        for rule, grid_of in (("interpolated", _guessed), ("linear in log-SNR", linear_grid)):
            name = f"plan for {source}, {rule}"
            rows[name] = [
                _distance(scoring, [TunedSolver(solver, grid_of(p, n)) for p in plans])
                for n in options.nfe
            ]
    if options.family:
        families = [_family(options, context, seed) for seed in range(options.seeds)]
        spent = [p.learned.evaluations + p.learned.teacher_evaluations for p in families]
        costs["family, one run"] = Value.over([float(count) for count in spent])
        rows["family, one run"] = [
            _distance(scoring, [p.at(n).tuned for p in families]) for n in options.nfe
        ]
    for name in options.runs:
        label, own = f"a run each: {name}", [results[name, n] for n in options.nfe]
        rows[label] = [_distance(scoring, [learned.tuned for _, learned in r]) for r in own]
        costs[label] = Value(value=sum(learning_values(r)["evaluations"].value for r in own))
    table = ResultTable(
        title=title_of("distance"), head=("plan", *(f"NFE {n}" for n in options.nfe)),
        rows=tuple(ResultRow(label=(name,), cells=tuple(row)) for name, row in rows.items()),
        best="lower",
    )  # fmt: skip
    cost = ResultTable(
        title="Evaluations to learn the whole row, teacher included", head=("plan", "evaluations"),
        rows=tuple(ResultRow(label=(name,), cells=(value,)) for name, value in costs.items()),
    )  # fmt: skip
    points = {
        name: dict(zip(map(float, options.nfe), row, strict=True)) for name, row in rows.items()
    }
    panel = Panel(
        title="", x="evaluations", y=LABELS["distance"], log_y=True,
        curves=tuple(Curve.of(name, own) for name, own in points.items()),
    )  # fmt: skip
    return Findings(
        tables=(table, cost) if costs else (table,), panels=(panel,),
        reference=scoring.session.reference.title,
    )  # fmt: skip


def _learned(
    options: StepCountOptions, context: Context, wanted: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], list[tuple[Run, Learned]]]:
    """The runs of all seeds, by change and number of evaluations."""
    keys = [key for key in wanted for _ in range(options.seeds)]
    requests = [
        options.request(context, options.runs.get(name, {}), nfe, seed)
        for name, nfe in wanted
        for seed in range(options.seeds)
    ]
    found: dict[tuple[str, int], list[tuple[Run, Learned]]] = {}
    for key, result in zip(keys, learn_all(requests, context), strict=True):
        found.setdefault(key, []).append(result)
    return found


def _distance(scoring: Scoring, several: Sequence[TunedSolver]) -> Value | None:
    return scoring.values(several).get("distance")


def _family(options: StepCountOptions, context: Context, seed: int) -> Plan:
    ends = f"{min(options.nfe)}-{max(options.nfe)}"
    held_out = context.compare_spec(options.scoring).held_out
    spec = context.run_spec({**options.learn, "nfe": ends, "seed": seed, "held_out": held_out})
    return run_family(
        spec, context.report, ranks=context.ranks, parent=spec.out / "cache" / "learned"
    ).plan


def _guessed(plan: Plan, nfe: int) -> TimeGrid:
    """By :func:`ld3.interpolate.guess`, without corrections."""
    return plan.grid if nfe == plan.nfe else guess(plan, nfe).grid


def linear_grid(plan: Plan, nfe: int) -> TimeGrid:
    """lam, and the shift of lam at the network, linear in i/N."""
    schedule, own, steps = plan.noise_schedule, plan.grid, nfe // plan.nfe_per_step
    lam, net = schedule.lam(own.times), schedule.lam(own.net_times)
    at = torch.linspace(0, own.steps, steps + 1, dtype=torch.float64, device="cpu")
    left = at.long().clamp(max=own.steps - 1)
    lam, shift = (torch.lerp(v[left], v[left + 1], at - left) for v in (lam, net - lam))
    times, net_times = (
        schedule.time_at(x).clamp(schedule.t_min, schedule.t_max) for x in (lam, lam + shift)
    )
    times[0], times[-1] = own.times[0], own.times[-1]
    return TimeGrid.of(times, net_times)
