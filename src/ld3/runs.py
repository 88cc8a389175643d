"""From a spec to a plan: the walk of `ld3 learn`, as plain functions.

Seeds never overlap: learning pairs, validation pairs and held-out noise come from ranges of their
own, and scores are always on held-out noise as the solver would get it.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3 import __version__, zoo
from ld3.discretizers import BUMPS, HANDMADE, METHODS, make_grid
from ld3.discretizers.ld3.learn import (
    Progress,
    State,
    begin_with,
    finished,
    learn_all,
    tuning_of,
)  # fmt: skip
from ld3.discretizers.ld3.presets import Preset, Teacher, make_preset, without_gradients
from ld3.discretizers.ld3.student import ROUGH, SECANT, Problem, Student, roughness
from ld3.discretizers.ld3.tuning import Numbers, Tuning, tuned_table
from ld3.discretizers.starts import GRIDS, SCREEN, TRIED, finalists, ranked
from ld3.distances import Distance
from ld3.errors import Ld3Error, PlanError, SpecError, StoreError
from ld3.grids import knots
from ld3.loading import Loaded, load_model, make_distance, of_model
from ld3.metrics import Moments, frechet_distance
from ld3.models import Model, bind_network, prior
from ld3.plan import ModelPart, Plan, SolverPart
from ld3.schedules import schedule_to_json
from ld3.scores import ACCURATE, BATCH, Scores, Tell, judged, sampler, score, silent
from ld3.solvers import Solver, make_solver
from ld3.spec import DTYPES, RunSpec
from ld3.store import digest, read_json, read_tensors, sweep, write_bytes, write_json, write_tensors
from ld3.table import Table, Tuned, compile_table
from ld3.teacher import Pairs, teach
from ld3.zoo.pipelines.model import PipelineModel

VALID, HELD = 1_000_000_000, 2_000_000_000  # where seeds begin
ROUNDED = 16  # held-out noises on which the rounding of network times is measured


@dataclass(frozen=True)
class Learned:
    """A finished run for one number of evaluations."""

    plan: Plan
    folder: Path
    scores: dict[str, Scores]

    @property
    def best_grid(self) -> str:
        """The best of the known grids, hand-made or published."""
        return _best(self.scores, METHODS)


def _best(scores: Mapping[str, Scores], among: Collection[str]) -> str:
    return min((n for n in scores if n in among), key=lambda name: scores[name].distance)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with word of what was saved."""


@dataclass(frozen=True)
class Job:
    """One run: one model, one solver, one number of evaluations."""

    spec: RunSpec
    loaded: Loaded
    distance: Distance
    solver: Solver
    nfe: int
    preset: Preset

    @property
    def each(self) -> int:
        """Evaluations a step."""
        return self.solver.nfe(1)

    @property
    def steps(self) -> int:
        each = self.each
        if self.nfe < each or self.nfe % each:
            raise SpecError(
                f"nfe: got {self.nfe}, wanted a multiple of {each}: {self.solver.name} takes "
                f"{each} evaluations a step"
            )
        return self.nfe // each

    @property
    def seeds(self) -> tuple[range, range]:
        """Of learning and of validation."""
        first = 10_000 * self.spec.seed
        return range(first, first + self.preset.train), range(VALID, VALID + self.preset.valid)

    @property
    def guidances(self) -> tuple[float, ...]:
        """The scale to learn for; of a range the middle, and both ends."""
        low, high = self.spec.guidance, self.spec.guidance_to
        return (low,) if high is None else ((low + high) / 2, low, high)

    @property
    def identity(self) -> dict[str, Any]:
        """All that determines the result."""
        said = self.spec.model_dump(mode="json", exclude={"out", "nfe", "tensorboard", "refine"})
        asked = {  # words that were left out say nothing, so that new ones change no old name
            word: value
            for word, value in said.items()
            if not (value is None or value is False or value == {})
        }
        weights = {"weights": self.loaded.identity, "version": __version__}
        if self.loaded.name in zoo.SHIPPED:
            weights |= {name: zoo.checksum(name) for name in ("perceptual", "judge")}
        return asked | {"nfe": self.nfe} | weights

    @property
    def folder(self) -> Path:
        slug = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.loaded.name)[-80:]
        nfe = f"{self.nfe}" if self.spec.family is None else "{}-{}".format(*self.spec.family)
        name = f"{slug}-{self.solver.name}{self.solver.order}-nfe{nfe}"
        return self.spec.out / f"{name}-{digest(self.identity)}"


