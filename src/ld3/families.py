"""One run for every number of evaluations: a family of grids, and one plan file that holds it.

The members take turns while learning, each counted by its loss over that of the start, so that no
number of evaluations is forgotten for another. With `refine` every member then becomes the start of
a run of its own, and the file holds what these runs found, too.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ld3 import __version__
from ld3.density import TRIED, Warp
from ld3.errors import PlanError, SpecError
from ld3.learner.learn import Progress
from ld3.learner.presets import for_family
from ld3.learner.starts import GRIDS, SCREEN
from ld3.models import Model
from ld3.parameters import FamilyTuning
from ld3.plan import FamilyPart, Member, Plan
from ld3.problem import Problem, Student
from ld3.runs.descent import SO_FAR, Course, Interrupted, descend, word_of
from ld3.runs.held_out import known_table
from ld3.runs.jobs import HELD, Job, jobs, pairs_for
from ld3.runs.kept import measure_of, remembered
from ld3.runs.learn import run_job
from ld3.runs.plans import plan_part
from ld3.scores import Tell, score, silent
from ld3.spec import RunSpec
from ld3.store import sweep
from ld3.table import Table


@dataclass(frozen=True)
class Row:
    """One number of evaluations on held-out noise."""

    nfe: int
    best_grid: str  # the best known grid, picked on the same noise
    known: float  # its distance to the teacher
    family: float
    refined: float | None = None


@dataclass(frozen=True)
class FamilyLearned:
    """A finished run for a range of evaluations."""

    plan: Plan
    folder: Path
    rows: tuple[Row, ...]


def run_family(
    spec: RunSpec, tell: Tell = silent, fresh: bool = False, model: Model | None = None
) -> FamilyLearned:
    """Learn one family for all numbers of evaluations of a range; an unfinished run goes on."""
    if spec.family is None:
        raise SpecError("family: got none, wanted a range such as --nfe 4-10")
    if spec.guidance_to is not None:
        raise SpecError("guidance: got a range with a range of nfe, wanted one of them")
    low, high = spec.family
    alone = spec.model_copy(update={"family": None, "refine": False})
    singles = [job for job in jobs(alone, range(low, high + 1), model) if not job.nfe % job.each]
    if len(singles) < 2:
        raise SpecError(f"nfe: got {low}-{high}, wanted a range with several step counts")
    first = singles[0]
    preset = for_family(first.preset)
    job = replace(first, spec=spec, preset=replace(preset, teacher=singles[-1].preset.teacher))
    sweep(job.folder)
    file = job.folder / "plan.json"
    if file.exists() and not fresh:
        plan = Plan.load(file)
    else:
        plan = _learn(job, [single.steps for single in singles], tell, fresh)
        try:
            plan = _scored(plan, job, singles, tell)
        except KeyboardInterrupt:
            raise Interrupted(word_of(job.folder)) from None
        plan.save(file)
        (job.folder / SO_FAR).unlink(missing_ok=True)
    if spec.refine and len(plan.members) < len(singles):
        plan = _refined(plan, job, singles, tell, fresh)
        plan.save(file)
    return FamilyLearned(plan, job.folder, _rows(plan, file))


def _learn(job: Job, steps: Sequence[int], tell: Tell, fresh: bool) -> Plan:
    train, valid = (
        pairs_for(job, seeds, what, tell)
        for what, seeds in (("learning pairs", job.seeds[0]), ("validation pairs", job.seeds[1]))
    )
    schedule = job.loaded.model.schedule
    problems = tuple(
        Problem(job.loaded.model, job.solver, count, job.distance, train, valid, job.spec.guidance)
        for count in steps
    )
    learned = tuple(name for name in job.preset.recipe.learn.split("+") if name != "coefficients")
    tuning = FamilyTuning(job.solver, Warp(schedule, steps[0], steps[-1]), learned)
    bumps = {f"bump:{centre:g}:{width:g}": (centre, width) for centre, width in TRIED}
    best = _best_bump(tuning, problems, bumps, job.preset.recipe.power, tell)

    def plan(final: Progress) -> Plan:
        numbers = final.state.best_numbers
        middle = steps[len(steps) // 2]
        grid = tuning.tuned(numbers, middle).grid
        return plan_part(
            job,
            nfe=job.solver.nfe(middle),
            times=grid.times.tolist(),
            net_times=grid.net_times.tolist(),
            family=FamilyPart(
                low=job.solver.nfe(steps[0]),
                high=job.solver.nfe(steps[-1]),
                density=numbers["times"].tolist(),
                shifts=numbers["net"].tolist(),
            ),
            learned={
                "spec": job.identity,
                "start": best,
                "evaluations": final.state.evaluations,
                "teacher_evaluations": job.preset.teacher.steps * (len(train) + len(valid)),
                "validation": final.best,
                "versions": {"ld3": __version__, "torch": torch.__version__},
            },
        )

    course = Course(problems, tuning, lambda name: tuning.numbers(*bumps[name]), plan)
    result = plan(descend(job, course, [best], tell, fresh))
    result.save(job.folder / SO_FAR)
    return result


def _best_bump(
    tuning: FamilyTuning,
    problems: Sequence[Problem],
    bumps: dict[str, tuple[float, float]],
    power: float,
    tell: Tell,
) -> str:
    """The bump that is best over few, some and many steps, each relative to the best of all."""
    student = Student(problems[0])
    asked = sorted({problems[i].steps for i in (0, len(problems) // 2, -1)})
    losses: dict[str, list[float]] = {}
    for done, (name, bump) in enumerate(bumps.items()):
        numbers = tuning.numbers(*bump)
        losses[name] = [
            student.mean_loss(tuning.table(numbers, count), limit=SCREEN, power=power)
            for count in asked
        ]
        tell("trying starts", done + 1, len(bumps))
    lowest = [min(column) for column in zip(*losses.values(), strict=True)]

    def relative(name: str) -> float:
        return math.fsum(
            loss / max(low, 1e-12) for loss, low in zip(losses[name], lowest, strict=True)
        )

    return min(bumps, key=relative)


def _scored(plan: Plan, job: Job, singles: Sequence[Job], tell: Tell) -> Plan:
    """Held-out distances of each member beside those of the best known grid."""
    rows: dict[str, Any] = {}
    for done, single in enumerate(singles):
        # the same teacher for all, so that members can be compared
        same = replace(single, preset=replace(single.preset, teacher=job.preset.teacher))
        known = {name: _distance(same, known_table(same, name)) for name in GRIDS}
        best = min(known, key=lambda name: known[name])
        own = _distance(same, plan.at(single.nfe).table())
        rows[str(single.nfe)] = asdict(Row(single.nfe, best, known[best], own))
        tell("scoring on held-out noise", done + 1, len(singles))
    return plan.model_copy(update={"scores": rows})


def _distance(job: Job, table: Table) -> float:
    """To the teacher on held-out noise."""
    model = job.loaded.model
    held = pairs_for(job, range(HELD, HELD + job.spec.held_out), "held-out pairs", silent)
    what = ["family", job.spec.held_out, *measure_of(job)]

    def measure() -> dict[str, Any]:
        found = score(model, table, job.distance, held, held.target, job.spec.guidance)
        return {"distance": found.distance}

    return float(remembered(job, table, what, measure)["distance"])


def _refined(plan: Plan, job: Job, singles: Sequence[Job], tell: Tell, fresh: bool) -> Plan:
    """Each member learned on from where the family left it."""
    members, rows = [], dict(plan.scores)
    for single in singles:
        start = job.folder / f"member-{single.nfe}.json"
        plan.at(single.nfe).model_copy(update={"scores": {}}).save(start)
        spec = single.spec.model_copy(update={"start": str(start)})
        result = run_job(replace(single, spec=spec), tell, fresh)
        own = result.plan
        members.append(
            Member(
                nfe=own.nfe,
                times=own.times,
                net_times=own.net_times,
                corrections=own.corrections,
            )
        )
        same = replace(single, preset=replace(single.preset, teacher=job.preset.teacher))
        rows[str(single.nfe)] = {**rows[str(single.nfe)], "refined": _distance(same, own.table())}
    (shown,) = (member for member in members if member.nfe == plan.nfe)
    return plan.model_copy(update={**dict(shown), "members": members, "scores": rows})


def _rows(plan: Plan, file: Path) -> tuple[Row, ...]:
    try:
        return tuple(Row(**row) for row in plan.scores.values())
    except TypeError as error:
        raise PlanError(f"{file}: scores: {error}; learn it again with --fresh") from None
