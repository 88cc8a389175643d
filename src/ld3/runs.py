"""From a spec to a plan: the walk of `ld3 learn`, as plain functions.

Seeds never overlap: learning pairs, validation pairs and held-out noise come from ranges of their
own, and scores are always on held-out noise as the solver would get it.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3 import __version__, zoo
from ld3.discretizers import METHODS, make_grid
from ld3.discretizers.ld3.learn import (
    Problem,
    Progress,
    State,
    Student,
    begin,
    finished,
    learn,
)
from ld3.discretizers.ld3.presets import Preset, make_preset
from ld3.distances import DISTANCES, Distance
from ld3.errors import ModelError, PlanError, SpecError, unknown
from ld3.grids import TimeGrid, knots
from ld3.lpips import load_lpips
from ld3.metrics import Moments, frechet_distance
from ld3.models import Model, bind_network, check_model, prior
from ld3.plan import ModelPart, Plan, SolverPart
from ld3.schedules import schedule_to_json
from ld3.solvers import Solver, make_solver
from ld3.spec import RunSpec
from ld3.store import digest, read_tensors, sweep, write_bytes, write_tensors
from ld3.table import compile_table
from ld3.teacher import Pairs, teach

VALID, HELD, JUDGED = 1_000_000_000, 2_000_000_000, 3_000_000_000  # where seeds begin
HAND_MADE = tuple(name for name in METHODS if not name.startswith("paper-"))
ACCURATE = 60  # steps of UniPC-3 on the logSNR grid
BATCH = 100

Tell = Callable[[str, int, int], None]
"""Told what is being done, how far it is, and out of how much."""


@dataclass(frozen=True)
class Loaded:
    """A model with its name and the digest of its weights."""

    model: Model
    name: str
    digest: str
    conditions: str


def load_model(name: str, device: str) -> Loaded:
    """A shipped model by name, or `package.module:function` that returns a model."""
    if name in zoo.SHIPPED:
        card = zoo.SHIPPED[name]
        return Loaded(zoo.load(name, device), name, card.digest, card.conditions)
    module, _, function = name.partition(":")
    if not function:
        raise unknown("model", name, [*zoo.SHIPPED, "package.module:function"])
    sys.path.insert(0, "")
    try:
        model = getattr(import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ModelError(f"model {name}: {error}") from None
    finally:
        sys.path.remove("")
    check_model(model, device=device)
    return Loaded(model, name, getattr(model, "digest", "unknown"), "")


def make_distance(name: str, loaded: Loaded) -> Distance:
    """By name; `auto` is perceptual for shipped models and l2 for all others."""
    shipped = loaded.name in zoo.SHIPPED
    if name == "auto":
        name = "perceptual" if shipped else "l2"
    if name == "perceptual" and shipped:
        return zoo.perceptual()
    if name in ("lpips-vgg", "lpips-alex"):
        return load_lpips("vgg" if name == "lpips-vgg" else "alex")
    if name not in DISTANCES:
        raise unknown("distance", name, ["auto", "lpips-alex", "lpips-vgg", *DISTANCES])
    return DISTANCES[name]


@dataclass(frozen=True)
class Scores:
    """One grid on held-out noise."""

    distance: float  # to the teacher, in the distance that was learned with
    to_teacher: float  # root mean square
    to_accurate: float
    frechet: float | None = None


@dataclass(frozen=True)
class Learned:
    """A finished run for one number of evaluations."""

    plan: Plan
    folder: Path
    scores: dict[str, Scores]
    best_hand_made: str


def run_learn(spec: RunSpec, tell: Tell, fresh: bool = False) -> Iterator[Learned]:
    """Learn a plan for each number of evaluations asked for; unfinished runs are resumed."""
    loaded = load_model(spec.model, spec.device)
    distance = make_distance(spec.distance, loaded)
    solver = make_solver(spec.solver, spec.order, spec.variant)
    for nfe in spec.nfe:
        yield _learn_one(spec, loaded, distance, solver, nfe, tell, fresh)


def _learn_one(
    spec: RunSpec,
    loaded: Loaded,
    distance: Distance,
    solver: Solver,
    nfe: int,
    tell: Tell,
    fresh: bool,
) -> Learned:
    model = loaded.model
    steps = _steps(solver, nfe)
    preset = make_preset(spec.preset, nfe, spec.pairs)
    recipe = replace(preset.recipe, learn_net=spec.learn == "times+net")
    preset = replace(preset, recipe=recipe)
    identity = spec.model_dump(mode="json", exclude={"out", "nfe"}) | {
        "nfe": nfe, "weights": loaded.digest, "version": __version__,
    }  # fmt: skip
    folder = (
        spec.out / f"{_slug(spec.model)}-{solver.name}{solver.order}-nfe{nfe}-{digest(identity)}"
    )
    sweep(folder)
    if (folder / "plan.json").exists() and not fresh:
        return _finished(folder)
    train, valid, held = (
        _pairs(spec, loaded, preset, seeds, what, tell)
        for what, seeds in (
            ("learning pairs", range(10_000 * spec.seed, 10_000 * spec.seed + preset.train)),
            ("validation pairs", range(VALID, VALID + preset.valid)),
            ("held-out pairs", range(HELD, HELD + spec.held_out)),
        )
    )
    problem = Problem(model, solver, steps, distance, train, valid, spec.guidance)
    final = _descend(spec, preset, problem, folder, tell, fresh)
    scores = _score(spec, loaded, problem, final.grid, held, tell)
    best = min((name for name in scores if name in HAND_MADE), key=lambda n: scores[n].distance)
    plan = Plan(
        nfe=nfe,
        solver=SolverPart(name=solver.name, order=solver.order, variant=solver.variant),
        times=final.grid.times.tolist(),
        net_times=final.grid.net_times.tolist(),
        schedule=schedule_to_json(model.schedule),
        model=ModelPart(
            name=loaded.name,
            digest=loaded.digest,
            shape=list(model.shape),
            prediction=model.prediction,
            conditions=loaded.conditions,
            guidance=spec.guidance,
        ),
        learned={
            "spec": identity,
            "preset": _plain(preset),
            "evaluations": final.state.evaluations,
            "teacher_evaluations": preset.teacher.steps * (preset.train + preset.valid),
            "skipped": final.state.skipped,
            "validation": final.best,
            "versions": {"ld3": __version__, "torch": torch.__version__},
        },
        scores={name: asdict(score) for name, score in scores.items()},
    )
    plan.save(folder / "plan.json")
    return Learned(plan, folder, scores, best)


def _finished(folder: Path) -> Learned:
    """A run that was finished before."""
    plan = Plan.load(folder / "plan.json")
    try:
        scores = {name: Scores(**values) for name, values in plan.scores.items()}
        best = min((name for name in scores if name in HAND_MADE), key=lambda n: scores[n].distance)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"{folder / 'plan.json'}: scores: {error}; learn it again with --fresh"
        ) from None
    return Learned(plan, folder, scores, best)


def _pairs(
    spec: RunSpec, loaded: Loaded, preset: Preset, seeds: range, what: str, tell: Tell
) -> Pairs:
    teacher = preset.teacher
    ready = 0

    def progress(done: int) -> None:
        nonlocal ready
        ready += done
        tell(what, ready, len(seeds))

    return teach(
        loaded.model,
        loaded.digest,
        make_solver(teacher.solver, teacher.order, teacher.variant or None),
        make_grid(teacher.grid, loaded.model.schedule, teacher.steps),
        seeds,
        guidance=spec.guidance,
        folder=spec.out / "pairs",
        device=spec.device,
        progress=progress,
    )


def _descend(
    spec: RunSpec, preset: Preset, problem: Problem, folder: Path, tell: Tell, fresh: bool
) -> Progress:
    """Learn to the end, from where the run stands; the state is written after each iteration."""
    recipe = preset.recipe
    file = folder / "state.safetensors"
    log = folder / "progress.jsonl"
    state: State | None = None
    lines: list[str] = []
    if file.exists() and not fresh:
        state = State.from_tensors(read_tensors(file))
        lines = log.read_text().splitlines()[: state.iteration] if log.exists() else []
    if state is None:
        start, tried = _start(spec, problem, tell)
        state = begin(problem, recipe, start)
        state = replace(state, evaluations=state.evaluations + tried)
        write_tensors(file, state.to_tensors())
    last: Progress | None = None
    for progress in learn(problem, recipe, state, spec.seed):
        lines.append(
            json.dumps(
                {
                    "iteration": progress.iteration,
                    "loss": progress.loss if math.isfinite(progress.loss) else None,
                    "valid": progress.valid,
                    "best": progress.best,
                    "evaluations": progress.state.evaluations,
                }
            )
        )
        write_bytes(log, ("\n".join(lines) + "\n").encode())
        write_tensors(file, progress.state.to_tensors())
        valid = "" if progress.valid is None else f", valid {progress.valid:.5f}"
        tell(f"loss {progress.loss:.5f}{valid}, best {progress.best:.5f}",
             progress.iteration, progress.total)  # fmt: skip
        last = progress
    if last is not None:
        return last
    return finished(problem, recipe, state)


def _start(spec: RunSpec, problem: Problem, tell: Tell) -> tuple[TimeGrid, int]:
    """The grid to begin with, and the evaluations it took to find it.

    The best hand-made one on the validation pairs, or a named one, or that of a plan.
    """
    schedule, steps = problem.model.schedule, problem.steps
    if spec.start.endswith(".json"):
        return Plan.load(spec.start).grid.checked(schedule, steps), 0
    if spec.start != "best":
        return make_grid(spec.start, schedule, steps), 0
    student = Student(problem)
    losses = {}
    for done, name in enumerate(HAND_MADE):
        grid = make_grid(name, schedule, steps)
        losses[name] = student.mean_loss(grid, problem.valid.noise, fixed=True)
        tell("trying starts", done + 1, len(HAND_MADE))
    best = min(losses, key=lambda name: losses[name])
    return make_grid(best, schedule, steps), student.evaluations


def _score(
    spec: RunSpec, loaded: Loaded, problem: Problem, grid: TimeGrid, held: Pairs, tell: Tell
) -> dict[str, Scores]:
    """Every hand-made grid and the learned one on held-out noise."""
    model, solver = problem.model, problem.solver
    x = model.schedule.prior_std * held.noise
    cond = held.cond
    accurate = _sampler(model, make_solver("unipc"), "logsnr", ACCURATE, spec.guidance)(x, cond)
    grids = {name: make_grid(name, model.schedule, problem.steps) for name in HAND_MADE}
    grids["learned"] = grid
    scores = {}
    for done, (name, candidate) in enumerate(grids.items()):
        sample = _sampler(model, solver, candidate, problem.steps, spec.guidance)(x, cond)
        with torch.no_grad():
            scores[name] = Scores(
                float(problem.distance(sample, held.target).mean()),
                _rms(sample, held.target),
                _rms(sample, accurate),
            )
        tell("scoring on held-out noise", done + 1, len(grids))
    if loaded.name not in zoo.SHIPPED or spec.judged < 2:
        return scores
    best = min(HAND_MADE, key=lambda name: scores[name].distance)
    judged = {
        "accurate": _sampler(model, make_solver("unipc"), "logsnr", 20, spec.guidance),
        best: _sampler(model, solver, grids[best], problem.steps, spec.guidance),
        "learned": _sampler(model, solver, grid, problem.steps, spec.guidance),
    }
    for done, (name, sampler) in enumerate(judged.items()):
        value = _frechet(model, sampler, spec.judged, spec.device)
        old = scores.get(name, Scores(0.0, 0.0, 0.0))
        scores[name] = Scores(old.distance, old.to_teacher, old.to_accurate, value)
        tell("Fréchet distance", done + 1, len(judged))
    return scores


Sampler = Callable[[Tensor, Any], Tensor]


def _sampler(
    model: Model, solver: Solver, grid: TimeGrid | str, steps: int, guidance: float
) -> Sampler:
    times = make_grid(grid, model.schedule, steps) if isinstance(grid, str) else grid
    table = compile_table(solver, knots(model.schedule, times), model.prediction)

    @torch.no_grad()
    def sample(x: Tensor, cond: Any) -> Tensor:
        return model.decode(table.run(bind_network(model, cond, guidance=guidance), x))

    return sample


def _frechet(model: Model, sampler: Sampler, count: int, device: str) -> float:
    """Of some samples to the test set, by the judge's features."""
    judge = zoo.judge(device)

    def features() -> Iterator[Tensor]:
        for first in range(0, count, BATCH):
            seeds = range(JUDGED + first, JUDGED + min(first + BATCH, count))
            sample = sampler(prior(model, seeds, device), model.conditions(seeds))
            with torch.no_grad():
                yield judge.features(sample.clamp(-1, 1))

    return frechet_distance(Moments.of(features()), zoo.judge_moments())


