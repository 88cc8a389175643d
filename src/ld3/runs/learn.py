"""From a spec to a plan: the walk of `ld3 learn`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ld3.errors import PlanError
from ld3.learner.learn import (
    tuning_of,
)  # fmt: skip
from ld3.models import Model
from ld3.plan import Plan
from ld3.problem import ROUGH, SECANT, Problem
from ld3.runs.descent import SO_FAR, Course, Interrupted, descend, word_of
from ld3.runs.held_out import best_of, held_out_scores
from ld3.runs.jobs import Job, jobs, pairs_for
from ld3.runs.plans import plan_of, with_rounding
from ld3.runs.starts import find_starts, start_of
from ld3.scores import Scores, Tell, silent
from ld3.searches import METHODS
from ld3.spec import RunSpec
from ld3.store import sweep


@dataclass(frozen=True)
class Learned:
    """A finished run for one number of evaluations."""

    plan: Plan
    folder: Path
    scores: dict[str, Scores]

    @property
    def best_grid(self) -> str:
        """The best of the known grids, hand-made or published."""
        return best_of(self.scores, METHODS)


def run_learn(
    spec: RunSpec, tell: Tell = silent, fresh: bool = False, model: Model | None = None
) -> Iterator[Learned]:
    """Learn a plan for each number of evaluations asked for; unfinished runs are resumed.

    `model` is a model of one's own, to be used instead of the one that `spec.model` names.
    """
    for job in jobs(spec, spec.nfe, model):
        yield run_job(job, tell, fresh)


def run_job(job: Job, tell: Tell, fresh: bool) -> Learned:
    steps, spec, preset, folder = job.steps, job.spec, job.preset, job.folder
    sweep(folder)
    if (folder / "plan.json").exists() and not fresh:
        return _finished(folder)
    train, valid = (
        pairs_for(job, seeds, what, tell)
        for what, seeds in (("learning pairs", job.seeds[0]), ("validation pairs", job.seeds[1]))
    )
    problem = Problem(
        job.loaded.model, job.solver, steps, job.distance, train, valid, job.guidances[0]
    )
    starts = find_starts(job, problem, tell, fresh)
    if spec.slope == "secant" or (spec.slope == "auto" and starts.roughness > ROUGH):
        problem = replace(problem, secant=SECANT)
    tuning = tuning_of(problem, preset.recipe)
    course = Course(
        problems=(problem, *_at_other_guidance(job, problem, tell)),
        tuning=tuning,
        numbers=lambda name: tuning.numbers(start_of(name, job)),
        plan=lambda final: plan_of(job, problem, starts, final, {}),
    )
    final = descend(job, course, starts.chosen, tell, fresh)
    course.plan(final).save(folder / SO_FAR)
    try:
        scores = held_out_scores(job, final.tuned, starts, tell)
    except KeyboardInterrupt:
        raise Interrupted(word_of(folder)) from None
    plan = with_rounding(job, plan_of(job, problem, starts, final, scores))
    result = Learned(plan, folder, scores)
    result.plan.save(folder / "plan.json")
    (folder / SO_FAR).unlink(missing_ok=True)
    return result


def _at_other_guidance(job: Job, problem: Problem, tell: Tell) -> Iterator[Problem]:
    """The same problem at the other scales of a range, each with pairs of its own."""
    for scale in job.guidances[1:]:
        train, valid = (
            pairs_for(job.at_guidance(scale), pairs.seeds, f"pairs at guidance {scale:g}", tell)
            for pairs in (problem.train, problem.valid)
        )
        yield replace(problem, train=train, valid=valid, guidance=scale)


def _finished(folder: Path) -> Learned:
    """A run that was finished before."""
    plan = Plan.load(folder / "plan.json")
    try:
        scores = {name: Scores(**values) for name, values in plan.scores.items()}
        result = Learned(plan, folder, scores)
        scores[result.best_grid], scores["learned"]
    except (TypeError, ValueError, KeyError) as error:
        raise PlanError(
            f"{folder / 'plan.json'}: scores: {error}; learn it again with --fresh"
        ) from None
    return result
