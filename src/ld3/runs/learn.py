"""The walk of `ld3 learn`: from a spec to plans, and the same for objects without a folder."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ld3.distances import Distance
from ld3.errors import SpecError
from ld3.known_grids import METHODS
from ld3.learner.recipes import Recipe
from ld3.models import Model
from ld3.plan import Plan
from ld3.report.bar import progress_bar
from ld3.runs.cache import Cache
from ld3.runs.descent import SO_FAR, how_to_go_on
from ld3.runs.plans import held_out_scores, plan_of, with_rounding
from ld3.runs.progress import Interrupted, Report, silent
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.run import Learned, Run, learn_run, read_start
from ld3.runs.session import Session, open_session, reference_for
from ld3.runs.spec import RunSpec
from ld3.scores import Scores, best_of
from ld3.solvers import Solver
from ld3.store import digest


@dataclass(frozen=True)
class LearnResult:
    """A finished run for one number of evaluations."""

    plan: Plan
    folder: Path
    scores: dict[str, Scores]

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
    for nfe in spec.nfe:
        preset = spec.make_preset(nfe)
        if session is None:
            session = open_session(
                spec, preset.teacher, cache, report, model=model, distance=distance,
                gradients=not spec.gradient_free,
            )  # fmt: skip
            session = session.at_guidance(spec.guidances[0])
        own = session.with_teacher(
            preset.teacher, reference_for(preset.teacher, spec.reference_steps)
        )
        run = make_run(spec, own, nfe, solver)
        yield finish(run, spec, fresh)


def make_run(spec: RunSpec, session: Session, nfe: int, solver: Solver | None = None) -> Run:
    """What a spec asks for at one number of evaluations."""
    solver, start = solver or spec.make_solver(), read_start(spec.start)
    preset, scales = spec.make_preset(nfe), spec.guidances
    return Run(session, solver, nfe, preset, spec.seed, start, spec.slope, scales)


def run_folder(spec: RunSpec, run: Run) -> Path:
    """A folder whose name says what it is, and a digest of all that changes the plan."""
    name = Path(run.session.loaded.name).name  # of a file or folder its last part
    slug = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)[-80:]
    solver = f"{run.solver.name}{run.solver.order}"
    nfe = f"{run.nfe}" if spec.family is None else "{}-{}".format(*spec.family)
    return spec.out / f"{slug}-{solver}-nfe{nfe}-{digest(run.key)}"


def finish(run: Run, spec: RunSpec, fresh: bool = False) -> LearnResult:
    """Learn, score, and write the plan, to a folder of its own."""
    folder, writes = run_folder(spec, run), run.session.ranks.is_first
    run = run.stored(folder)
    if fresh and writes:
        for file in ("result.json", "starts.json", *(f"state-{n}.safetensors" for n in range(9))):
            (folder / file).unlink(missing_ok=True)

    def save_so_far(learned: Learned) -> None:
        if writes:
            plan_of(run, learned, spec, {}).save(folder / SO_FAR)

    learned = learn_run(run, save_so_far, spec.tensorboard)
    if not (folder / "plan.json").exists():
        save_so_far(learned)
    try:
        scores = held_out_scores(run, learned, spec.held_out, spec.judged)
    except KeyboardInterrupt:
        raise Interrupted(how_to_go_on(folder)) from None
    plan = with_rounding(plan_of(run, learned, spec, scores), run.session, spec.held_out)
    if writes:
        plan.save(folder / "plan.json")
        (folder / SO_FAR).unlink(missing_ok=True)
    return LearnResult(plan, folder, scores)


def learn(
    model: Model | str,
    *,
    solver: Solver | str = "dpmpp",
    nfe: int = 5,
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
    """Learn a plan: which times a solver visits to sample a model in `nfe` evaluations.

    `model`, `solver` and `distance` are objects, or names as on the command line. `recipe` changes
    settings of the preset. Scores on `held_out` noise stand in the plan; 0 leaves them out. Nothing
    is written unless `out` names a folder, where an interrupted run also goes on. `progress` shows
    a bar, or is a function of (what, done, total).
    """
    if not isinstance(nfe, int):
        raise SpecError(f"nfe: got {nfe!r}, expected one whole number; run_learn takes several")
    options: dict[str, Any] = {
        "nfe": (nfe,), "preset": preset, "pairs": pairs, "guidance": guidance, "start": start,
        "seed": seed, "device": device, "batch": batch, "judged": 0,
    }  # fmt: skip
    options |= {"held_out": held_out} if held_out else {}
    options |= {"recipe": recipe} if isinstance(recipe, dict) else {}
    for name, value in (("model", model), ("solver", solver), ("distance", distance)):
        options |= {name: value} if isinstance(value, str) else {}
    if out is not None:
        options["out"] = Path(out)
    spec = RunSpec(**{name: value for name, value in options.items() if value is not None})
    objects: dict[str, Any] = {
        "model": None if isinstance(model, str) else model,
        "distance": None if isinstance(distance, str) else distance,
    }
    with progress_bar(progress) as report:
        made = spec.make_preset(nfe)
        cache = Cache(None if out is None else spec.out / "cache")
        session = open_session(spec, made.teacher, cache, report, **objects)
        run = make_run(spec, session, nfe, None if isinstance(solver, str) else solver)
        if recipe is not None and not isinstance(recipe, dict):
            run = run.with_recipe(recipe)
        if out is not None:
            return finish(run, spec).plan
        learned = learn_run(run)
        scores = held_out_scores(run, learned, held_out, 0) if held_out else {}
        return plan_of(run, learned, spec, scores)
