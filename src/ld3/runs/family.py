"""One run for every number of evaluations: a family of grids, and one plan file that holds it.

The members take turns while learning, each counted by its loss over that of the start, so that no
number of evaluations is neglected. With `refine` every member then becomes the start of a run of
its own, and the file holds what these runs found, too.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ld3.density import TRIED, Warp
from ld3.errors import SpecError
from ld3.known_grids import GRIDS
from ld3.learner.course import Course
from ld3.learner.learn import Progress
from ld3.learner.presets import for_family
from ld3.learner.starts import SCREEN
from ld3.models import Model
from ld3.parameters import FamilyParameters, Values
from ld3.plan import FamilyPart, Member, Plan, Provenance
from ld3.problem import Problem, Student
from ld3.runs.cache import Cache
from ld3.runs.descent import SO_FAR, Descent, descend, saved_so_far
from ld3.runs.learn import LearnResult, finish, make_run, run_folder
from ld3.runs.plans import known_table, make_plan
from ld3.runs.progress import Report, resumable, silent
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.run import Run, forget
from ld3.runs.session import mean, open_session
from ld3.runs.spec import RunSpec
from ld3.runs.teacher_check import with_checked_teacher
from ld3.scores import FamilyScores
from ld3.solvers import Solver
from ld3.store import place, read_proved_json, sweep, write_proved_json
from ld3.table import Table

FamilyResult = LearnResult
BUMPS = {f"bump:{centre:g}:{width:g}": (centre, width) for centre, width in TRIED}


@dataclass(frozen=True)
class _Family:
    """What is learned together."""

    spec: RunSpec
    singles: tuple[Run, ...]  # one per number of evaluations, all with the same teacher
    first: Run  # with the recipe of the family
    key: Mapping[str, Any]
    folder: Path

    @property
    def own_folder(self) -> Path | None:
        """Where this rank reads and writes; only the first does."""
        return self.folder if self.first.session.ranks.is_first else None

    @property
    def steps(self) -> list[int]:
        return [single.steps for single in self.singles]

    @property
    def parameters(self) -> FamilyParameters:
        schedule = self.first.session.model.schedule
        groups = tuple(g for g in self.first.preset.recipe.groups if g != "coefficients")
        warp = Warp(schedule, self.steps[0], self.steps[-1])
        return FamilyParameters(self.first.solver, warp, groups)


def run_family(
    spec: RunSpec,
    report: Report = silent,
    fresh: bool = False,
    model: Model | None = None,
    *,
    solver: Solver | None = None,
    parent: Path | None = None,
    ranks: Ranks = ALONE,
) -> LearnResult:
    """Learn one family for all numbers of evaluations of a range; an unfinished run is resumed.

    Its folder is made in `parent`, by default that of the spec.
    """
    cache = Cache.open(spec.out / "cache", time.time() if fresh else 0.0, ranks)
    family = _family(spec, cache, report, model, solver or spec.make_solver(), parent)
    folder = family.folder
    if ranks.is_first:
        sweep(folder)
    if fresh and ranks.is_first:
        forget(folder)
    plan = _learned(family)
    with resumable(saved_so_far(folder)):
        plan = _scored(plan, family)
    if spec.refine:
        _save(plan, family, "plan.json")
        plan = _refined(plan, family, fresh)
    _save(plan, family, "plan.json")
    if ranks.is_first:
        (folder / SO_FAR).unlink(missing_ok=True)
    return LearnResult(plan, folder)


def _family(
    spec: RunSpec,
    cache: Cache,
    report: Report,
    model: Model | None,
    solver: Solver,
    parent: Path | None,
) -> _Family:
    if spec.family is None:
        raise SpecError("family: got none, expected a range such as --nfe 4-10")
    if spec.guidance_to is not None:
        raise SpecError("guidance: got a range with a range of nfe; give one of them")
    low, high = spec.family
    counts = [nfe for nfe in range(low, high + 1) if nfe % solver.nfe(1) == 0]
    if len(counts) < 2:
        raise SpecError(f"nfe: got {low}-{high}, expected a range with several step counts")
    alone = spec.model_copy(update={"family": None, "refine": False})
    teacher = alone.make_preset(counts[-1]).teacher
    session = open_session(
        spec, teacher, cache, report, model=model, gradients=not spec.gradient_free
    )
    session = with_checked_teacher(session, spec, solver, counts[-1])
    singles = tuple(make_run(alone, session, nfe, solver) for nfe in counts)
    first = replace(singles[0], preset=for_family(singles[0].preset))
    key = {**first.key, "family": counts}
    return _Family(spec, singles, first, key, run_folder(spec, first, key, parent))


def _learned(family: _Family) -> Plan:
    ranks, file = family.first.session.ranks, place(family.own_folder, "result.json")
    content = ranks.first(lambda: read_proved_json(file, family.key))
    if content is None:
        content = _descended(family)
        write_proved_json(file, family.key, content)
    plan = _plan(family, content)
    if not (family.folder / "plan.json").exists():
        _save(plan, family, SO_FAR)
    return plan


def _descended(family: _Family) -> dict[str, Any]:
    run, parameters = family.first, family.parameters
    shared = run.problem()
    problems = tuple(replace(shared, steps=steps) for steps in family.steps)
    best, spent = _best_bump(parameters, problems, run)

    def course() -> Course:
        return Course(problems, parameters, parameters.start_values(*BUMPS[best]), spent)

    def content(final: Progress, evaluations: int) -> dict[str, Any]:
        values = final.state.best_values
        return {
            "start": best,
            "density": values["times"].tolist(),
            "shifts": values["net"].tolist(),
            "evaluations": evaluations,
            "validation": final.best,
        }

    def so_far(final: Progress) -> None:
        _save(_plan(family, content(final, final.state.evaluations)), family, SO_FAR)

    descent = Descent(
        run.preset.recipe, run.seed, family.key, family.own_folder, run.session.report, so_far,
        family.spec.tensorboard, ranks=run.session.ranks,
    )  # fmt: skip
    reached = descend(descent, {best: course})
    return content(reached.final, reached.evaluations)


def _plan(family: _Family, content: Mapping[str, Any]) -> Plan:
    singles, density, shifts = family.singles, content["density"], content["shifts"]
    middle = singles[len(singles) // 2]
    values = {
        name: torch.tensor(numbers, dtype=torch.float64, device="cpu")
        for name, numbers in (("times", density), ("net", shifts))
    }
    tuned = family.parameters.tuned(values, middle.steps)
    facts = {name: content[name] for name in ("start", "evaluations", "validation")}
    low, high = singles[0].nfe, singles[-1].nfe
    part = FamilyPart(low=low, high=high, density=density, shifts=shifts)
    return make_plan(family.first, family.spec, middle.nfe, tuned, facts, family=part)


def _best_bump(
    parameters: FamilyParameters, problems: Sequence[Problem], run: Run
) -> tuple[str, int]:
    """The bump that is best over few, some and many steps, each relative to the best of all; and
    the network evaluations for that."""
    student = Student(problems[0])
    counts = sorted({problems[i].steps for i in (0, len(problems) // 2, -1)})
    starts: list[Values] = [parameters.start_values(*bump) for bump in BUMPS.values()]
    tables = [parameters.table(values, steps) for values in starts for steps in counts]
    each = student.mean_losses(tables, limit=SCREEN, power=run.preset.recipe.power)
    losses: dict[str, list[float]] = {}
    for done, name in enumerate(BUMPS):
        losses[name] = [next(each) for _ in counts]
        run.session.report("trying starts", done + 1, len(BUMPS))
    lowest = [min(column) for column in zip(*losses.values(), strict=True)]

    def relative(name: str) -> float:
        both = zip(losses[name], lowest, strict=True)
        return math.fsum(loss / max(low, 1e-12) for loss, low in both)

    return min(BUMPS, key=relative), student.evaluations


def _scored(plan: Plan, family: _Family) -> Plan:
    """Held-out distances of each member beside those of the best known grid."""
    rows = {}
    for done, single in enumerate(family.singles):
        session, solver, steps = single.session, single.solver, single.steps
        tables = [known_table(session, solver, steps, name) for name in GRIDS]
        own, *others = _distances(single, [plan.at(single.nfe).table(), *tables], family)
        known = dict(zip(GRIDS, others, strict=True))
        best = min(known, key=lambda name: known[name])
        rows[str(single.nfe)] = FamilyScores(
            nfe=single.nfe, best_grid=best, known=known[best], family=own
        )
        session.report("scoring on held-out noise", done + 1, len(family.singles))
    return plan.model_copy(update={"scores": rows})


def _distances(single: Run, tables: Sequence[Table], family: _Family) -> list[float]:
    """To the teacher on held-out seeds; infinite if a sample is not finite."""
    each = single.session.scores(tables, family.spec.held_out)
    return [mean(found["distance"]) if found else math.inf for found in each]


def _save(plan: Plan, family: _Family, name: str) -> None:
    if family.own_folder is not None:
        plan.save(family.own_folder / name)


def _refined(plan: Plan, family: _Family, fresh: bool) -> Plan:
    """Each member fine-tuned from its plan of the family."""
    members, rows = [], dict(plan.scores)
    alone = family.spec.model_copy(update={"family": None})
    for single in family.singles:
        start = plan.at(single.nfe).model_copy(update={"scores": {}, "learned": Provenance()})
        run = replace(single, start=start)
        run = run.stored(run_folder(alone, run, run.key, family.folder))
        if fresh and run.folder is not None:
            forget(run.folder)
        own = finish(run, alone, alone.held_out)
        members.append(Member(**own.model_dump(include=set(Member.model_fields))))
        row, (distance,) = rows[str(single.nfe)], _distances(single, [own.table()], family)
        rows[str(single.nfe)] = row.model_copy(update={"refined": distance})
    (shown,) = (member for member in members if member.nfe == plan.nfe)
    return plan.model_copy(update={**dict(shown), "members": members, "scores": rows})
