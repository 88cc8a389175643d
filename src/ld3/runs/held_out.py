"""How a run did: every known grid and the learned solver, on the same held-out noise."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from ld3 import zoo
from ld3.errors import StoreError
from ld3.grids import knots
from ld3.learner.presets import Teacher
from ld3.learner.starts import GRIDS
from ld3.metrics import Moments, frechet_distance
from ld3.runs.jobs import HELD, Job, pairs_for
from ld3.runs.kept import file_of, measure_of, remembered
from ld3.runs.starts import Starts
from ld3.scores import ACCURATE, ACCURATE_JUDGED, Scores, Tell, judged, sampler, score
from ld3.searches import BUMPS, HANDMADE, METHODS, make_grid
from ld3.solvers import make_solver
from ld3.store import read_tensors, write_tensors
from ld3.table import Table, Tuned, compile_table


def best_of(scores: Mapping[str, Scores], among: Collection[str]) -> str:
    """The grid with the smallest held-out distance."""
    return min((n for n in scores if n in among), key=lambda name: scores[name].distance)


def held_out_scores(job: Job, learned: Tuned, starts: Starts, tell: Tell) -> dict[str, Scores]:
    """Every known grid, the start and the learned solver on the same held-out noise.

    The Fréchet distance, for shipped models, is that of an accurate run, the best hand-made and the
    best known grid, and the plan. Scores are kept on disk, so that runs that share grids and noise
    share them.
    """
    spec, model = job.spec, job.loaded.model
    names = [*GRIDS, *(name for name in starts.chosen[:1] if name in BUMPS)]
    tables = {name: known_table(job, name) for name in names}
    tables["learned"] = compile_table(
        job.solver, knots(model.schedule, learned.grid), model.prediction, learned.corrections
    )
    scores = distances(job, tables, tell)
    compared = {name: tables[name] for name in (best_of(scores, METHODS), "learned")}
    for scale in job.guidances[1:]:  # how they do at the ends of a range
        found = distances(job.at_guidance(scale), compared, tell)
        scores |= {f"{name} @ {scale:g}": score for name, score in found.items()}
    if job.loaded.name not in zoo.SHIPPED or spec.judged < 2:
        return scores
    accurate = compile_table(
        make_solver("unipc"),
        knots(model.schedule, make_grid("logsnr", model.schedule, ACCURATE_JUDGED)),
        model.prediction,
    )
    shown = {"accurate": accurate}
    shown |= {
        n: tables[n] for n in (best_of(scores, HANDMADE), best_of(scores, METHODS), "learned")
    }
    real, seen = zoo.judge_moments(), {}
    for done, (name, table) in enumerate(shown.items()):
        seen[name] = _judged(job, table)
        tell("Fréchet distance", done + 1, len(shown))
        scores[name] = replace(
            scores.get(name, Scores(0.0, 0.0, 0.0)),
            frechet=frechet_distance(seen[name], real),
            frechet_accurate=frechet_distance(seen[name], seen["accurate"]),
        )
    return scores


def distances(job: Job, tables: Mapping[str, Table], tell: Tell) -> dict[str, Scores]:
    """Tables on the job's held-out noise, against its teacher and an accurate run."""
    seeds = range(HELD, HELD + job.spec.held_out)
    held = pairs_for(job, seeds, "held-out pairs", tell)
    fine = Teacher("unipc", 3, "bh1", "logsnr", ACCURATE)
    exact = pairs_for(job, seeds, "accurate samples", tell, fine).target
    model, what = job.loaded.model, ["distance", job.spec.held_out, *measure_of(job)]
    scores = {}
    for done, (name, table) in enumerate(tables.items()):

        def measure(table: Table = table) -> dict[str, Any]:
            return asdict(score(model, table, job.distance, held, exact, job.guidances[0]))

        scores[name] = Scores(**remembered(job, table, what, measure))
        tell("scoring on held-out noise", done + 1, len(tables))
    return scores


def known_table(job: Job, name: str) -> Table:
    """The job's solver on a known grid."""
    model = job.loaded.model
    k = knots(model.schedule, make_grid(name, model.schedule, job.steps))
    return compile_table(job.solver, k, model.prediction)


def _judged(job: Job, table: Table) -> Moments:
    """How the judge sees samples of a table, from disk if it looked before."""
    spec = job.spec
    what = ["judged", spec.judged, zoo.checksum("judge")]
    file = file_of(job, table, what, "safetensors")
    if file.exists():
        with suppress(StoreError, KeyError):
            kept = read_tensors(file)
            return Moments(spec.judged, kept["total"], kept["outer"])
    draw = sampler(job.loaded.model, table, job.guidances[0])
    moments = judged(job.loaded.model, draw, spec.judged, spec.device)
    write_tensors(file, {"total": moments.total, "outer": moments.outer})
    return moments
