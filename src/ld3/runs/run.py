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

from ld3.guidance import Guidance
from ld3.known_grids import make_grid
from ld3.learner.course import Course
from ld3.learner.learn import Progress, solver_parameters
from ld3.learner.presets import Preset
from ld3.learner.recipes import GaussNewton, Recipe
from ld3.learner.starts import Starts, find_starts, with_secant
from ld3.parameters import GUIDANCE
from ld3.plan import Plan, tuned_from_json, tuned_to_json
from ld3.problem import SECANT, Problem, Student
from ld3.runs.descent import Descent, Reached, descend
from ld3.runs.passes import direction_products
from ld3.runs.session import Session, table_key
from ld3.runs.spec import steps_of
from ld3.searches.registry import find
from ld3.share import alone
from ld3.solvers import SOLVERS, Solver
from ld3.store import digest, place, read_proved_json, sweep, write_proved_json
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
    guided: tuple[int, ...] | None = None  # evaluations with both passes, if guidance is learned
    folder: Path | None = None

    def stored(self, folder: Path) -> "Run":
        """The same run with a folder for its files, which rank 0 writes."""
        return replace(self, folder=folder if self.session.ranks.is_first else None)

    @property
    def steps(self) -> int:
        return steps_of(self.solver, self.nfe)

    @property
    def scales(self) -> tuple[float, ...]:
        return self.guidances or (self.session.guidance,)

    @property
    def teacher_evaluations(self) -> int:
        """Network evaluations for the pairs."""
        preset = self.preset
        return len(self.scales) * preset.teacher.nfe * (preset.train + preset.valid)

    @cached_property
    def key(self) -> dict[str, Any]:
        """All that changes the result, and nothing else."""
        start: object = self.start
        if isinstance(self.start, Plan):  # by what is taken from it
            start = self.start.model_dump(
                mode="json", include={"solver", "times", "net_times", "corrections", "guidance"}
            )
        recipe = self.preset.recipe
        return {
            **({} if self.guided is None else {"guided": list(self.guided)}),
            **self.session.identity,
            "guidance": list(self.scales),
            "solver": solver_key(self.solver, self.session, self.steps),
            "steps": self.steps,
            "recipe": {"algorithm": type(recipe).__name__, **recipe_facts(recipe)},
            "pairs": [self.preset.train, self.preset.valid],
            "starts": [start, self.preset.starts],
            "slope": self.slope,
            "seed": self.seed,
        }

    def problem(self, scale: float | None = None) -> Problem:
        """At the run's guidance scale, or at another."""
        session = self.session if scale is None else self.session.at_guidance(scale)
        preset = self.preset
        made = session.problem(self.solver, self.steps, preset.train, preset.valid, self.seed)
        return replace(made, guided=self.guided)


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
    passes: int  # the same, with a guided evaluation as two
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
    if run.folder is not None:
        sweep(run.folder)
    file = place(run.folder, "result.json")
    content = run.session.ranks.first(lambda: read_proved_json(file, run.key))
    if content is not None:
        return _from_json(content, run)
    begin = time.perf_counter()
    problem = run.problem()
    starts, tuned = _starts(run, problem)
    problem = replace(problem, secant=SECANT if run.slope == "secant" else 0.0)
    if run.slope == "auto":
        problem = with_secant(problem, starts.roughness)
    others = [replace(run.problem(scale), secant=problem.secant) for scale in run.scales[1:]]
    parameters = solver_parameters(problem, run.preset.recipe)

    def course(name: str) -> Course:
        return Course((problem, *others), parameters, parameters.start_values(tuned[name]))

    def learned(reached: Reached) -> Learned:
        final = reached.final
        return Learned(
            final.tuned, reached.start, final.best, starts, problem.secant, final.state.skipped,
            starts.evaluations + reached.evaluations, starts.passes + reached.passes,
            reached.curve, time.perf_counter() - begin,
        )  # fmt: skip

    def so_far(best: Progress) -> None:
        save_so_far(learned(Reached(best, "", best.state.evaluations, best.state.passes, ())))

    descent = Descent(
        run.preset.recipe, run.seed, run.key, run.folder, run.session.report, so_far, tensorboard,
        watch, run.session.ranks,
    )  # fmt: skip
    result = learned(descend(descent, {name: partial(course, name) for name in tuned}))
    write_proved_json(file, run.key, _to_json(result))
    return result


def forget(folder: Path) -> None:
    """Remove the files from which a run in this folder is resumed."""
    for file in (folder / "result.json", folder / "starts.json", *folder.glob("state-*")):
        file.unlink(missing_ok=True)


