"""Plans for many numbers of evaluations: one family, a run each, or one plan interpolated."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field

from ld3.errors import SpecError
from ld3.experiment import Curve, Findings, Panel, ResultTable, Value
from ld3.grids import TimeGrid
from ld3.interpolate import guess
from ld3.plan import Plan
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import LearningOptions, learn_all, learning_values
from ld3.runs.experiments.scoring import LABELS, Scoring, title_of
from ld3.runs.family import run_family
from ld3.runs.plans import plan_of
from ld3.runs.spec import Count
from ld3.table import TunedSolver


class StepCountOptions(LearningOptions):
    """Several ways to get a plan for each number of evaluations."""

    nfe: Annotated[tuple[Count, ...], Field(min_length=2)]
    runs: dict[str, dict[str, Any]] = Field({})  # by name: changes of `learn` in a run per NFE
    family: bool = False  # one run for the range of `nfe`
    interpolated: tuple[Count, ...] = ()  # NFE of plans that are used for all others

    def checked(self, context: Context) -> None:
        super().checked(context)
        unknown = set(self.interpolated) - set(self.nfe)
        if unknown:
            raise SpecError(f"interpolated: got {sorted(unknown)}, expected numbers in nfe")

    def wanted(self, context: Context) -> dict[tuple[str, int], tuple[str, dict[str, Any]]]:
        keys = [("", nfe) for nfe in self.interpolated]
        keys += [(name, nfe) for name in self.runs for nfe in self.nfe]
        return {(k, n): (f"NFE {n}", {**self.runs.get(k, {}), "nfe": [n]}) for k, n in keys}


def run_step_counts(options: StepCountOptions, context: Context) -> Findings:
    """Distances by number of evaluations, and what each row costs to learn."""
    scoring = Scoring.of(context.compare_spec(options.scoring), context)
    requests = options.requests(context)
    results = learn_all(requests, context)
    solver = context.run_spec({**options.learn, "nfe": [options.nfe[0]]}).make_solver()
    known = [scoring.known("best known", solver, n).get("distance") for n in options.nfe]
    rows, costs = {"best known grid": known}, dict[str, list[Value]]()

    def distances(each: Iterable[Sequence[TunedSolver]]) -> list[Value | None]:
        return [scoring.values(several).get("distance") for several in each]

    for source in options.interpolated:
        spec = requests["", source][0].spec
        plans = [plan_of(*result, spec, {}) for result in results["", source]]
        for rule, grid_of in (("interpolated", _guessed), ("linear in log-SNR", linear_grid)):
            rows[f"plan for {source}, {rule}"] = distances(
                [TunedSolver(solver, grid_of(p, n)) for p in plans] for n in options.nfe
            )
    if options.family:
        families = [_family(options, context, seed) for seed in range(options.seeds)]
        spent = [p.learned.evaluations + p.learned.teacher_evaluations for p in families]
        costs["family, one run"] = [Value.over([float(count) for count in spent])]
        own = ([p.at(n).tuned for p in families] for n in options.nfe)
        rows["family, one run"] = distances(own)
    for name in options.runs:
        label, each = f"a run each: {name}", [results[name, n] for n in options.nfe]
        rows[label] = distances([learned.tuned for _, learned in r] for r in each)
        costs[label] = [Value(value=sum(learning_values(r)["evaluations"].value for r in each))]
    head = ("plan", *(f"NFE {n}" for n in options.nfe))
    tables = [ResultTable.of(title_of("distance"), head, rows, "lower")]
    if costs:
        title = "Evaluations to learn the whole row, teacher included"
        tables.append(ResultTable.of(title, ("plan", "evaluations"), costs))
    curves = [
        Curve.of(name, dict(zip(options.nfe, row, strict=True))) for name, row in rows.items()
    ]
    panel = Panel(title="", x="evaluations", y=LABELS["distance"], log_y=True, curves=tuple(curves))
    reference = scoring.session.reference.title
    return Findings(tables=tuple(tables), panels=(panel,), reference=reference)


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
