"""The teacher is checked before learning: its error, what replaces it, and what a plan says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ld3
from ld3.distances import l2
from ld3.errors import ModelError
from ld3.report.plans import learned_lines
from ld3.runs.cache import Cache
from ld3.runs.compare.run import run_compare
from ld3.runs.compare.spec import CompareSpec
from ld3.runs.session import Session, open_session
from ld3.runs.spec import RunSpec
from ld3.runs.teacher_check import _student, check_teacher
from ld3.seeds import seeds_for
from ld3.teacher import Teacher, TeacherCheck, make_pairs
from ld3.zoo.loading import Measure
from ld3.zoo.toy import mixture

TOY = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)
DPM = ld3.make_solver("dpmpp")
COARSE = Teacher("euler", 1, "", "uniform", 4)


def session_of(teacher: Teacher, folder: Path | None = None) -> Session:
    return open_session(RunSpec(), teacher, Cache(folder), model=TOY, distance=l2)


def by_hand(teacher: Teacher) -> float:
    """To twice the steps, or to the nearest other grid with as many, on four validation seeds."""
    seeds = list(seeds_for("validation", 4))
    own = make_pairs(TOY, seeds, teacher).target
    apart = {}
    for grid in {teacher.grid, "logsnr", "uniform", "edm"}:
        fine = replace(teacher, steps=2 * teacher.steps, grid=grid)
        apart[grid] = float(l2(own, make_pairs(TOY, seeds, fine).target).double().mean())
    return max(apart.pop(teacher.grid), min(apart.values()))


def test_an_accurate_teacher_stays() -> None:
    teacher = Teacher(steps=40)
    check = check_teacher(session_of(teacher), DPM, 5, fixed=False)
    assert check is not None and check.teacher == teacher and check.is_enough
    assert check.error == pytest.approx(by_hand(teacher), rel=1e-6)


def test_the_student_is_the_best_of_a_few_grids_times_what_learning_gains() -> None:
    teacher = Teacher(steps=40)
    check = check_teacher(session_of(teacher), DPM, 5, fixed=False)
    seeds = list(seeds_for("validation", 4))
    target = make_pairs(TOY, seeds, Teacher(steps=80)).target
    errors = []
    for name in ("logsnr", "uniform", "edm"):
        grid = ld3.make_grid(name, TOY.schedule, 5)
        k = ld3.knots(TOY.schedule, grid)
        made = ld3.integrate(ld3.bind(TOY), DPM, k, ld3.prior(TOY, seeds))
        errors.append(float(l2(made, target).mean()))
    assert check is not None and check.student == pytest.approx(0.2 * min(errors), rel=1e-4)


def test_a_coarse_teacher_is_replaced_by_the_grid_and_the_steps_that_are_enough() -> None:
    check = check_teacher(session_of(COARSE), DPM, 5, fixed=False)
    assert check is not None and check.teacher.grid != "uniform" and check.teacher.steps <= 16
    assert check.error == pytest.approx(by_hand(check.teacher), rel=1e-6)
    others = [by_hand(replace(COARSE, grid=name)) for name in ("logsnr", "uniform", "edm")]
    assert check.error <= min(others)


def test_at_most_four_times_the_steps_are_tried_and_what_is_no_better_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[str, int]] = []

    def always(session: Session, teacher: Teacher) -> float:
        tried.append((teacher.grid, teacher.steps))
        return 1e9

    monkeypatch.setattr("ld3.runs.teacher_check._error", always)
    check = check_teacher(session_of(COARSE), DPM, 5, fixed=False)
    assert check is not None and check.teacher == COARSE and not check.is_enough
    assert tried[0] == ("uniform", 4)
    assert tried[1:] == [(grid, n) for n in (4, 8, 16) for grid in ("uniform", "logsnr", "edm")]


def test_a_student_that_is_finite_on_no_grid_is_an_error() -> None:
    def endless(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x),), torch.inf)

    far = replace(session_of(COARSE), measure=Measure("endless", endless, ""))
    with pytest.raises(ModelError, match="student: got samples that are not finite"):
        _student(far, DPM, 5)


def test_a_teacher_that_was_asked_for_is_only_checked() -> None:
    check = check_teacher(session_of(COARSE), DPM, 5, fixed=True)
    assert check is not None and check.teacher == COARSE and not check.is_enough


def test_the_limit_is_a_tenth_of_the_student() -> None:
    assert TeacherCheck(COARSE, 0.1, 1.0).is_enough
    assert not TeacherCheck(COARSE, 0.101, 1.0).is_enough


def test_it_is_made_once_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = check_teacher(session_of(COARSE, tmp_path), DPM, 5, fixed=False)

    def never(*_: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr("ld3.runs.teacher_check._checked", never)
    assert check_teacher(session_of(COARSE, tmp_path), DPM, 5, fixed=False) == first


def test_samples_that_are_not_finite_end_the_check_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ModelError("teacher: got a sample that is not finite")

    monkeypatch.setattr("ld3.runs.session.make_pairs", broken)
    assert check_teacher(session_of(COARSE), DPM, 5, fixed=False) is None


def test_learning_takes_the_better_teacher_and_says_so(tmp_path: Path) -> None:
    flow = ld3.FunctionModel(stiff, ld3.Flow(), "x0", (2,))
    options = {"nfe": (6,), "pairs": 4, "valid": 2, "held_out": 2, "out": tmp_path}
    spec = RunSpec(**options, preset="fast", recipe={"epochs": 1}, distance="l2")
    (result,) = ld3.run_learn(spec, model=flow)
    learned = result.plan.learned
    told = [line for line in learned_lines(result.plan) if "eacher" in line]
    assert learned.preset["teacher"]["steps"] > 20
    assert learned.reference["steps"] == 2 * learned.preset["teacher"]["steps"]
    assert learned.reference["grid"] == learned.preset["teacher"]["grid"]
    assert any("its error is about" in line for line in told)
    asked = spec.model_copy(update={"teacher_steps": 5})
    (other,) = ld3.run_learn(asked, model=flow)
    assert other.plan.learned.preset["teacher"]["steps"] == 5
    assert any("is not accurate" in line for line in learned_lines(other.plan))


def test_compare_learns_the_same_plan_from_the_teacher_that_was_chosen(tmp_path: Path) -> None:
    flow = ld3.FunctionModel(stiff, ld3.Flow(), "x0", (2,))
    same = {"nfe": (6,), "pairs": 8, "valid": 6, "preset": "fast", "recipe": {"epochs": 1}}
    same |= {"held_out": 2, "distance": "l2", "out": tmp_path}
    (result,) = ld3.run_learn(RunSpec(**same), model=flow)
    chosen = result.plan.learned.preset["teacher"]
    assert chosen["steps"] > 20
    asked = {"teacher_grid": chosen["grid"], "teacher_steps": chosen["steps"]}
    run_compare(CompareSpec(**same, **asked, methods=("ld3",)), model=flow)
    (compared,) = tmp_path.glob("cache/learned/*/result.json")
    learned, other = (json.loads(f.read_text()) for f in (result.folder / "result.json", compared))
    assert learned["key"] == other["key"]
    assert learned["content"]["tuned"] == other["content"]["tuned"]


def stiff(x: torch.Tensor, t: torch.Tensor, cond: object) -> torch.Tensor:
    """Data on 64 narrow lines: the path turns sharply near the end."""
    means = torch.linspace(-2, 2, 64, dtype=x.dtype)
    alpha, sigma, std = (1 - t).to(x.dtype), t.to(x.dtype), 0.002
    total = alpha**2 * std**2 + sigma**2
    weights = (-((x[..., None] - alpha * means) ** 2) / (2 * total)).softmax(-1)
    near = (weights * means).sum(-1)
    return near + alpha * std**2 / total * (x - alpha * near)
