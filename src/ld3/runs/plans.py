"""What a run found, as a plan."""

import math
from dataclasses import asdict
from typing import Any

import torch

from ld3 import __version__, zoo
from ld3.learner.learn import (
    Progress,
)  # fmt: skip
from ld3.learner.presets import Preset
from ld3.plan import ModelPart, Plan, SolverPart
from ld3.problem import Problem
from ld3.runs.jobs import HELD, Job
from ld3.runs.starts import Starts
from ld3.schedules import schedule_to_json
from ld3.scores import Scores
from ld3.zoo.pipelines.model import PipelineModel

ROUNDED = 16  # held-out noises on which the rounding of network times is measured


def plan_of(
    job: Job, problem: Problem, starts: Starts, final: Progress, scores: dict[str, Scores]
) -> Plan:
    preset = job.preset
    return plan_part(
        job,
        nfe=job.nfe,
        times=final.tuned.grid.times.tolist(),
        net_times=final.tuned.grid.net_times.tolist(),
        corrections=Plan.rows(final.tuned),
        learned={
            "spec": job.identity,
            "preset": _plain(preset),
            "starts": asdict(starts),
            "secant": problem.secant,
            "evaluations": final.state.evaluations + starts.evaluations,
            "teacher_evaluations": len(job.guidances)
            * preset.teacher.steps
            * (preset.train + preset.valid),
            "skipped": final.state.skipped,
            "validation": final.best,
            "versions": {"ld3": __version__, "torch": torch.__version__},
        },
        scores={name: asdict(score) for name, score in scores.items()},
    )


def with_rounding(job: Job, plan: Plan) -> Plan:
    """A pipeline's plan with word of what it costs to round the times that its network is told."""
    model = job.loaded.model
    if not isinstance(model, PipelineModel):
        return plan
    seeds = range(HELD, HELD + min(ROUNDED, job.spec.held_out))
    cost = zoo.rounding_cost(model, plan.table(), seeds, job.guidances[0])
    return plan.model_copy(update={"learned": plan.learned | {"rounding": cost}})


def plan_part(job: Job, **parts: Any) -> Plan:
    """A plan for the job's solver and model, with these parts."""
    model, solver, high = job.loaded.model, job.solver, job.spec.guidance_to
    return Plan(
        solver=SolverPart(name=solver.name, order=solver.order, variant=solver.variant),
        schedule=schedule_to_json(model.schedule),
        model=ModelPart(
            name=job.loaded.name,
            digest=job.loaded.digest,
            shape=list(model.shape),
            prediction=model.prediction,
            conditions=job.loaded.conditions,
            guidance=job.guidances[0],
            guidance_range=None if high is None else [job.spec.guidance, high],
            options=job.loaded.options,
        ),
        **parts,
    )


def _plain(preset: Preset) -> dict[str, Any]:
    """A preset as JSON holds it."""
    plain = asdict(preset)
    recipe = plain["recipe"]
    plain["recipe"] = {k: None if v == math.inf else v for k, v in recipe.items()}
    return plain
