"""Is the teacher accurate enough? Checked before learning, on a few validation seeds.

    error(T)   mean distance of the samples of a teacher T to those of T with twice its steps, or
               to those on the nearest other grid with twice its steps, whichever is larger
    student    FACTOR times the lowest error of the student's solver on a few known grids: about
               where learning ends

Twice the steps alone is not enough: a grid that is bad for a model stays bad with twice the steps.

The error of a teacher should be at most SHARE of the student's, or the student learns the teacher's
mistakes. If it is more, the grids of GRIDS are tried in the teacher's place, then more steps. A
teacher given by options, and those of the paper's presets, are only checked.
"""

from dataclasses import asdict, replace
from typing import Any

from ld3.errors import ModelError
from ld3.known_grids import default_grid, make_grid
from ld3.metrics.fidelity import per_sample
from ld3.runs.run import solver_key
from ld3.runs.session import Session, mean, reference_for
from ld3.runs.spec import RunSpec, steps_of
from ld3.seeds import seeds_for
from ld3.solvers import Solver
from ld3.table import TunedSolver
from ld3.teacher import SHARE, Teacher, TeacherCheck

SEEDS = 4
CHECKING = "checking the teacher"
FACTOR = 0.2  # learned plans end at 0.15 to 0.4 of the best of these grids
GRIDS = ("logsnr", "uniform", "edm")
MOST = 4  # times the steps of the preset's teacher


def check_teacher(session: Session, solver: Solver, nfe: int, fixed: bool) -> TeacherCheck | None:
    """The session's teacher, or unless it is `fixed` a better one. None where the check itself
    gives samples that are not finite."""
    key = {
        **session.identity,
        "solver": solver_key(solver, session, steps_of(solver, nfe)),
        "nfe": nfe,
        "teacher check": [SEEDS, FACTOR, SHARE, *GRIDS, MOST, fixed],
    }

    def make() -> dict[str, Any] | None:
        try:
            return asdict(_checked(session, solver, nfe, fixed))
        except ModelError:
            return None

    content = session.cache.json("found", key, make)
    if content is None:
        return None
    return TeacherCheck(**{**content, "teacher": Teacher(**content["teacher"])})


def with_checked_teacher(session: Session, spec: RunSpec, solver: Solver, nfe: int) -> Session:
    """The session, with another teacher and reference if its own is not accurate enough."""
    fixed = bool(spec.teacher_changes) or spec.preset.startswith("paper-")
    check = check_teacher(session, solver, nfe, fixed)
    if check is None or check.teacher == session.teacher:
        return replace(session, check=check)
    steps = spec.reference_steps or reference_for(check.teacher).steps
    finer = replace(check.teacher, steps=steps)
    return replace(session.with_teacher(check.teacher, finer), check=check)


def _checked(session: Session, solver: Solver, nfe: int, fixed: bool) -> TeacherCheck:
    own = session.teacher
    error = _error(session, own)
    if not error < float("inf"):
        raise ModelError("teacher: got samples that are not finite")
    check = TeacherCheck(own, error, FACTOR * _student(session, solver, nfe))
    steps = own.steps
    while not (check.is_enough or fixed) and steps <= MOST * own.steps:
        for grid in dict.fromkeys((own.grid, *GRIDS)):
            other = replace(own, grid=grid, steps=steps)
            error = _error(session, other)
            if error < check.error:
                check = replace(check, teacher=other, error=error)
        steps *= 2
    return check


def _error(session: Session, teacher: Teacher) -> float:
    """To the same teacher with twice the steps, or to another grid; infinite if not finite."""
    finer = [replace(teacher, steps=2 * teacher.steps, grid=name) for name in GRIDS]
    same = replace(teacher, steps=2 * teacher.steps)
    others = [_apart(session, teacher, other) for other in finer if other != same]
    return max(_apart(session, teacher, same), min(others))


def _apart(session: Session, a: Teacher, b: Teacher) -> float:
    """The mean distance of the samples of two teachers."""
    seeds = seeds_for("validation", SEEDS)
    try:
        coarse, fine = (session.pairs(seeds, CHECKING, teacher).target for teacher in (a, b))
    except ModelError:
        return float("inf")
    return mean(per_sample(session.distance, coarse, fine, session.batch).tolist())


def _student(session: Session, solver: Solver, nfe: int) -> float:
    """The lowest error of the solver itself on a few known grids."""
    seeds, schedule = seeds_for("validation", SEEDS), session.model.schedule
    finer = replace(session.teacher, steps=2 * session.teacher.steps)
    target = session.pairs(seeds, CHECKING, finer).target
    errors = []
    for name in dict.fromkeys((*GRIDS, default_grid(schedule))):
        tuned = TunedSolver(solver, make_grid(name, schedule, steps_of(solver, nfe)))
        made = session.samples(session.table(tuned), seeds)
        errors.append(mean(per_sample(session.distance, made, target, session.batch).tolist()))
    finite = [error for error in errors if error < float("inf")]
    if not finite:
        raise ModelError("student: got samples that are not finite on every grid")
    return min(finite)