def _starts(run: Run, problem: Problem) -> tuple[Starts, dict[str, TunedSolver]]:
    """Where to begin, by name. The results of searches are stored in a file."""
    file = place(run.folder, "starts.json")
    content = run.session.ranks.first(lambda: read_proved_json(file, run.key))
    if content is None:
        content = _found_starts(run, problem)
        write_proved_json(file, run.key, content)
    tuned = {name: tuned_from_json(rows, run.solver) for name, rows in content["solvers"].items()}
    return Starts(**content["starts"]), tuned


def _found_starts(run: Run, problem: Problem) -> dict[str, Any]:
    report = partial(run.session.report, "trying starts")
    if run.start == "best":
        starts = find_starts(problem, run.preset.starts, run.preset.recipe.power, report)
        tuned = {
            name: TunedSolver(run.solver, make_grid(name, problem.model.schedule, run.steps))
            for name in starts.names
        }
    else:
        name, spent = "plan", 0
        if isinstance(run.start, Plan):
            solver = start_from_plan(run.start, run)
        else:
            found = run.session.ranks.first(lambda: _searched(run, problem, report))
            name, spent = run.start, found["spent"]
            solver = TunedSolver(run.solver, tuned_from_json(found["solver"], run.solver).grid)
        student = Student(problem)
        rough = student.roughness(solver.grid)
        starts = Starts((name,), {}, rough, spent + student.evaluations, student.passes)
        tuned = {name: solver}
    if GUIDANCE in run.preset.recipe.groups:
        starts, tuned = _with_directions(problem, starts, tuned)
    finite = {name: loss for name, loss in starts.losses.items() if math.isfinite(loss)}
    return {
        "starts": {**asdict(starts), "losses": finite},
        "solvers": {name: tuned_to_json(solver) for name, solver in tuned.items()},
    }


def _with_directions(
    problem: Problem, starts: Starts, tuned: dict[str, TunedSolver]
) -> tuple[Starts, dict[str, TunedSolver]]:
    """Starts without guidance of their own reuse directions by how these change on the way."""
    student, made = Student(problem), dict(tuned)
    guided = tuple(range(problem.nfe)) if problem.guided is None else problem.guided
    for name, start in tuned.items():
        if start.guidance is None:
            fitted = Guidance.fitted(guided, direction_products(student, start))
            made[name] = replace(start, guidance=fitted)
    evaluations = starts.evaluations + student.evaluations
    return replace(starts, evaluations=evaluations, passes=starts.passes + student.passes), made


def _searched(run: Run, problem: Problem, report: Callable[[int, int], None]) -> dict[str, Any]:
    """What a search finds, on one rank."""
    found = find(str(run.start), replace(problem, share=alone), run.seed, report)
    return {"solver": tuned_to_json(found.tuned), "spent": found.evaluations}


def start_from_plan(plan: Plan, run: Run) -> TunedSolver:
    """A plan's times; corrections and guidance too, if they are of this solver and learned on."""
    grid = plan.grid.checked(run.session.model.schedule, run.steps)
    corrections, guidance = None, None
    if GUIDANCE in run.preset.recipe.groups and plan.guidance is not None:
        guidance = plan.guidance.numbers()
    if "coefficients" in run.preset.recipe.groups and plan.solver.table is None:
        corrections = plan.tuned.corrections if plan.make_solver() == run.solver else None
    return TunedSolver(run.solver, grid, corrections, guidance)


def read_start(text: str) -> str | Plan:
    """The start that an option names: the plan of a file, or the name of a method."""
    return Plan.load(text) if text.endswith(".json") else text


def solver_key(solver: Solver, session: Session, steps: int) -> list[Any]:
    """Name and settings of a solver; of one that is not in the registry also what it computes."""
    key = [solver.name, solver.order, solver.variant]
    if SOLVERS.get(solver.name) is type(solver):
        return key
    schedule = session.model.schedule
    table = TunedSolver(solver, make_grid("logsnr", schedule, steps)).table(schedule)
    return [*key, digest(table_key(table))]


def recipe_facts(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe as JSON holds them, without those that change nothing: a part that
    is the whole batch, no weight for shared errors."""
    facts = {name: None if value == math.inf else value for name, value in vars(recipe).items()}
    if not isinstance(recipe, GaussNewton) and recipe.part >= recipe.batch:
        del facts["part"]
    if facts.get("shared") == 0:
        del facts["shared"]
    return facts


def _to_json(learned: Learned) -> dict[str, Any]:
    made = {"tuned": tuned_to_json(learned.tuned), "starts": asdict(learned.starts)}
    return {**vars(learned), **made}


def _from_json(content: Mapping[str, Any], run: Run) -> Learned:
    made = {
        "tuned": tuned_from_json(content["tuned"], run.solver),
        "starts": Starts(**content["starts"]),
        "curve": tuple(content["curve"]),
    }
    return Learned(**{"passes": 0, **content, **made})  # older results have no passes
