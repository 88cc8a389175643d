"""The walk of `ld3 learn`: from a spec to plans, and the same for objects without a folder."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ld3.distances import Distance
from ld3.errors import SpecError
from ld3.known_grids import METHODS
from ld3.learner.recipes import Recipe
from ld3.models import Model
from ld3.parameters import GUIDANCE
from ld3.plan import Plan
from ld3.report.bar import progress_bar
from ld3.runs.budget import learn_budget, with_candidates
from ld3.runs.cache import Cache
from ld3.runs.descent import SO_FAR, saved_so_far
from ld3.runs.expected import learn_parts
from ld3.runs.plans import held_out_scores, plan_of, with_rounding
from ld3.runs.progress import Report, expect, resumable, silent
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.run import Learned, Run, forget, learn_run, read_start, start_from_plan
from ld3.runs.session import Session, open_session, reference_for
from ld3.runs.set_metrics import SetMetrics
from ld3.runs.spec import MAX_PASSES, RunSpec, counts_within
from ld3.runs.teacher_check import with_checked_teacher
from ld3.scores import FamilyScores, Scores, best_of
from ld3.solvers import Solver
from ld3.store import digest


@dataclass(frozen=True)
class LearnResult:
    """A finished run, for one number of evaluations or for a range."""

    plan: Plan
    folder: Path

    @property
    def scores(self) -> dict[str, Scores]:
        return {name: s for name, s in self.plan.scores.items() if isinstance(s, Scores)}

    @property
    def rows(self) -> tuple[FamilyScores, ...]:
        """Held-out distances of a range, one row per number of evaluations."""
        return tuple(s for s in self.plan.scores.values() if isinstance(s, FamilyScores))

    @property
    def best_grid(self) -> str:
        """The best of the known grids, hand-made or published."""
        return best_of(self.scores, METHODS)


def run_learn(
    spec: RunSpec,
    report: Report = silent,
    fresh: bool = False,
    model: Model | None = None,
    *,
    solver: Solver | None = None,
    distance: Distance | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[LearnResult]:
    """Learn a plan for each number of evaluations; unfinished runs are resumed.

    `model`, `solver` and `distance` are objects to use instead of the names in the spec. `fresh`
    begins anew: pairs and scores are made again, too. `ranks` share the work; rank 0 writes.
    """
    cache = Cache.open(spec.out / "cache", time.time() if fresh else 0.0, ranks)
    session = None

    def stored(run: Run) -> Run:
        folder = run_folder(spec, run, run.key)
        if fresh and ranks.is_first:
            forget(folder)
        return run.stored(folder)

    for nfe in spec.nfe if spec.passes is None else (max(spec.nfe),):
        teacher = spec.make_preset(nfe).teacher
        if session is None:
            session = open_session(
                spec, teacher, cache, report, model=model, distance=distance,
                gradients=not spec.gradient_free,
            )  # fmt: skip
            if spec.judged >= 2 and (spec.data is not None or spec.features is not None):
                SetMetrics.of(session, spec.judged, spec.features, spec.data, spec.resize)
        own = session.with_teacher(teacher, reference_for(teacher, spec.reference_steps))
        make_run(spec, own, nfe, solver)  # what does not fit is found before any work
        own = with_checked_teacher(own, spec, solver or spec.make_solver(), nfe)
        run = make_run(spec, own, nfe, solver)
        if spec.passes is None:
            plan = finish(stored(run), spec, spec.held_out)
        else:
            plan, run = _within_passes(run, spec, spec.held_out, stored)
        yield LearnResult(plan, run_folder(spec, run, run.key))


def _within_passes(
    run: Run, spec: RunSpec, held_out: int, stored: Callable[[Run], Run]
) -> tuple[Plan, Run]:
    """The best plan for a number of passes, and its run; `stored` gives a run its folder."""
    chosen = learn_budget(run, spec, stored, lambda own: _learned(own, spec))
    plan = with_candidates(_scored(chosen.run, spec, held_out, chosen.learned), chosen)
    _save(chosen.run, plan)
    return plan, chosen.run


def make_run(spec: RunSpec, session: Session, nfe: int, solver: Solver | None = None) -> Run:
    """The run of a spec for one number of evaluations."""
    solver, start = solver or spec.make_solver(), read_start(spec.start)
    preset, scales = replace(spec.make_preset(nfe), teacher=session.teacher), spec.guidances
    guided = None
    if isinstance(start, Plan) and start.guidance is not None and spec.learns_guidance:
        guided = tuple(start.guidance.guided)
    run = Run(session, solver, nfe, preset, spec.seed, start, spec.slope, scales, guided)
    if isinstance(start, Plan):
        start_from_plan(start, run)  # whether it fits, before any work
    return run


def run_folder(spec: RunSpec, run: Run, key: Mapping[str, Any], parent: Path | None = None) -> Path:
    """A folder named by model, solver, NFE and a digest of all that changes the plan; in `parent`,
    or in that of the spec."""
    name = Path(run.session.loaded.name).name  # of a file or folder its last part
    slug = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)[-80:]
    solver = f"{run.solver.name}{run.solver.order}"
    nfe = f"{run.nfe}" if spec.family is None else "{}-{}".format(*spec.family)
    return (parent or spec.out) / f"{slug}-{solver}-nfe{nfe}-{digest(key)}"


def finish(run: Run, spec: RunSpec, held_out: int) -> Plan:
    """Learn, score unless `held_out` is 0, and write the plan if the run has a folder."""
    plan = _scored(run, spec, held_out, _learned(run, spec))
    _save(run, plan)
    return plan


def _learned(run: Run, spec: RunSpec) -> Learned:
    """Learn; what was reached is in a file when the run is interrupted, and until it is scored."""

    def save_so_far(learned: Learned) -> None:
        if run.folder is not None:
            plan_of(run, learned, spec, {}).save(run.folder / SO_FAR)

    learned = learn_run(run, save_so_far, spec.tensorboard)
    if run.folder is not None and not (run.folder / "plan.json").exists():
        save_so_far(learned)
    return learned


def _scored(run: Run, spec: RunSpec, held_out: int, learned: Learned) -> Plan:
    with resumable(saved_so_far(run.folder)):
        scores = held_out_scores(run, learned, spec, held_out) if held_out else {}
    return with_rounding(plan_of(run, learned, spec, scores), run.session, held_out)


def _save(run: Run, plan: Plan) -> None:
    if run.folder is not None:
        plan.save(run.folder / "plan.json")
        (run.folder / SO_FAR).unlink(missing_ok=True)


def learn(
    model: Model | str,
    *,
    solver: Solver | str = "dpmpp",
    nfe: int | None = None,
    passes: int | None = None,
    distance: Distance | str = "auto",
    preset: str = "standard",
    recipe: Recipe | dict[str, Any] | None = None,
    pairs: int | None = None,
    guidance: float = 1.0,
    start: str = "best",
    seed: int = 0,
    held_out: int = 64,
    device: str = "cpu",
    batch: int | None = None,
    out: Path | str | None = None,
    progress: bool | Report = True,
) -> Plan:
    """Learn a plan: which times a solver visits to sample a model in `nfe` evaluations (5).

    With `passes` P and a guidance scale, a guided evaluation is two passes: the plan has N
    evaluations with N < P <= 2 N, of which P - N are guided; without `nfe`, N is found, too.
    `model`, `solver` and `distance` are objects, or names as on the command line. `recipe` changes
    settings of the preset. The plan holds scores on `held_out` seeds; 0 leaves them out. Nothing is
    written unless `out` names a folder, from which an interrupted run is resumed. `progress` shows
    a bar, or is a function of (what, done, total).
    """
    if nfe is not None and not isinstance(nfe, int):
        raise SpecError(f"nfe: got {nfe!r}, expected one whole number; run_learn takes several")
    counts = None if nfe is None else [nfe]
    if counts is None and isinstance(passes, int) and not isinstance(solver, str):
        counts = counts_within(min(passes, MAX_PASSES), solver.nfe(1))
    given = {"model": model, "solver": solver, "distance": distance, "recipe": recipe}
    named = {name: value for name, value in given.items() if isinstance(value, str | dict)}
    objects: dict[str, Any] = dict.fromkeys(given) | {
        name: value for name, value in given.items() if name not in named
    }
    options = {
        "nfe": counts, "passes": passes, "preset": preset, "pairs": pairs, "guidance": guidance,
        "start": start, "seed": seed, "device": device, "batch": batch,
        "held_out": held_out or None, "out": out, "judged": 0,
    }  # fmt: skip
    spec = RunSpec.read(options | named)
    nfe, made = max(spec.nfe), objects["solver"] or spec.make_solver()
    if passes is not None and isinstance(recipe, Recipe) and GUIDANCE not in recipe.groups:
        raise SpecError(
            f"recipe: got learn={recipe.learn!r} with passes, expected one that ends in +guidance"
        )
    with progress_bar(progress) as report:
        cache = Cache(None if out is None else spec.out / "cache")
        session = open_session(
            spec, spec.make_preset(nfe).teacher, cache, report,
            model=objects["model"], distance=objects["distance"],
        )  # fmt: skip
        expect(report, learn_parts(spec, made))
        run = make_run(spec, with_checked_teacher(session, spec, made, nfe), nfe, made)
        if objects["recipe"] is not None:
            run = replace(run, preset=replace(run.preset, recipe=objects["recipe"]))

        def stored(own: Run) -> Run:
            return own if out is None else own.stored(run_folder(spec, own, own.key))

        if passes is None:
            return finish(stored(run), spec, held_out)
        return _within_passes(run, spec, held_out, stored)[0]