def run_learn(
    spec: RunSpec, tell: Tell = silent, fresh: bool = False, model: Model | None = None
) -> Iterator[Learned]:
    """Learn a plan for each number of evaluations asked for; unfinished runs are resumed.

    `model` is a model of one's own, to be used instead of the one that `spec.model` names.
    """
    for job in jobs(spec, spec.nfe, model):
        yield run_job(job, tell, fresh)


def jobs(spec: RunSpec, counts: Sequence[int], model: Model | None = None) -> Iterator[Job]:
    """What a spec asks for, for each number of evaluations."""
    learn = not spec.gradient_free
    if model is None:
        loaded = load_model(spec.model, spec.device, spec.dtype, learn, spec.pipeline)
    else:
        loaded = of_model(model, spec.model if ":" in spec.model else "own", spec.device, learn)
    distance = make_distance(spec.distance, loaded, spec.device)
    solver = make_solver(spec.solver, spec.order, spec.variant)
    for nfe in counts:
        preset = make_preset(spec.preset, nfe, spec.pairs)
        if spec.gradient_free:
            preset = without_gradients(preset)
        recipe = replace(preset.recipe, **spec.recipe)  # type: ignore[arg-type]
        if spec.learn is not None:
            recipe = replace(recipe, learn=spec.learn)
        teacher = replace(preset.teacher, **spec.teacher)
        preset = replace(preset, recipe=recipe, teacher=teacher)
        yield Job(spec, loaded, distance, solver, nfe, preset)


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
    starts = _starts(job, problem, tell, fresh)
    if spec.slope == "secant" or (spec.slope == "auto" and starts.roughness > ROUGH):
        problem = replace(problem, secant=SECANT)
    tuning = tuning_of(problem, preset.recipe)
    course = Course(
        problems=(problem, *_at_other_guidance(job, problem, tell)),
        tuning=tuning,
        numbers=lambda name: tuning.numbers(_start(name, job)),
        plan=lambda final: _plan(job, problem, starts, final, {}),
    )
    final = descend(job, course, starts.chosen, tell, fresh)
    course.plan(final).save(folder / SO_FAR)
    try:
        scores = _scores(job, final.tuned, starts, tell)
    except KeyboardInterrupt:
        raise Interrupted(word_of(folder)) from None
    plan = with_rounding(job, _plan(job, problem, starts, final, scores))
    result = Learned(plan, folder, scores)
    result.plan.save(folder / "plan.json")
    (folder / SO_FAR).unlink(missing_ok=True)
    return result


