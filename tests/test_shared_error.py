"""The term for what errors share: its value and slope by hand, and that learning lowers it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import ld3
from ld3.errors import SpecError
from ld3.learner.course import Course, Task, make_tasks
from ld3.learner.learn import Progress, learn_course, learning, solver_parameters
from ld3.learner.recipes import PreconditionedAdam
from ld3.learner.shared_error import (
    Anchor,
    anchor_at,
    common_square,
    objective,
    residuals_of,
)
from ld3.problem import Problem
from ld3.runs.run import recipe_facts
from ld3.runs.states import from_tensors, to_tensors
from ld3.share import Tensors
from ld3.table import Table, TunedSolver
from learning_toys import MODEL, mixture_problem

OURS = PreconditionedAdam(
    learn="times+net+coefficients", epochs=4, batch=8, rate=0.08, power=0.75, validate_every=4
)


def task_of(problem: Problem) -> Task:
    (task,) = make_tasks([problem])
    return task


def table_of(name: str, steps: int = 4) -> Table:
    grid = ld3.make_grid(name, MODEL.schedule, steps)
    return TunedSolver(ld3.make_solver("dpmpp"), grid).table(MODEL.schedule)


def test_common_square_by_hand() -> None:
    r = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 3.0]])
    # sum (6, 3): 45; squares 1 + 9 + 13 = 23; (45 - 23) / (3 * 2)
    assert common_square(r) == pytest.approx(22 / 6)
    assert common_square(torch.tensor([[1.0], [-1.0]])) == 0.0  # -1 is cut
    assert common_square(torch.ones(1, 2)) == 0.0


def test_objective_by_hand() -> None:
    r = torch.tensor([[1.0, 0.0], [3.0, 0.0]])  # d = 1, 9; E r = (2, 0) with square 3 unbiased
    mean = ((1 + 9**0.75) / 2) ** (1 / 0.75)
    assert objective(r, 0.0, 0.75) == pytest.approx(mean)
    assert objective(r, 2.0, 0.75) == pytest.approx(mean + 2 * 3.0)


def test_the_anchor_has_the_mean_and_the_weight() -> None:
    problem = mixture_problem(count=6)
    task, table = task_of(problem), table_of("edm")
    anchor = anchor_at(task, table, kappa=3.0, power=0.75)
    losses = task.student.losses("train", torch.arange(6), table).detach().double()
    assert torch.allclose(anchor.residuals.double().square().sum(1), losses, rtol=1e-5)
    assert torch.allclose(anchor.mean, anchor.residuals.mean(0), atol=1e-6)
    assert anchor.weight == pytest.approx(
        3.0 * 0.75 * float((losses**0.75).mean()) ** (1 - 1 / 0.75), rel=1e-5
    )


def test_the_term_has_the_slope_of_the_square_of_the_mean() -> None:
    """With all pairs in the batch it is exact at any residuals, not only at the anchor."""
    g = torch.Generator().manual_seed(0)
    before, now = torch.randn(5, 3, generator=g), torch.randn(5, 3, generator=g)
    anchor = Anchor(before, before.mean(0), weight=0.7)
    leaf = now.clone().requires_grad_()
    (slope,) = torch.autograd.grad(anchor.term(leaf, torch.arange(5)).mean(), leaf)
    other = now.clone().requires_grad_()
    (exact,) = torch.autograd.grad(0.7 * other.mean(0).square().sum(), other)
    assert torch.allclose(slope, exact, atol=1e-6)


def test_a_batch_corrects_the_mean_by_its_own_change() -> None:
    before = torch.tensor([[1.0], [2.0], [6.0], [3.0]])  # mean 3
    anchor = Anchor(before, before.mean(0), weight=0.5)
    now = torch.tensor([[2.0], [8.0]])  # pairs 1 and 2: changes 0 and 2, so m is about 4
    assert anchor.term(now, torch.tensor([1, 2])).tolist() == [2 * 0.5 * 2 * 4, 2 * 0.5 * 8 * 4]


def last(problem: Problem, recipe: PreconditionedAdam) -> Progress:
    grid = ld3.make_grid("edm", MODEL.schedule, problem.steps)
    *_, final = learning(problem, recipe, grid, seed=3)
    return final


def test_learning_lowers_what_the_errors_share() -> None:
    problem = mixture_problem("dpmpp", steps=3, count=32)
    shared = []
    for kappa in (0.0, 10.0):
        final = last(problem, replace(OURS, shared=kappa, epochs=8))
        residuals = residuals_of(task_of(problem), "valid", final.tuned.table(MODEL.schedule))
        shared.append(float(residuals.mean(0).square().sum()))
    assert shared[1] < 0.5 * shared[0]


def test_a_run_goes_on_to_the_bit_inside_an_epoch() -> None:
    problem, recipe = mixture_problem(count=16), replace(OURS, shared=4.0, batch=4)
    parameters = solver_parameters(problem, recipe)
    grid = ld3.make_grid("edm", MODEL.schedule, problem.steps)
    course = Course((problem,), parameters, parameters.start_values(grid))
    whole = list(learn_course(course, recipe, seed=1))
    state = from_tensors(to_tensors(whole[6].state))
    *_, end = learn_course(course, recipe, seed=1, state=state)
    assert torch.equal(end.tuned.grid.times, whole[-1].tuned.grid.times)
    assert end.best == whole[-1].best
    assert end.state.evaluations == whole[-1].state.evaluations


def test_it_is_refused_where_it_has_no_meaning() -> None:
    problem, recipe = mixture_problem(count=4), replace(OURS, shared=1.0)
    parameters = solver_parameters(problem, recipe)
    start = parameters.start_values(ld3.make_grid("edm", MODEL.schedule, 4))
    both = Course((problem, replace(problem, steps=3)), parameters, start)
    with pytest.raises(SpecError, match="recipe shared: got 1 for several problems"):
        next(learn_course(both, recipe))
    with pytest.raises(SpecError, match="or with soft forcing"):
        next(learning(problem, replace(recipe, gamma=0.1), ld3.make_grid("edm", MODEL.schedule, 4)))


def test_too_many_features_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, table = mixture_problem(count=6), table_of("edm")
    monkeypatch.setattr("ld3.learner.shared_error.LARGEST", 48)
    assert residuals_of(task_of(problem), "train", table).shape == (6, 8)
    monkeypatch.setattr("ld3.learner.shared_error.LARGEST", 47)
    with pytest.raises(SpecError, match="got 6 pairs with 8 features each, expected at most 47"):
        residuals_of(task_of(problem), "train", table)


def test_residuals_are_those_of_all_pairs_of_the_part() -> None:
    problem, table = mixture_problem(count=6), table_of("edm")
    problem = replace(problem, valid=mixture_problem(count=3).valid)
    task = task_of(problem)
    for part, count in (("train", 6), ("valid", 3)):
        found = residuals_of(task, part, table)  # type: ignore[arg-type]
        losses = task.student.losses(part, torch.arange(count), table)  # type: ignore[arg-type]
        assert torch.allclose(found.double().square().sum(1), losses.double(), rtol=1e-5)


def test_no_piece_of_the_work_is_made_inside_another() -> None:
    """Ranks share pieces: inside one of them, a rank would wait for the others forever."""
    inside = False

    def share(make: Callable[[Any], Tensors], items: Sequence[Any], /) -> Iterator[Tensors]:
        nonlocal inside
        for item in items:
            assert not inside
            inside = True
            made = make(item)
            inside = False
            yield made

    problem, table = mixture_problem(count=8), table_of("edm")
    alone = residuals_of(task_of(problem), "train", table)
    assert torch.equal(residuals_of(task_of(replace(problem, share=share)), "train", table), alone)


def test_without_it_a_run_has_the_name_it_had() -> None:
    assert "shared" not in recipe_facts(OURS)
    assert recipe_facts(replace(OURS, shared=2.0))["shared"] == 2.0