def run_sample(
    plan: Plan, seeds: Sequence[int], device: str, force: bool, batch: int = BATCH
) -> Tensor:
    """Decoded samples of a plan, the same for a seed whatever the batch."""
    loaded = load_model(plan.model.name, device)
    if not force:
        plan.check_fits(loaded.model, loaded.digest)
    table, model = plan.table(), loaded.model
    parts = []
    for first in range(0, len(seeds), batch):
        part = seeds[first : first + batch]
        network = bind_network(model, model.conditions(part), guidance=plan.model.guidance)
        with torch.no_grad():
            parts.append(model.decode(table.run(network, prior(model, part, device))))
    return torch.cat(parts)


def _rms(a: Tensor, b: Tensor) -> float:
    return float((a - b).flatten(1).square().mean(1).sqrt().mean())


def _steps(solver: Solver, nfe: int) -> int:
    steps = nfe // solver.nfe(1)
    if steps < 1 or solver.nfe(steps) != nfe:
        raise SpecError(
            f"nfe: got {nfe}, wanted a multiple of {solver.nfe(1)}: "
            f"{solver.name} takes {solver.nfe(1)} evaluations a step"
        )
    return steps


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)


def _plain(preset: Preset) -> dict[str, Any]:
    """A preset as JSON holds it."""
    plain = asdict(preset)
    recipe = plain["recipe"]
    plain["recipe"] = {k: None if v == math.inf else v for k, v in recipe.items()}
    return plain