def _at_other_guidance(job: Job, problem: Problem, tell: Tell) -> Iterator[Problem]:
    """The same problem at the other scales of a range, each with pairs of its own."""
    for scale in job.guidances[1:]:
        train, valid = (
            pairs_for(job, pairs.seeds, f"pairs at guidance {scale:g}", tell, guidance=scale)
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


def pairs_for(
    job: Job,
    seeds: Sequence[int],
    what: str,
    tell: Tell,
    teacher: Teacher | None = None,
    guidance: float | None = None,
) -> Pairs:
    """Of the job's teacher at its middle guidance, or of another."""
    teacher, loaded, ready = teacher or job.preset.teacher, job.loaded, 0

    def progress(done: int) -> None:
        nonlocal ready
        ready += done
        tell(what, ready, len(seeds))

    return teach(
        loaded.model,
        loaded.identity,
        make_solver(teacher.solver, teacher.order or None, teacher.variant or None),
        make_grid(teacher.grid, loaded.model.schedule, teacher.steps),
        seeds,
        guidance=job.guidances[0] if guidance is None else guidance,
        folder=job.spec.out / "pairs",
        device=job.spec.device,
        progress=progress,
    )


# Starts


@dataclass(frozen=True)
class Starts:
    """Which grids to begin with, and what it took to find them."""

    chosen: tuple[str, ...]  # names of grids, or the path of a plan
    losses: dict[str, float]  # on the first validation pairs
    roughness: float
    evaluations: int

    @classmethod
    def of(cls, content: Any) -> "Starts":
        """From JSON."""
        losses = {str(name): float(loss) for name, loss in content["losses"].items()}
        chosen = tuple(str(name) for name in content["chosen"])
        return cls(chosen, losses, float(content["roughness"]), int(content["evaluations"]))


def _starts(job: Job, problem: Problem, tell: Tell, fresh: bool) -> Starts:
    """The best known grids on some validation pairs, or what the spec names; kept in a file."""
    file = job.folder / "starts.json"
    if file.exists() and not fresh:
        try:
            return Starts.of(read_json(file))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise StoreError(f"{file}: wanted the starts of a run; begin with --fresh") from None
    student, robust = Student(problem), job.preset.recipe.robust
    losses: dict[str, float] = {}
    chosen: tuple[str, ...] = (job.spec.start,)
    if job.spec.start == "best":

        def loss(name: str, pairs: int) -> float:
            table = tuned_table(job.solver, problem.model.schedule, _start(name, job))

            def measure() -> dict[str, Any]:
                value = student.mean_loss(table, limit=pairs, robust=robust)
                return {"loss": value if math.isfinite(value) else None}

            what = ["start", pairs, len(problem.valid), robust, *measure_of(job)]
            value = remembered(job, table, what, measure)["loss"]
            return math.inf if value is None else float(value)

        losses = finalists(loss, lambda done, total: tell("trying starts", done, total))
        chosen = tuple(ranked(losses)[: job.preset.starts])
    rough = roughness(problem, _start(chosen[0], job).grid)
    seen = min(SCREEN, len(problem.valid)) * len(TRIED) + len(problem.valid) * len(losses)
    screened = (problem.nfe - 1) * seen if losses else 0
    cost = screened + 4 * (problem.nfe + 4 * (problem.nfe - 1))
    starts = Starts(chosen, losses, rough if math.isfinite(rough) else 0.0, cost)
    write_json(file, asdict(starts))
    return starts


def _start(name: str, job: Job) -> Tuned:
    """A grid by name; of a plan its corrections too, if they are of this solver and go on."""
    schedule = job.loaded.model.schedule
    if not name.endswith(".json"):
        return Tuned(make_grid(name, schedule, job.steps))
    plan = Plan.load(name)
    grid = plan.grid.checked(schedule, job.steps)
    goes_on = "coefficients" in job.preset.recipe.learn and plan.make_solver() == job.solver
    return Tuned(grid, plan.tuned.corrections if goes_on else None)


# Descent

SO_FAR = "plan-so-far.json"


@dataclass(frozen=True)
class Course:
    """What is descended on, how a start becomes numbers, and how numbers become a plan."""

    problems: tuple[Problem, ...]
    tuning: Tuning
    numbers: Callable[[str], Numbers]
    plan: Callable[[Progress], Plan]


def descend(job: Job, course: Course, starts: Sequence[str], tell: Tell, fresh: bool) -> Progress:
    """Learn to the end from each start and take what validates best.

    The state is written after each iteration; a run that was stopped goes on from it. Ctrl-C and
    errors leave the best plan so far on disk.
    """
    recipe, folder, tuning = job.preset.recipe, job.folder, course.tuning
    log = folder / "progress.jsonl"
    lines: list[str] = []
    if log.exists() and not fresh:
        lines = log.read_text().splitlines()
    kept = 0
    ends: list[Progress] = []
    with ExitStack() as stack:
        track = stack.enter_context(_tracker(folder, job.spec.tensorboard))
        for number, name in enumerate(starts):
            file = folder / f"state-{number}.safetensors"
            if file.exists() and not fresh:
                state = State.from_tensors(read_tensors(file))
            else:
                state = begin_with(course.problems, recipe, tuning, course.numbers(name))
                write_tensors(file, state.to_tensors())
            last = finished(tuning, course.problems[0].steps, state)
            valid = last.best
            lines = lines[: kept + state.iteration]
            try:
                for last in learn_all(course.problems, recipe, tuning, state, job.spec.seed):
                    lines.append(json.dumps(_line(name, last)))
                    write_bytes(log, ("\n".join(lines) + "\n").encode())
                    write_tensors(file, last.state.to_tensors())
                    track(len(lines), last)
                    valid = valid if last.valid is None else last.valid
                    share = f" ({number + 1} of {len(starts)})" * (len(starts) > 1)
                    what = f"loss {last.loss:.5f}, valid {valid:.5f}, best {last.best:.5f}{share}"
                    tell(what, last.iteration, last.total)
            except (KeyboardInterrupt, Ld3Error) as stop:
                if isinstance(stop, StoreError):
                    raise  # what cannot be written now is in the last state
                best = min([*ends, last], key=lambda end: end.best)
                course.plan(best).save(folder / SO_FAR)
                if isinstance(stop, Ld3Error):
                    raise type(stop)(f"{stop}; the best plan so far is {folder / SO_FAR}") from None
                raise Interrupted(word_of(folder)) from None
            kept += last.iteration
            ends.append(last)
    best = min(ends, key=lambda end: end.best)
    evaluations = sum(end.state.evaluations for end in ends)
    return replace(best, state=replace(best.state, evaluations=evaluations))


def word_of(folder: Path) -> str:
    """Where the plan of an interrupted run is."""
    return f"the best plan so far is {folder / SO_FAR}; the same command goes on from there"


def _line(start: str, progress: Progress) -> dict[str, Any]:
    return {
        "start": start,
        "iteration": progress.iteration,
        "loss": progress.loss if math.isfinite(progress.loss) else None,
        "valid": progress.valid,
        "best": progress.best,
        "evaluations": progress.state.evaluations,
    }


@contextmanager
def _tracker(folder: Path, wanted: bool) -> Iterator[Callable[[int, Progress], None]]:
    """Writes losses for TensorBoard, if wanted."""
    if not wanted:
        yield lambda number, progress: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SpecError("tensorboard: wanted the package; pip install 'ld3[tracking]'") from None
    writer = SummaryWriter(str(folder / "tensorboard"))

    def track(number: int, progress: Progress) -> None:
        values = {"loss": progress.loss, "valid": progress.valid, "best": progress.best}
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(name, value, number)

    try:
        yield track
    finally:
        writer.close()


# The plan


def _plan(
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


# Scores


def _scores(job: Job, learned: Tuned, starts: Starts, tell: Tell) -> dict[str, Scores]:
    """Every known grid, the start and the learned solver on the same held-out noise.

    The Fréchet distance, for shipped models, is that of an accurate run, the best hand-made and the
    best known grid, and the plan. Scores are kept on disk, so that runs that share grids and noise
    share them.
    """
    spec, model = job.spec, job.loaded.model
    seeds = range(HELD, HELD + spec.held_out)
    held = pairs_for(job, seeds, "held-out pairs", tell)
    fine = Teacher("unipc", 3, "bh1", "logsnr", ACCURATE)
    exact = pairs_for(job, seeds, "accurate samples", tell, fine).target
    names = [*GRIDS, *(name for name in starts.chosen[:1] if name in BUMPS)]
    tables = {name: known_table(job, name) for name in names}
    tables["learned"] = compile_table(
        job.solver, knots(model.schedule, learned.grid), model.prediction, learned.corrections
    )
    what = ["distance", spec.held_out, *measure_of(job)]
    scores = {}
    for done, (name, table) in enumerate(tables.items()):

        def measure(table: Table = table) -> dict[str, Any]:
            return asdict(score(model, table, job.distance, held, exact, job.guidances[0]))

        scores[name] = Scores(**remembered(job, table, what, measure))
        tell("scoring on held-out noise", done + 1, len(tables))
    compared = {name: tables[name] for name in (_best(scores, METHODS), "learned")}
    scores |= _at_other_scales(job, compared, seeds, fine, tell)
    if job.loaded.name not in zoo.SHIPPED or spec.judged < 2:
        return scores
    accurate = compile_table(
        make_solver("unipc"),
        knots(model.schedule, make_grid("logsnr", model.schedule, 20)),
        model.prediction,
    )
    shown = {"accurate": accurate}
    shown |= {n: tables[n] for n in (_best(scores, HANDMADE), _best(scores, METHODS), "learned")}
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


def _at_other_scales(
    job: Job, tables: Mapping[str, Table], seeds: Sequence[int], fine: Teacher, tell: Tell
) -> dict[str, Scores]:
    """How tables do at the ends of a range of guidance: under NAME @ SCALE."""
    model, scores = job.loaded.model, {}
    for scale in job.guidances[1:]:
        what = f"held-out pairs at guidance {scale:g}"
        held = pairs_for(job, seeds, what, tell, guidance=scale)
        exact = pairs_for(job, seeds, what, tell, fine, scale).target
        for name, table in tables.items():

            def measure(
                table: Table = table,
                held: Pairs = held,
                exact: Tensor = exact,
                scale: float = scale,
            ) -> dict[str, Any]:
                return asdict(score(model, table, job.distance, held, exact, scale))

            key = ["distance", len(seeds), *measure_of(job), scale]
            scores[f"{name} @ {scale:g}"] = Scores(**remembered(job, table, key, measure))
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
    file = _file(job, table, what, "safetensors")
    if file.exists():
        with suppress(StoreError, KeyError):
            kept = read_tensors(file)
            return Moments(spec.judged, kept["total"], kept["outer"])
    draw = sampler(job.loaded.model, table, job.guidances[0])
    moments = judged(job.loaded.model, draw, spec.judged, spec.device)
    write_tensors(file, {"total": moments.total, "outer": moments.outer})
    return moments


def measure_of(job: Job) -> list[Any]:
    """What a distance to the teacher depends on."""
    eye = zoo.checksum("perceptual") if job.loaded.name in zoo.SHIPPED else ""
    return [job.spec.distance, eye, asdict(job.preset.teacher)]


def remembered(
    job: Job, table: Table, what: list[Any], compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What `compute` gives, from disk if it was computed before."""
    file = _file(job, table, what, "json")
    if file.exists():
        with suppress(StoreError):
            content = read_json(file)
            if isinstance(content, dict):
                return content
    content = compute()
    write_json(file, content)
    return content


def _file(job: Job, table: Table, what: list[Any], kind: str) -> Path:
    """Where something about a table on a model is kept."""
    key = {
        "what": what,
        "model": [job.loaded.identity, str(job.loaded.model.dtype), job.guidances[0]],
        "schedule": schedule_to_json(job.loaded.model.schedule),
        "table": [table.weights.tolist(), table.net_times.tolist()],
        "version": __version__,
    }
    return job.spec.out / "scores" / f"{digest(key)}.{kind}"


def run_sample(
    plan: Plan,
    seeds: Sequence[int],
    device: str,
    force: bool,
    batch: int = BATCH,
    guidance: float | None = None,
    prompts: Sequence[str] = (),
) -> Tensor:
    """Decoded samples of a plan, the same for a seed whatever the batch.

    `prompts` replace those that a pipeline's plan was learned with.
    """
    guidance = plan.model.guidance if guidance is None else guidance
    asked = plan.learned.get("spec")
    dtype = asked.get("dtype") if isinstance(asked, dict) else None
    options = plan.model.options
    if options is not None:
        options = options.model_copy(
            update={"latents": False} | ({"prompts": tuple(prompts)} if prompts else {})
        )
    elif prompts:
        raise SpecError(f"prompt: got one for {plan.model.name}, wanted a plan of a pipeline")
    dtype = dtype if dtype in DTYPES else None
    loaded = load_model(plan.model.name, device, dtype, learn=False, options=options)
    if not force:
        plan.check_fits(loaded.model, loaded.digest)
    table, model = plan.table(), loaded.model
    parts = []
    for first in range(0, len(seeds), batch):
        part = seeds[first : first + batch]
        network = bind_network(model, model.conditions(part), guidance=guidance)
        with torch.no_grad():
            parts.append(model.decode(table.run(network, prior(model, part, device))))
    return torch.cat(parts)
