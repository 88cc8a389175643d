"""Plans for a number of passes: which candidates are learned, and what the plan says of them."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from ld3.plan import CandidatePart, Plan
from ld3.problem import Part, Student
from ld3.runs.passes import Budget, Candidate, spend
from ld3.runs.run import Learned, Run, learn_run, solver_key
from ld3.runs.session import mean, table_key
from ld3.runs.spec import RunSpec


def find_budget(run: Run, spec: RunSpec) -> Budget:
    """The ways to spend `spec.passes`, compared before learning; stored in the cache."""
    preset, passes, power = run.preset, spec.passes or 0, run.preset.recipe.power
    key = {
        **run.session.identity,
        "solver": solver_key(run.solver, run.session, run.steps),
        "pairs": [preset.train, preset.valid],
        "seed": run.seed,
        "power": power,
        "spend": [passes, list(spec.nfe)],
    }
    report = partial(run.session.report, "trying starts")

    def make() -> dict[str, Any]:
        return asdict(spend(run.problem(), spec.nfe, passes, power, report))

    content = run.session.cache.json("found", key, make)
    candidates = tuple(
        Candidate(**{**one, "guided": tuple(one["guided"])}) for one in content["candidates"]
    )
    return Budget(**{**content, "candidates": candidates})


@dataclass(frozen=True)
class Chosen:
    """The best plan for a number of passes."""

    run: Run
    learned: Learned
    budget: Budget
    tried: dict[Candidate, Learned]  # the candidates that were learned
    losses: dict[Candidate, float]  # of these

    @property
    def evaluations(self) -> int:
        return self.budget.evaluations + sum(one.evaluations for one in self.tried.values())

    @property
    def passes(self) -> int:
        return self.budget.passes + sum(one.passes for one in self.tried.values())


def learn_budget(
    run: Run,
    spec: RunSpec,
    stored: Callable[[Run], Run],
    learn: Callable[[Run], Learned] = learn_run,
) -> Chosen:
    """Learn two candidates, and take the one that is nearer to the teacher on all pairs.

    They are the one that begins best and the one that is guided throughout, so that the plan is no
    worse than with full guidance; without the latter, the two that begin best. Each begins where
    a run of its number of evaluations begins. `stored` gives a run its folder.
    """
    budget = find_budget(run, spec)
    runs, tried = dict[Candidate, Run](), dict[Candidate, Learned]()
    first, *others = budget.candidates
    others.sort(key=lambda one: len(one.guided) < one.nfe)  # stable: the full one comes first
    for one in (first, *others[:1]):
        runs[one] = stored(replace(run, nfe=one.nfe, guided=one.guided))
        tried[one] = learn(runs[one])
    losses = {one: mean_distance(own, tried[one]) for one, own in runs.items()}
    best = min(losses, key=lambda one: losses[one])
    return Chosen(runs[best], tried[best], budget, tried, losses)


def mean_distance(run: Run, learned: Learned) -> float:
    """Over training and validation pairs: a few validation pairs alone would choose by chance."""
    table = learned.tuned.table(run.session.model.schedule)
    key = {**run.key, "what": "all pairs", "table": table_key(table)}

    def make() -> float:
        student = Student(run.problem())
        parts: dict[Part, int] = {"train": run.preset.train, "valid": run.preset.valid}
        each = [
            student.losses(part, torch.arange(count, device="cpu"), table)
            for part, count in parts.items()
        ]
        return mean(torch.cat(each).double().tolist())

    with torch.no_grad():
        found = float(run.session.cache.json("scores", key, make))
    return found if math.isfinite(found) else math.inf


def with_candidates(plan: Plan, chosen: Chosen) -> Plan:
    """A plan with all candidates, and what all of them cost."""
    parts = [
        CandidatePart(**{**asdict(one), "guided": list(one.guided)}, learned=chosen.losses.get(one))
        for one in chosen.budget.candidates
    ]
    facts = {
        "candidates": parts, "evaluations": chosen.evaluations, "passes": chosen.passes,
    }  # fmt: skip
    return plan.model_copy(update={"learned": plan.learned.model_copy(update=facts)})
