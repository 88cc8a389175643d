"""The walk of `ld3 learn`: from a spec to plans, and the same for objects without a folder."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
from ld3.runs.descent import SO_FAR, resumable
from ld3.runs.plans import held_out_scores, plan_of, with_rounding
from ld3.runs.progress import Report, silent
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.run import Learned, Run, forget, learn_run, read_start
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

    @property
    def scores(self) -> dict[str, Scores]:
        return {name: s for name, s in self.plan.scores.items() if isinstance(s, Scores)}

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
        teacher = spec.make_preset(nfe).teacher
        if session is None:
            session = open_session(
                spec, teacher, cache, report, model=model, distance=distance,
                gradients=not spec.gradient_free,
            )  # fmt: skip
        own = session.with_teacher(teacher, reference_for(teacher, spec.reference_steps))
        run = make_run(spec, own, nfe, solver)
        folder = run_folder(spec, run, run.key)
        if fresh and ranks.is_first:
            forget(folder)
        yield LearnResult(finish(run.stored(folder), spec, spec.held_out), folder)


def make_run(spec: RunSpec, session: Session, nfe: int, solver: Solver | None = None) -> Run:
    """What a spec asks for at one number of evaluations."""
    solver, start = solver or spec.make_solver(), read_start(spec.start)
    preset, scales = spec.make_preset(nfe), spec.guidances
    return Run(session, solver, nfe, preset, spec.seed, start, spec.slope, scales)


def run_folder(spec: RunSpec, run: Run, key: Mapping[str, Any], parent: Path | None = None) -> Path:
    """A folder whose name says what it is, and a digest of all that changes the plan; in `parent`,
    or in that of the spec."""
    name = Path(run.session.loaded.name).name  # of a file or folder its last part
    slug = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)[-80:]
    solver = f"{run.solver.name}{run.solver.order}"
    nfe = f"{run.nfe}" if spec.family is None else "{}-{}".format(*spec.family)
    return (parent or spec.out) / f"{slug}-{solver}-nfe{nfe}-{digest(key)}"


def finish(run: Run, spec: RunSpec, held_out: int) -> Plan:
    """Learn, score unless `held_out` is 0, and write the plan if the run has a folder."""

    def save_so_far(learned: Learned) -> None:
        if run.folder is not None:
            plan_of(run, learned, spec, {}).save(run.folder / SO_FAR)

    learned = learn_run(run, save_so_far, spec.tensorboard)
    if run.folder is not None and not (run.folder / "plan.json").exists():
        save_so_far(learned)
    with resumable(run.folder):
        scores = held_out_scores(run, learned, spec, held_out) if held_out else {}
    plan = with_rounding(plan_of(run, learned, spec, scores), run.session, held_out)
    if run.folder is not None:
        plan.save(run.folder / "plan.json")
        (run.folder / SO_FAR).unlink(missing_ok=True)
    return plan


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
    given = {"model": model, "solver": solver, "distance": distance, "recipe": recipe}
    words = {name: value for name, value in given.items() if isinstance(value, str | dict)}
    objects: dict[str, Any] = {name: v for name, v in given.items() if name not in words}
    options = {
        "nfe": (nfe,), "preset": preset, "pairs": pairs, "guidance": guidance, "start": start,
        "seed": seed, "device": device, "batch": batch, "held_out": held_out or None, "out": out,
        "judged": 0,
    }  # fmt: skip
    spec = RunSpec.read(options | words)
    with progress_bar(progress) as report:
        session = open_session(
            spec, spec.make_preset(nfe).teacher,
            Cache(None if out is None else spec.out / "cache"), report,
            model=objects.get("model"), distance=objects.get("distance"),
        )  # fmt: skip
        run = make_run(spec, session, nfe, objects.get("solver"))
        if objects.get("recipe") is not None:
            run = replace(run, preset=replace(run.preset, recipe=objects["recipe"]))
        if out is not None:
            run = run.stored(run_folder(spec, run, run.key))
        return finish(run, spec, held_out)
