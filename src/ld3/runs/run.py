"""One learning run: from a session and a recipe to a tuned solver.

`learn` and `compare`, ablations and training curves all go through :func:`learn_run`, so that the
same settings give the same plan to the bit.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from ld3.grids import TimeGrid
from ld3.known_grids import make_grid
from ld3.learner.course import Course
from ld3.learner.learn import Progress, solver_parameters
from ld3.learner.presets import Preset
from ld3.learner.recipes import GaussNewton, Recipe
from ld3.learner.starts import Starts, find_starts, with_secant
from ld3.plan import Plan, rows_of, tensor_of
from ld3.problem import SECANT, Problem, Student
from ld3.runs.descent import Descent, descend
from ld3.runs.session import Session, table_key
from ld3.runs.spec import steps_of
from ld3.searches.registry import find
from ld3.share import alone
from ld3.solvers import SOLVERS, Solver
from ld3.store import digest, read_proved_json, sweep, write_proved_json
from ld3.table import TunedSolver

Slope = Literal["auto", "exact", "secant"]


@dataclass(frozen=True)
class Run:
    """What is learned, how, and where its files go."""

    session: Session
    solver: Solver
    nfe: int
    preset: Preset
    seed: int = 0
    start: str | Plan = "best"  # `best`, a method, or a plan
    slope: Slope = "auto"
    guidances: tuple[float, ...] = ()  # of a range: its middle and both ends
    folder: Path | None = None

    def stored(self, folder: Path) -> "Run":
        """The same run with a folder for its files, which rank 0 writes."""
        return replace(self, folder=folder if self.session.ranks.is_first else None)

    def with_recipe(self, recipe: Recipe) -> "Run":
        return replace(self, preset=replace(self.preset, recipe=recipe))

    @property
    def steps(self) -> int:
        return steps_of(self.solver, self.nfe)

    @property
    def scales(self) -> tuple[float, ...]:
        return self.guidances or (self.session.guidance,)

    @cached_property
    def key(self) -> dict[str, Any]:
        """All that changes the result, and nothing else."""
        start = self.start if isinstance(self.start, str) else plan_content(self.start)
        return {
            **self.session.identity,
            "guidance": list(self.scales),
            "solver": solver_key(self.solver, self.session, self.steps),
            "steps": self.steps,
            "recipe": {
                "algorithm": type(self.preset.recipe).__name__,
                **recipe_facts(self.preset.recipe),
            },
            "pairs": [self.preset.train, self.preset.valid],
            "starts": [start, self.preset.starts],
            "slope": self.slope,
            "seed": self.seed,
        }

    def problem(self, scale: float | None = None) -> Problem:
        """At the run's guidance scale, or at another."""
        session = self.session if scale is None else self.session.at_guidance(scale)
        return Problem(
            session.model, self.solver, self.steps, session.distance,
            session.training(self.preset.train, self.seed),
            session.validation(self.preset.valid, self.seed),
            session.guidance, batch=session.batch, share=session.ranks.share,
        )  # fmt: skip


@dataclass(frozen=True)
class Learned:
    """What a run came to."""

    tuned: TunedSolver
    start: str
    validation: float
    starts: Starts
    secant: float
    skipped: int
    evaluations: int  # of the network on one sample, a backward pass as two; teacher not counted
    curve: tuple[float, ...]  # training losses
    seconds: float


def learn_run(
    run: Run,
    save_so_far: Callable[[Learned], None] = lambda learned: None,
    tensorboard: bool = False,
    watch: Callable[[str, Progress], None] = lambda start, progress: None,
) -> Learned:
    """Learn, go on with what was begun, or read what was finished.

    `watch` gets the name of the start and the progress of every iteration that is run.
    """
    file = None if run.folder is None else run.folder / "result.json"
    if file is not None:
        sweep(file.parent)
    content = _stored(run, file)
    if content is not None:
        return _from_json(content, run)
    begin = time.perf_counter()
    problem = run.problem()
    starts, tuned = _starts(run, problem)
    secant = SECANT if run.slope == "secant" else 0.0
    problem = replace(problem, secant=secant)
    if run.slope == "auto":
        problem = with_secant(problem, starts.roughness)
    others = [replace(run.problem(scale), secant=problem.secant) for scale in run.scales[1:]]
    parameters = solver_parameters(problem, run.preset.recipe)

    def course(name: str) -> Course:
        return Course((problem, *others), parameters, parameters.start_values(tuned[name]))

    def learned(final: Progress, start: str, spent: int, curve: tuple[float, ...]) -> Learned:
        return Learned(
            final.tuned, start, final.best, starts, problem.secant, final.state.skipped,
            starts.evaluations + spent, curve, time.perf_counter() - begin,
        )  # fmt: skip

    def so_far(best: Progress) -> None:
        save_so_far(learned(best, "", best.state.evaluations, ()))

    descent = Descent(
        run.preset.recipe, run.seed, run.key, run.folder, run.session.report, so_far, tensorboard,
        watch, run.session.ranks,
    )  # fmt: skip
    reached = descend(descent, {name: partial(course, name) for name in tuned})
    result = learned(reached.final, reached.start, reached.evaluations, reached.curve)
    if file is not None:
        write_proved_json(file, run.key, _to_json(result))
    return result


