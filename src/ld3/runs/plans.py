"""The result of a run as a plan, with its scores on held-out seeds."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from ld3 import __version__, zoo
from ld3.errors import ModelError
from ld3.known_grids import BUMPS, GRIDS, HANDMADE, METHODS, make_grid
from ld3.learner.presets import Preset
from ld3.plan import (
    ModelPart,
    Plan,
    Provenance,
    SolverPart,
    StartsPart,
    TablePart,
    rows_of,
    tuned_to_json,
)
from ld3.runs.run import Learned, Run, recipe_facts
from ld3.runs.session import Session, means
from ld3.runs.set_metrics import SetMetrics
from ld3.runs.spec import RunSpec, Settings
from ld3.schedule_json import schedule_to_json
from ld3.scores import Scores, best_of
from ld3.seeds import seeds_for
from ld3.solvers import SOLVERS, Solver
from ld3.table import Table, TunedSolver
from ld3.zoo.pipelines.model import PipelineModel

ROUNDED = 16  # held-out seeds on which the rounding of network times is measured
UNSCORED = ("out", "tensorboard", "refine")  # options that say nothing about a plan


def plan_of(run: Run, learned: Learned, spec: Settings, scores: Mapping[str, Scores]) -> Plan:
    """A learned solver with its provenance."""
    names = ("start", "secant", "evaluations", "passes", "skipped", "validation")
    facts = {name: getattr(learned, name) for name in names}
    starts = asdict(learned.starts)
    starts["chosen"] = list(starts.pop("names"))
    facts["starts"] = StartsPart(**starts)
    return make_plan(run, spec, run.nfe, learned.tuned, facts, scores=dict(scores))


def make_plan(
    run: Run, spec: Settings, nfe: int, tuned: TunedSolver, facts: Mapping[str, Any], **parts: Any
) -> Plan:
    """A plan for the model of a run; `facts` are those of its learning, `parts` of the plan."""
    session, loaded, model = run.session, run.session.loaded, run.session.model
    check = session.check
    return Plan(
        nfe=nfe,
        schedule=schedule_to_json(model.schedule),
        model=ModelPart(
            name=loaded.name,
            digest=loaded.digest,
            shape=list(model.shape),
            prediction=model.prediction,
            conditions=loaded.conditions,
            guidance=run.scales[0],
            guidance_range=list(run.scales[1:]) or None,
            options=loaded.options,
        ),
        learned=Provenance(
            spec=stored_options(spec),
            preset=preset_facts(run.preset),
            reference=asdict(session.reference),
            teacher_check={"error": check.error, "student": check.student} if check else {},
            distance=session.measure.title,
            teacher_evaluations=run.teacher_evaluations,
            versions={"ld3": __version__, "torch": str(torch.__version__)},
            **facts,
        ),
        **solver_numbers(session, tuned),
        **parts,
    )


def solver_numbers(session: Session, tuned: TunedSolver) -> dict[str, Any]:
    """Times and corrections of a plan; the whole table for a solver that is not in the registry."""
    solver, numbers, own = tuned.solver, tuned_to_json(tuned), None
    if SOLVERS.get(solver.name) is not type(solver):
        table = replace(tuned, guidance=None).table(session.model.schedule)
        own = TablePart(rows=rows_of(table.weights[1:]) or [], net_times=table.net_times.tolist())
        numbers["corrections"] = None  # they are in the table
    part = SolverPart(name=solver.name, order=solver.order, variant=solver.variant, table=own)
    version = "ld3-plan-1" if tuned.guidance is None else "ld3-plan-2"
    return {**numbers, "format": version, "solver": part}


def held_out_scores(run: Run, learned: Learned, spec: RunSpec, held_out: int) -> dict[str, Scores]:
    """Every known grid, the start and the learned solver on the same held-out seeds.

    For shipped models of images, and where data is given, also the Fréchet distances of the
    reference, of the best hand-made and the best known grid, and of the plan.
    """
    session = run.session
    names = [*GRIDS, *([learned.start] if learned.start in BUMPS else [])]
    tables = {name: known_table(session, run.solver, run.steps, name) for name in names}
    tables["learned"] = session.table(learned.tuned)
    scores = score_tables(session, tables, held_out)
    compared = {name: tables[name] for name in (best_of(scores, METHODS), "learned")}
    for scale in run.scales[1:]:  # the ends of a range
        found = score_tables(session.at_guidance(scale), compared, held_out)
        scores |= {f"{name} @ {scale:g}": score for name, score in found.items()}
    shipped = zoo.has_features(session.loaded.name)
    if spec.judged < 2 or not (shipped or spec.data is not None):
        return scores
    sets = SetMetrics.of(session, spec.judged, spec.features, spec.data, spec.resize)
    best = best_of(scores, HANDMADE), best_of(scores, METHODS)
    shown = dict.fromkeys(("accurate", *best, "learned"))
    for done, name in enumerate(shown):
        own = scores.get(name, Scores(distance=0.0, to_teacher=0.0, to_accurate=0.0))
        scores[name] = own.model_copy(update=sets.frechet(tables.get(name)))
        session.report("Fréchet distance", done + 1, len(shown))
    return scores


def score_tables(session: Session, tables: Mapping[str, Table], held_out: int) -> dict[str, Scores]:
    """Means over held-out seeds; a table whose samples are not finite has none."""
    scores = {}
    each = session.scores(list(tables.values()), held_out)
    for done, (name, errors) in enumerate(zip(tables, each, strict=True)):
        found = means(errors)
        if found:
            scores[name] = Scores(
                distance=found["distance"],
                to_teacher=found["rmse"],
                to_accurate=found["rmse_accurate"],
            )
        elif name in ("learned", "plan"):
            raise ModelError(
                f"{name}: got samples that are not finite on held-out noise, expected finite ones; "
                "learn with another --start or --seed, or a smaller --recipe rate=0.02"
            )
        session.report("scoring on held-out noise", done + 1, len(tables))
    return scores


def known_table(session: Session, solver: Solver, steps: int, name: str) -> Table:
    """A solver on a known grid."""
    return session.table(TunedSolver(solver, make_grid(name, session.model.schedule, steps)))


def with_rounding(plan: Plan, session: Session, held_out: int) -> Plan:
    """A pipeline's plan with the error of rounding the network's times."""
    model = session.model
    if not isinstance(model, PipelineModel) or not held_out:
        return plan
    seeds = seeds_for("held-out", min(ROUNDED, held_out))
    cost = zoo.rounding_cost(model, plan.table(), seeds, session.guidance)
    return plan.model_copy(update={"learned": plan.learned.model_copy(update={"rounding": cost})})


def stored_options(spec: Settings) -> dict[str, Any]:
    """The options of a run that are set, as JSON holds them."""
    given = spec.model_dump(mode="json", exclude=set(UNSCORED))
    return {k: v for k, v in given.items() if not (v is None or v is False or v == {})}


def preset_facts(preset: Preset) -> dict[str, Any]:
    """A preset as JSON holds it."""
    facts = {"algorithm": type(preset.recipe).__name__, "recipe": recipe_facts(preset.recipe)}
    return {**vars(preset), **facts, "teacher": asdict(preset.teacher)}