def _stored(run: Run, file: Path | None) -> Any:
    """What rank 0 finds in a file of the run, on every rank."""
    return run.session.ranks.first(
        lambda: None if file is None else read_proved_json(file, run.key)
    )


def _starts(run: Run, problem: Problem) -> tuple[Starts, dict[str, TunedSolver]]:
    """Where to begin, by name. What was searched for is kept in a file."""
    file = None if run.folder is None else run.folder / "starts.json"
    content = _stored(run, file)
    if content is None:
        content = _found_starts(run, problem)
        if file is not None:
            write_proved_json(file, run.key, content)
    tuned = {name: _tuned_from(rows, run.solver) for name, rows in content["solvers"].items()}
    facts = content["starts"]
    starts = Starts(
        tuple(facts["names"]), facts["losses"], facts["roughness"], facts["evaluations"]
    )
    return starts, tuned


def _found_starts(run: Run, problem: Problem) -> dict[str, Any]:
    def report(done: int, total: int) -> None:
        run.session.report("trying starts", done, total)

    schedule = problem.model.schedule
    if run.start == "best":
        recipe = run.preset.recipe
        starts = find_starts(problem, run.preset.starts, recipe.power, report)
        grids = {name: make_grid(name, schedule, run.steps) for name in starts.names}
        tuned = {name: TunedSolver(run.solver, grid) for name, grid in grids.items()}
    else:
        spent = 0
        if isinstance(run.start, Plan):
            name, solver = "plan", start_from_plan(run.start, run)
        else:
            found = run.session.ranks.first(lambda: _searched(run, problem, report))
            grid = _tuned_from(found["solver"], run.solver).grid
            name, solver, spent = str(run.start), TunedSolver(run.solver, grid), found["spent"]
        student = Student(problem)
        rough = student.roughness(solver.grid)
        rough = rough if math.isfinite(rough) else 0.0
        starts = Starts((name,), {}, rough, spent + student.evaluations)
        tuned = {name: solver}
    finite = {name: loss for name, loss in starts.losses.items() if math.isfinite(loss)}
    return {
        "starts": {**asdict(starts), "losses": finite},
        "solvers": {name: _tuned_rows(solver) for name, solver in tuned.items()},
    }


def _searched(run: Run, problem: Problem, report: Callable[[int, int], None]) -> dict[str, Any]:
    """What a search finds, on one rank."""
    found = find(str(run.start), replace(problem, share=alone), run.seed, report)
    return {"solver": _tuned_rows(found.tuned), "spent": found.evaluations}


def start_from_plan(plan: Plan, run: Run) -> TunedSolver:
    """A plan's times; its corrections too, if they are of this solver and are learned on."""
    grid = plan.grid.checked(run.session.model.schedule, run.steps)
    corrections = None
    if "coefficients" in run.preset.recipe.groups and plan.solver.table is None:
        corrections = plan.tuned.corrections if plan.make_solver() == run.solver else None
    return TunedSolver(run.solver, grid, corrections)


def read_start(text: str) -> str | Plan:
    """The start that an option names: the plan of a file, or the name of a method."""
    return Plan.load(text) if text.endswith(".json") else text


def plan_content(plan: Plan) -> dict[str, Any]:
    """What a start takes from a plan."""
    facts = plan.solver.model_dump(mode="json")
    return {"solver": facts, **_tuned_rows_of(plan.times, plan.net_times, plan.corrections)}


def solver_key(solver: Solver, session: Session, steps: int) -> list[Any]:
    """Name and settings of a solver; of one that is not in the registry also what it computes."""
    key = [solver.name, solver.order, solver.variant]
    if SOLVERS.get(solver.name) is type(solver):
        return key
    schedule = session.model.schedule
    table = TunedSolver(solver, make_grid("logsnr", schedule, steps)).table(schedule)
    return [*key, digest(table_key(table))]


def recipe_facts(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON holds it; without a part that is the whole batch."""
    facts = {k: None if v == math.inf else v for k, v in vars(recipe).items()}
    if not isinstance(recipe, GaussNewton) and recipe.part >= recipe.batch:
        del facts["part"]
    return facts


def _tuned_rows_of(times: object, net_times: object, corrections: object) -> dict[str, Any]:
    return {"times": times, "net_times": net_times, "corrections": corrections}


def _tuned_rows(tuned: TunedSolver) -> dict[str, Any]:
    grid = tuned.grid
    rows = rows_of(tuned.corrections)
    return _tuned_rows_of(grid.times.tolist(), grid.net_times.tolist(), rows)


def _tuned_from(rows: Mapping[str, Any], solver: Solver) -> TunedSolver:
    grid = TimeGrid.of(rows["times"], rows["net_times"])
    added = rows["corrections"]
    return TunedSolver(solver, grid, None if added is None else tensor_of(added))


def _to_json(learned: Learned) -> dict[str, Any]:
    plain = {
        name: value for name, value in vars(learned).items() if name not in ("tuned", "starts")
    }
    return {**plain, "tuned": _tuned_rows(learned.tuned), "starts": asdict(learned.starts)}


def _from_json(content: Mapping[str, Any], run: Run) -> Learned:
    tuned, facts = _tuned_from(content["tuned"], run.solver), content["starts"]
    starts = Starts(
        tuple(facts["names"]), facts["losses"], facts["roughness"], facts["evaluations"]
    )
    return Learned(
        **{**content, "tuned": tuned, "starts": starts, "curve": tuple(content["curve"])}
    )
