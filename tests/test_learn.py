"""The learner: closed-form optima, iterations written out by hand, and continuing to the bit."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ld3 import EDM, FunctionModel, Model, TimeGrid, make_grid, make_solver
from ld3 import problem as student_module
from ld3.density import Warp
from ld3.distances import l2
from ld3.errors import ModelError, PlanError, SpecError
from ld3.known_grids import tangent_law
from ld3.learner import learn as module
from ld3.learner.course import Course
from ld3.learner.forcing import keep_better, projected_step, radius
from ld3.learner.learn import Progress, learn_course, learning, solver_parameters
from ld3.learner.presets import make_preset
from ld3.learner.recipes import GaussNewton, PaperRules, PreconditionedAdam, Recipe
from ld3.learner.rules import batch_order
from ld3.learner.starts import ROUGH, find_starts
from ld3.parameters import FamilyParameters
from ld3.problem import Problem, Student
from ld3.runs.states import from_tensors, to_tensors
from ld3.store import read_tensors, write_tensors
from ld3.table import Table, TunedSolver
from ld3.zoo.toy import mixture
from learning_toys import (
    ADAM,
    MODEL,
    STD,
    Linear,
    columns,
    counted,
    euler_problem,
    linear_problem,
    linear_values,
    mixture_problem,
    solved_pairs,
)

N = 6
OURS = PreconditionedAdam(
    learn="times+net+coefficients", epochs=3, rate=0.08, precondition=8, warm_up=2, average=0.9,
    validate_every=3, power=0.75,
)  # fmt: skip
PAPER = make_preset("paper-pixel", N).recipe
assert isinstance(PAPER, PaperRules)
THETA = (0.02, 0.3)


def table(problem: Problem, grid: TimeGrid) -> Table:
    return TunedSolver(problem.solver, grid).table(problem.model.schedule)


def run(problem: Problem, recipe: Recipe, start: TimeGrid | None = None) -> Progress:
    grid = make_grid("logsnr", problem.model.schedule, problem.steps) if start is None else start
    *_, last = learning(problem, recipe, grid)
    return last


def linear_run(
    problem: Problem, recipe: Recipe, theta: tuple[float, float] = THETA, seed: int = 0
) -> list[Progress]:
    course = Course((problem,), Linear(), linear_values(*theta))
    return list(learn_course(course, recipe, seed=seed))


def theta_of(progress: Progress) -> Tensor:
    return Linear().flat(progress.state.values)


# ---- closed forms


def test_euler_on_gaussian_data_learns_the_tangent_law() -> None:
    recipe = replace(ADAM, batch=16, epochs=250, learn="times", rate_times=0.1, floor=0.001)
    grid = run(euler_problem(), recipe).tuned.grid
    wanted = tangent_law(EDM(), N, STD).times
    assert (grid.times / wanted - 1).abs().max() < 1e-4
    assert torch.equal(grid.times, grid.net_times)


def test_network_times_make_euler_exact() -> None:
    recipe = replace(ADAM, batch=16, epochs=250, floor=0.001)
    result = run(euler_problem(), recipe)
    assert result.best < 1e-12
    assert result.best < 1e-9 * run(euler_problem(), replace(recipe, learn="times")).best


@pytest.mark.parametrize("reach", ["inside", "outside"])
def test_soft_forcing_in_closed_form(reach: str) -> None:
    """Student rho k x against k x: the best x' is radial, x / rho if the ball reaches that far.

    Else the residual is k max(0, (1 - rho)|x| - rho r sigma_T).
    """
    d = 4
    problem = euler_problem(d)
    grid = tangent_law(EDM(), N, STD)
    angle = torch.atan(grid.times / STD)
    rho = torch.cos(angle[:-1] - angle[1:]).prod().item()
    k = (problem.train.target / (80 * problem.train.noise)).mean().item()
    size = torch.linalg.vector_norm(problem.train.noise, dim=1)
    needed = ((1 / rho - 1) * size).max().item()
    r = 2 * needed if reach == "inside" else 0.3 * needed
    student, near, index = Student(problem), problem.train.noise, torch.arange(16)
    for _ in range(200):
        leaf = near.clone().requires_grad_()
        losses = student.losses("train", index, table(problem, grid), leaf)
        (slope,) = torch.autograd.grad(losses.sum(), leaf)
        near = projected_step(near, problem.train.noise, slope, 0.2 * d / (rho * k * 80) ** 2, r)
        away = torch.linalg.vector_norm(near - problem.train.noise, dim=1)
        assert bool((away <= r * (1 + 1e-6)).all())
    residual = (d * student.losses("train", index, table(problem, grid), near)).sqrt()
    wanted = k * 80 * ((1 - rho) * size - rho * r).clamp_min(0)
    assert (residual - wanted).abs().max() < 1e-6


# ---- iterations written out


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_iterations_of_sgd_by_hand(power: float) -> None:
    """Batches in order, warm-up times cosine, clipping, the average, and its validation."""
    problem = linear_problem(5, 2)
    recipe = PaperRules(
        rule_times="sgd", rule_net="sgd", rate_times=2e-5, rate_net=0.01, clip=1.5, gamma=0.0,
        decay="cosine", warm_up=2, average=0.6, epochs_times=1, epochs=2, batch=2, power=power,
        validate_every=2,
    )  # fmt: skip
    items = linear_run(problem, recipe, seed=4)
    assert [item.iteration for item in items] == list(range(10))
    assert [item.total for item in items] == [9] * 10
    theta = average = best_theta = torch.tensor(THETA, dtype=torch.float64)

    def distances(theta: Tensor, index: list[int], part: str) -> Tensor:
        a, y = columns(problem, index, part)
        return (a @ theta - y).view(len(index), 2).square().mean(1)

    def validation(theta: Tensor) -> float:
        return float((distances(theta, list(range(5)), "valid") ** power).mean()) ** (1 / power)

    best = validation(theta)
    assert (items[0].best, items[0].loss, items[0].valid) == (pytest.approx(best), None, None)
    for i, item in enumerate(items[1:]):
        epoch, position = divmod(i, 3)
        index = batch_order(5, 4, epoch)[2 * position : 2 * position + 2].tolist()
        d = distances(theta, index, "train")
        a, y = columns(problem, index)
        r = (a @ theta - y).view(len(index), 2)
        weight = power * d ** (power - 1) / len(index)  # of d in the mean of d^p
        slope = a.T @ (weight[:, None] * r).flatten()
        slope = slope * (1.5 / slope.abs()).clamp(max=1)  # each group has one parameter
        factor = min(1, (i + 1) / 3) * 0.5 * (1 + math.cos(math.pi * i / 9))
        rates = torch.tensor([2e-5, 0.01 if epoch >= 1 else 0.0], dtype=torch.float64)
        theta = theta - factor * rates * slope
        keep = min(0.6, (i + 1) / (i + 10))
        average = keep * average + (1 - keep) * theta
        assert item.loss == pytest.approx(float(d.mean()), rel=1e-6)
        assert torch.allclose(theta_of(item), theta, rtol=1e-5)
        assert torch.allclose(Linear().flat(item.state.average), average, rtol=1e-5)
        if (i + 1) % 2 == 0 or i == 8:
            assert item.valid == pytest.approx(validation(average), rel=1e-5)
            if validation(average) < best:
                best, best_theta = validation(average), average
        else:
            assert item.valid is None
        assert item.best == pytest.approx(best, rel=1e-5)
        assert torch.allclose(Linear().flat(item.state.best_values), best_theta, rtol=1e-5)
    assert best < items[0].best


def test_iterations_of_preconditioned_adam_by_hand() -> None:
    """phi moves by Adam on W g; theta by W phi; the rate is the one in the state."""
    problem = linear_problem(4, 2)
    recipe = PreconditionedAdam(
        rate=0.3, batch=4, epochs=3, decay="plateau", patience=1, factor=0.5, validate_every=1,
        precondition=4, clip=0.7,
    )  # fmt: skip
    items = linear_run(problem, recipe)
    w = items[0].state.preconditioner
    theta = torch.tensor(THETA, dtype=torch.float64)
    a, y = columns(problem, range(4))
    m = s = torch.zeros(2, dtype=torch.float64)
    rate = 0.3
    for i, item in enumerate(items[1:], start=1):
        g = w @ (a.T @ (a @ theta - y) / 4)
        g = g * min(1, 0.7 / float(g.norm()))
        m, s = 0.9 * m + 0.1 * g, 0.99 * s + 0.01 * g**2
        step = m / (1 - 0.9**i) / ((s / (1 - 0.99**i)).sqrt() + 1e-8)
        theta = theta - rate * (w @ step)
        better = item.valid is not None and item.valid == item.best
        if not better:
            rate *= 0.5
            theta = Linear().flat(item.state.best_values)
        assert torch.allclose(theta_of(item), theta, rtol=1e-4)
        assert float(item.state.rates["all"]) == pytest.approx(rate)


def test_the_decayed_rate_is_the_rate_of_the_step() -> None:
    """Adam's first step in phi is the rate, whatever the slope."""
    problem, theta = linear_problem(4, 2), torch.tensor(THETA, dtype=torch.float64)
    recipe = PreconditionedAdam(batch=4, epochs=1, decay="plateau", validate_every=5)
    course = Course((problem,), Linear(), linear_values(*THETA))
    first = next(iter(learn_course(course, recipe))).state
    for rate in (0.1, 0.05):
        state = replace(first, rates={"all": torch.tensor(rate).double()})
        *_, last = learn_course(course, recipe, state=state)
        phi = torch.linalg.solve(first.preconditioner, theta_of(last) - theta)
        assert phi.abs().tolist() == pytest.approx([rate, rate], rel=1e-4)


def test_the_decayed_rates_of_the_groups_are_those_of_the_step() -> None:
    problem, theta = linear_problem(4, 2), torch.tensor(THETA, dtype=torch.float64)
    recipe = PaperRules(
        rule_times="sgd", rule_net="sgd", gamma=0.0, batch=4, epochs_times=0, epochs=1,
        validate_every=5, clip=0.5,
    )  # fmt: skip
    course = Course((problem,), Linear(), linear_values(*THETA))
    first = next(iter(learn_course(course, recipe))).state
    rates = {"times": torch.tensor(1e-3).double(), "net": torch.tensor(2e-3).double()}
    *_, last = learn_course(course, recipe, state=replace(first, rates=rates))
    assert (theta_of(last) - theta).abs().tolist() == pytest.approx([5e-4, 1e-3], rel=1e-4)


@pytest.mark.parametrize("recipe", [replace(OURS, batch=4), replace(ADAM, batch=4)])
def test_batches_follow_the_seed(recipe: PreconditionedAdam | PaperRules) -> None:
    problem = mixture_problem(count=10)
    seen: list[list[int]] = []

    class Watched(Student):
        def losses(self, part, index, table, noise=None):  # type: ignore[no-untyped-def]
            if part == "train" and torch.is_grad_enabled():
                seen.append(index.tolist())
            return super().losses(part, index, table, noise)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ld3.learner.course.Student", Watched)
        list(learning(problem, replace(recipe, epochs=2), make_grid("edm", EDM(), 4), seed=5))
    wanted = []
    for epoch in (0, 1):
        order = batch_order(10, 5, epoch).tolist()
        wanted += [order[:4], order[4:8], order[8:]]
    assert seen == wanted


def test_gauss_newton_moves_all_problems_at_once() -> None:
    """Each iteration is one step on the batch; values and average are the same."""
    from ld3.learner.course import Task
    from ld3.learner.least_squares import gauss_newton_step

    problem = linear_problem(6, 2)
    items = linear_run(problem, GaussNewton(batch=3, epochs=2))
    values = linear_values(*THETA)
    for i, item in enumerate(items[1:]):
        index = batch_order(6, 0, i // 2)[3 * (i % 2) : 3 * (i % 2) + 3]
        values, loss = gauss_newton_step([Task(Student(problem), 1)], Linear(), values, index)  # type: ignore[assignment]
        assert item.loss == pytest.approx(loss)
        assert torch.equal(theta_of(item), Linear().flat(values))
        assert torch.equal(Linear().flat(item.state.average), Linear().flat(values))
        assert item.valid is not None


# ---- plateaus in a run


def stuck(problem: Problem) -> Problem:
    """All batches are skipped, so that validation never improves."""
    return replace(problem, train=replace(problem.train, target=problem.train.target * math.nan))


def test_plateaus_of_a_run_that_does_not_improve() -> None:
    recipe = PreconditionedAdam(
        rate=0.4, min_rate=0.1, factor=0.5, patience=2, decay="plateau", validate_every=1,
        batch=1, epochs=30, max_skipped=100,
    )  # fmt: skip
    problem = linear_problem(5)
    course = Course((problem,), Linear(), linear_values(*THETA))
    state = next(iter(learn_course(course, recipe))).state
    items = list(learn_course(replace(course, problems=(stuck(problem),)), recipe, state=state))
    # 5 iterations an epoch: plateaus after 2 and 4; a new epoch begins to count again
    rates = [float(item.state.rates["all"]) for item in items]
    assert rates == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    assert [item.state.at_minimum for item in items] == [0] * 7 + [1, 1, 2]
    assert [item.state.done for item in items] == [False] * 9 + [True]


def test_the_best_values_are_reloaded_at_the_start_of_an_epoch() -> None:
    """Plateau decay only; a step that makes validation worse is forgotten there."""
    problem = linear_problem(4, 2)
    a, y = columns(problem, range(4), "valid")
    best = tuple(torch.linalg.lstsq(a, y).solution.tolist())
    for decay in ("plateau", "cosine"):
        recipe = PaperRules(
            rule_times="sgd", rule_net="sgd", rate_times=1e-5, rate_net=0.01, gamma=0.0,
            decay=decay, batch=2, epochs_times=0, epochs=2, patience=99,
        )  # fmt: skip
        items = linear_run(problem, recipe, best)  # type: ignore[arg-type]
        start = torch.tensor(best, dtype=torch.float64)
        assert all(torch.equal(Linear().flat(i.state.best_values), start) for i in items)
        again = linear_run(problem, replace(recipe, epochs=1), best)  # type: ignore[arg-type]
        index = batch_order(4, 0, 1)[:2].tolist()
        b, z = columns(problem, index)
        origin = start if decay == "plateau" else theta_of(items[2])
        slope = b.T @ (b @ origin - z) / 2
        slope = slope * (1 / slope.abs()).clamp(max=1)
        factor = 0.5 if decay == "cosine" else 1.0
        rates = torch.tensor([1e-5, 0.01], dtype=torch.float64)
        assert torch.allclose(theta_of(items[3]), origin - factor * rates * slope, rtol=1e-6)
        assert not torch.equal(theta_of(again[-1]), start)


def test_first_epochs_keep_the_network_times() -> None:
    recipe = replace(ADAM, epochs_times=2, epochs=1, rate_net=0.1)
    states = [p.state for p in learning(euler_problem(), recipe, make_grid("edm", EDM(), N))]
    assert all(bool((state.values["net"] == 0).all()) for state in states[:5])
    assert not torch.equal(states[4].values["times"], states[0].values["times"])
    assert bool((states[-1].values["net"] != 0).any())


# ---- validation


def test_the_best_is_what_its_validation_loss_says() -> None:
    problem = euler_problem()
    for power in (1.0, 0.5):
        recipe = replace(ADAM, epochs=6, validate_every=1, rate_times=0.3, power=power)
        result = run(problem, recipe)
        loss = Student(problem).mean_loss(table(problem, result.tuned.grid), power=power)
        assert loss == result.best
        assert result.tuned.solver == problem.solver


def test_one_far_sample_does_not_decide_what_is_learned_from_roots() -> None:
    """With a target out of reach among the pairs, the others are met better."""
    problem = euler_problem()
    target = problem.train.target.clone()
    target[0] += 5.0
    spoilt = replace(problem, train=replace(problem.train, target=target))
    student = Student(problem)
    left = []
    for power in (1.0, 0.5):
        recipe = replace(
            ADAM, batch=16, epochs=100, validate_every=100, rate_times=0.1, power=power
        )
        last = run(spoilt, recipe)
        grid = solver_parameters(problem, recipe).tuned(last.state.values, N).grid
        left.append(student.mean_loss(table(problem, grid)))
    assert left[1] < 0.5 * left[0]


def test_a_start_whose_loss_is_not_finite_can_be_improved() -> None:
    problem = linear_problem(4, 2)
    bad = replace(problem, valid=replace(problem.valid, target=problem.valid.target * math.nan))
    course = Course((bad,), Linear(), linear_values(*THETA))
    state = next(iter(learn_course(course, GaussNewton(batch=4, epochs=1)))).state
    assert state.best == math.inf
    *_, last = learn_course(
        replace(course, problems=(problem,)), GaussNewton(batch=4, epochs=1), state=state
    )
    assert math.isfinite(last.best)


def test_the_learned_grid_is_better_on_noise_it_never_saw() -> None:
    model = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)
    train, valid, held = (
        solved_pairs(model, seeds) for seeds in (range(32), range(1000, 1032), range(2000, 2064))
    )
    for name in ("dpmpp", "ipndm", "unipc", "euler"):
        problem = Problem(model, make_solver(name), 5, l2, train, valid)
        starts = [make_grid(method, model.schedule, 5) for method in ("edm", "logsnr", "cosine")]
        scorer = Student(replace(problem, valid=held))
        losses = [scorer.mean_loss(table(problem, grid)) for grid in starts]
        start = starts[losses.index(min(losses))]
        result = run(problem, replace(ADAM, epochs=20, rate_net=0.02, average=0.8), start)
        assert scorer.mean_loss(table(problem, result.tuned.grid)) < 0.8 * min(losses), name


def test_coefficients_help_on_noise_they_never_saw() -> None:
    problem, start = mixture_problem("dpmpp"), make_grid("edm", EDM(), 4)
    scorer = Student(replace(problem, valid=solved_pairs(MODEL, range(2000, 2128))))
    losses = []
    for what in ("times+net", "times+net+coefficients"):
        recipe = PreconditionedAdam(learn=what, epochs=40, rate=0.12, average=0.9)  # type: ignore[arg-type]
        losses.append(scorer.mean_loss(run(problem, recipe, start).tuned.table(EDM())))
    assert losses[0] < 0.7 * scorer.mean_loss(table(problem, start))
    assert losses[1] < 0.9 * losses[0]


@pytest.mark.parametrize("method", ["dpmpp", "unipc", "ipndm", "euler"])
def test_learning_without_gradients(method: str) -> None:
    """Under no_grad throughout, better than the start on held-out noise."""
    problem = mixture_problem(method)
    held = solved_pairs(MODEL, range(2000, 2128))
    start = make_grid("edm", EDM(), 4)
    with torch.no_grad():
        last = run(problem, GaussNewton(epochs=6), start)
    scorer = Student(replace(problem, valid=held))
    own = scorer.mean_loss(last.tuned.table(EDM()))
    assert own < 0.3 * scorer.mean_loss(table(problem, start))


def test_gradients_are_switched_on_where_they_are_needed() -> None:
    problem, start = euler_problem(2), make_grid("edm", EDM(), N)
    recipe = replace(PAPER, epochs_times=1, epochs=1, gamma=0.3)
    with torch.no_grad():
        without = run(problem, recipe, start)
    assert torch.equal(run(problem, recipe, start).tuned.grid.times, without.tuned.grid.times)


# ---- soft forcing


SOFT = PaperRules(
    rule_times="sgd", rule_net="sgd", rate_times=1e-5, rate_net=0.005, gamma=0.4, rate_noise=0.3,
    decay="plateau", batch=2, epochs_times=0, epochs=2, patience=99,
)  # fmt: skip


def test_hard_forcing_has_no_noise_of_its_own() -> None:
    for recipe in (replace(PAPER, gamma=0.0, epochs=1), OURS, GaussNewton(epochs=1)):
        state = run(euler_problem(4), recipe).state
        assert len(state.noise_train) == len(state.noise_valid) == 0
        assert state.rate_noise == getattr(recipe, "rate_noise", 0.0)


@pytest.mark.parametrize("recipe", [SOFT, replace(OURS, gamma=0.4, rate_noise=2.0, power=1.0)])
def test_soft_forcing_keeps_to_the_ball(recipe: PaperRules | PreconditionedAdam) -> None:
    problem = euler_problem(4)
    state = run(problem, recipe).state
    r = radius(0.4, (4,), N)
    for near, pairs in ((state.noise_train, problem.train), (state.noise_valid, problem.valid)):
        away = torch.linalg.vector_norm(near - pairs.noise, dim=1)
        assert bool((away <= r * (1 + 1e-6)).all())
        assert away.max() > 0


def test_soft_forcing_by_hand() -> None:
    """The noise of the batch moves after theta, and only where that lowers the loss."""
    problem = linear_problem(4, 2)
    r = radius(0.4, (2,), 1)
    items = linear_run(problem, SOFT)
    centre, target = problem.train.noise, problem.train.target

    def distance(theta: Tensor, z: Tensor, index: list[int]) -> Tensor:
        x = 80 * z
        sample = theta[0] * x + theta[1] * (1 + torch.tanh(x / 40))
        return (sample - target[index]).square().mean(1)

    z, theta = centre.clone(), torch.tensor(THETA, dtype=torch.float64)
    moved = 0
    for i, item in enumerate(items[1:5]):
        if i == 2:
            theta = Linear().flat(items[2].state.best_values)  # a new epoch
        index = batch_order(4, 0, i // 2)[2 * (i % 2) : 2 * (i % 2) + 2].tolist()
        leaf, near = theta.clone().requires_grad_(), z[index].clone().requires_grad_()
        d = distance(leaf, near, index)
        slope, noise_slope = torch.autograd.grad(d.mean(), (leaf, near))
        slope = slope * (1 / slope.abs()).clamp(max=1)
        theta = theta - torch.tensor([1e-5, 0.005], dtype=torch.float64) * slope
        assert torch.allclose(theta_of(item), theta, rtol=1e-5)
        rate = items[i].state.rate_noise
        candidate = projected_step(z[index], centre[index], noise_slope, rate, r)
        kept = keep_better(z[index], candidate, d.detach(), distance(theta, candidate, index))
        moved += int((kept != z[index]).any(1).sum())
        z[index] = kept
        assert torch.allclose(item.state.noise_train, z, atol=1e-5)
    assert moved > 0


def test_validation_noise_moves_once_an_epoch_and_the_best_is_computed_again() -> None:
    problem = linear_problem(4, 2)
    items = linear_run(problem, SOFT)
    noises = [item.state.noise_valid for item in items]
    assert torch.equal(noises[0], problem.valid.noise)
    assert torch.equal(noises[1], noises[0])
    assert not torch.equal(noises[2], noises[1])
    assert torch.equal(noises[3], noises[2])
    assert not torch.equal(noises[4], noises[3])
    average = Linear().table(items[3].state.average, 1)
    assert items[3].valid == Student(problem).mean_loss(average, noises[2])
    state = items[2].state
    best = Linear().table(state.best_values, 1)
    assert state.best == Student(problem).mean_loss(best, state.noise_valid)
    values, z = Linear().table(state.values, 1), problem.valid.noise.clone()
    student = Student(problem)
    for index in ([0, 1], [2, 3]):
        near = z[index].clone().requires_grad_()
        d = student.losses("valid", torch.tensor(index), values, near)
        (slope,) = torch.autograd.grad(d.mean(), near)
        rate, r = SOFT.rate_noise, radius(0.4, (2,), 1)
        candidate = projected_step(z[index], problem.valid.noise[index], slope, rate, r)
        with torch.no_grad():
            after = student.losses("valid", torch.tensor(index), values, candidate)
        z[index] = keep_better(z[index], candidate, d.detach(), after)
    assert torch.allclose(state.noise_valid, z)


def test_the_rate_of_the_noise_is_halved_when_nothing_moved() -> None:
    problem = linear_problem(4, 2)
    still = replace(SOFT, rate_noise=1e6, gamma=1e9)  # steps so long that all losses rise
    rates = [item.state.rate_noise for item in linear_run(problem, still)]
    assert rates == [1e6, 1e6, 5e5, 5e5, 2.5e5]
    moving = [item.state.rate_noise for item in linear_run(problem, SOFT)]
    assert moving == [0.3] * 5


# ---- skipped batches


@pytest.mark.parametrize(
    "recipe", [replace(ADAM, batch=4), replace(OURS, batch=4), GaussNewton(batch=4)]
)
def test_losses_that_are_not_finite_are_skipped_then_fatal(recipe: Recipe) -> None:
    problem = euler_problem()
    recipe = replace(recipe, epochs=10, max_skipped=5, validate_every=3)
    first = next(learning(problem, recipe, make_grid("edm", EDM(), N))).state
    steps = learning(stuck(problem), recipe, state=first)
    seen = [next(steps).state for _ in range(6)]
    with pytest.raises(ModelError, match="not finite 6 times, the last at iteration 6"):
        next(steps)
    assert [s.skipped for s in seen] == [0, 1, 2, 3, 4, 5]
    assert [s.iteration for s in seen] == [0, 1, 2, 3, 4, 5]
    for name in first.values:
        assert torch.equal(seen[-1].values[name], first.values[name])
        assert torch.equal(seen[-1].average[name], first.average[name])
    assert seen[-1].optimizer == {}
    assert seen[-1].since_best == 1


def test_a_loss_that_is_not_finite_is_enough() -> None:
    """Its slope may be finite."""
    problem = replace(linear_problem(4, 2), distance=lambda x, y: l2(x, y) + math.inf)
    items = linear_run(problem, replace(ADAM, batch=4, epochs=2))
    assert items[-1].state.skipped == 2
    assert theta_of(items[-1]).tolist() == list(THETA)


def test_one_bad_pair_costs_its_batch_only() -> None:
    problem = euler_problem()
    target = problem.train.target.clone()
    target[3] = math.inf
    bad = replace(problem, train=replace(problem.train, target=target))
    items = list(learning(bad, replace(ADAM, batch=4, epochs=2), make_grid("edm", EDM(), N)))
    assert items[-1].state.skipped == 2
    moved = [
        not torch.equal(a.state.values["times"], b.state.values["times"])
        for a, b in pairwise(items)
    ]
    assert sum(moved) == 6


# ---- several problems


def guided(guidance: float) -> Problem:
    def conditions(seeds: object) -> Tensor:
        return torch.tensor([[float(s % 3) - 1] for s in seeds])  # type: ignore[attr-defined]

    model = FunctionModel(
        lambda x, t, c: MODEL.forward(x, t, None) + 0.1 * c * torch.tanh(x),  # type: ignore[operator]
        EDM(), "x0", (8,), None, conditions, lambda c: torch.zeros_like(c),  # type: ignore[arg-type]
    )  # fmt: skip
    train, valid = (solved_pairs(model, s, 40, guidance) for s in (range(8), range(100, 108)))
    return Problem(model, make_solver("dpmpp"), 4, l2, train, valid, guidance)


def test_problems_count_by_their_loss_over_that_of_the_start() -> None:
    """They take turns; losses, slopes and validation are scaled."""
    first = linear_problem(4, 2)
    far = replace(first.train, target=10 + first.train.target)
    second = replace(first, train=far, valid=replace(first.valid, target=10 + first.valid.target))
    recipe = PaperRules(
        rule_times="sgd", rule_net="sgd", rate_times=1e-5, rate_net=0.02, gamma=0.0, batch=4,
        epochs_times=0, epochs=2, decay="cosine", clip=math.inf,
    )  # fmt: skip
    course = Course((first, second), Linear(), linear_values(*THETA))
    items = list(learn_course(course, recipe))
    theta = torch.tensor(THETA, dtype=torch.float64)

    def loss(problem: Problem, theta: Tensor, part: str) -> float:
        a, y = columns(problem, range(4), part)
        return float((a @ theta - y).square().mean())

    scales = [1 / loss(problem, theta, "valid") for problem in (first, second)]
    assert items[0].state.scales.tolist() == pytest.approx(scales)
    assert items[0].best == 1.0
    for i, problem in enumerate((first, second)):
        assert items[i + 1].loss == pytest.approx(scales[i] * loss(problem, theta, "train"))
        a, y = columns(problem, range(4))
        slope = scales[i] * a.T @ (a @ theta - y) / 4
        factor = 0.5 * (1 + math.cos(math.pi * i / 2))
        theta = theta - factor * torch.tensor([1e-5, 0.02], dtype=torch.float64) * slope
        assert torch.allclose(theta_of(items[i + 1]), theta, rtol=1e-6)
        valid = sum(
            s * loss(p, theta, "valid") for s, p in zip(scales, (first, second), strict=True)
        )
        assert items[i + 1].valid == pytest.approx(valid / 2, rel=1e-5)


def test_a_family_is_learned_for_all_its_steps() -> None:
    base = mixture_problem(count=16)
    problems = tuple(replace(base, steps=steps) for steps in (3, 5, 7))
    parameters = FamilyParameters(base.solver, Warp(EDM(), 3, 7))
    start = parameters.start_values(0.0, 2.0)
    course = Course(problems, parameters, start)
    recipe = PreconditionedAdam(epochs=15, average=0.9, validate_every=15)
    *_, last = learn_course(course, recipe)
    assert last.best < 0.7
    assert last.tuned.nfe == 3
    student = Student(base)
    ratios = [
        student.mean_loss(parameters.table(last.state.best_values, steps))
        / student.mean_loss(parameters.table(start, steps))
        for steps in (3, 5, 7)
    ]
    assert sum(ratios) / 3 == pytest.approx(last.best, rel=1e-4)


def test_a_range_of_guidance_is_learned_at_all_its_scales() -> None:
    problems = tuple(guided(scale) for scale in (2.0, 1.0, 3.0))
    parameters = solver_parameters(problems[0], OURS)
    course = Course(problems, parameters, parameters.start_values(make_grid("edm", EDM(), 4)))
    *_, last = learn_course(course, replace(OURS, epochs=20))
    ratios = []
    for problem in problems:
        student = Student(problem)
        before, after = (
            student.mean_loss(parameters.table(values, 4), power=0.75)
            for values in (course.start, last.state.best_values)
        )
        ratios.append(after / before)
    assert sum(ratios) / 3 == pytest.approx(last.best, rel=1e-3)
    assert max(ratios) < 0.9


def test_soft_forcing_is_for_one_problem() -> None:
    problem = linear_problem(4, 2)
    course = Course((problem, problem), Linear(), linear_values(*THETA))
    with pytest.raises(SpecError, match="soft forcing for several problems"):
        next(learn_course(course, SOFT))


# ---- rough networks and long trajectories


def rippled(size: float) -> FunctionModel:
    """A mixture whose denoiser ripples in lam with a period of 0.1, as if made for whole times."""
    toy = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)

    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        wave = torch.sin(2 * math.pi * toy.schedule.lam(t) / 0.1)
        return toy.forward(x, t, None) + size * wave * torch.cos(3 * x)

    return FunctionModel(forward, toy.schedule, "x0", (2,), torch.float64)


def toy_problem(model: Model, steps: int = 5) -> Problem:
    train, valid = (solved_pairs(model, seeds, 300) for seeds in (range(32), range(1000, 1032)))
    return Problem(model, make_solver("dpmpp"), steps, l2, train, valid)


def test_roughness_is_seen() -> None:
    grid = make_grid("logsnr", EDM(), 5)
    assert Student(toy_problem(rippled(0))).roughness(grid) < 0.05
    assert Student(toy_problem(rippled(0.005))).roughness(grid) > ROUGH


def test_secants_find_the_way_where_slopes_mislead() -> None:
    """On a rippled network; and on a smooth one they cost quality nothing to speak of."""
    recipe = replace(ADAM, epochs=15, rate_net=0.03, average=0.8, validate_every=5)
    ends = {}
    for size in (0.0, 0.005):
        problem = toy_problem(rippled(size))
        for h in (0.0, 0.1):
            ends[size, h] = run(replace(problem, secant=h), recipe).best
    assert ends[0.005, 0.1] < 0.8 * ends[0.005, 0.0]
    assert ends[0.0, 0.1] < 1.2 * ends[0.0, 0.0]


@pytest.mark.parametrize("secant", [0.0, 0.1])
def test_calls_that_are_computed_again_change_no_bit(
    monkeypatch: pytest.MonkeyPatch, secant: float
) -> None:
    problem = replace(toy_problem(rippled(0), 10), secant=secant)
    recipe, found = replace(ADAM, epochs=1, validate_every=4), []
    for kept in (1, 3, 100):
        monkeypatch.setattr(student_module, "KEPT", kept)
        found.append(run(problem, recipe).state)
    for other in found[1:]:
        assert torch.equal(found[0].values["times"], other.values["times"])
        assert torch.equal(found[0].values["net"], other.values["net"])
    per_sample = [(state.evaluations - found[2].evaluations) / 32 for state in found]
    assert per_sample == [8.0, 6.0, 0.0]


# ---- the easy form


def test_without_a_start_the_best_known_grid_is_taken() -> None:
    problem, count = counted(mixture_problem("unipc", 5, 12))
    found = find_starts(problem, 1, 0.75)
    count.forward = 0
    first = next(learning(problem, OURS))
    grid = make_grid(found.names[0], EDM(), 5)
    assert torch.allclose(first.tuned.grid.times, grid.times)
    assert first.best == pytest.approx(found.losses[found.names[0]], rel=1e-6)
    assert first.state.evaluations == count.cost
    assert first.state.evaluations > found.evaluations
    assert first.state.secant == 0.0


def test_without_a_start_rough_networks_get_secants() -> None:
    """And a run that continues has them too, from its state."""
    problem = toy_problem(rippled(0.02))
    recipe = replace(ADAM, epochs=1, batch=16, validate_every=1)
    whole = list(learning(problem, recipe))
    assert whole[0].state.secant == student_module.SECANT
    again = list(learning(problem, recipe, state=whole[1].state))
    assert torch.equal(again[-1].state.values["times"], whole[-1].state.values["times"])


def test_a_tuned_solver_is_a_start() -> None:
    problem = mixture_problem(count=8)
    last = run(problem, OURS, make_grid("edm", EDM(), 4))
    first = next(learning(problem, OURS, last.tuned))
    assert torch.allclose(first.tuned.grid.times, last.tuned.grid.times)
    assert first.best == pytest.approx(last.best, rel=1e-5)
    with pytest.raises(PlanError, match="coefficients of dpmpp"):
        next(learning(replace(problem, solver=make_solver("unipc")), OURS, last.tuned))
    with pytest.raises(PlanError, match="got a plan with learned coefficients"):
        next(learning(problem, ADAM, last.tuned))


# ---- continuing


RECIPES: dict[str, Recipe] = {
    "adam": replace(ADAM, batch=4, epochs=4, validate_every=3, average=0.8),
    "paper": replace(PAPER, epochs_times=1, epochs=2, gamma=0.3, patience=2),
    "ours": replace(OURS, batch=4),
    "plateau": replace(OURS, batch=4, decay="plateau", patience=1, validate_every=1, rate=0.5),
    "gauss-newton": GaussNewton(batch=4, epochs=3, learn="times+net+coefficients"),
}


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_stopped_run_continues_to_the_bit(tmp_path: Path, name: str) -> None:
    """The first answers are evaluated again where iterations are left, but counted once."""
    base, recipe = euler_problem(3), RECIPES[name]
    problem, count = counted(base)
    start = make_grid("edm", EDM(), N)
    whole = [p.state for p in learning(problem, recipe, start, seed=2)]
    assert whole[-1].evaluations == count.cost
    for stop in (0, 1, 5, len(whole) - 2, len(whole) - 1):
        write_tensors(tmp_path / "state.safetensors", to_tensors(whole[stop]))
        state = from_tensors(read_tensors(tmp_path / "state.safetensors"))
        count.forward = count.backward = 0
        items = list(learning(problem, recipe, state=state, seed=2))
        assert items[0].iteration == whole[stop].iteration
        assert items[0].loss is None
        ended, wanted = to_tensors(items[-1].state), to_tensors(whole[-1])
        assert set(ended) == set(wanted)
        for part in wanted:
            assert torch.equal(ended[part], wanted[part]), part
        again = 0 if name == "paper" or stop == len(whole) - 1 else 32  # train and valid
        assert count.cost == whole[-1].evaluations - whole[stop].evaluations + again


def test_a_finished_run_yields_its_state_once() -> None:
    problem, recipe = linear_problem(4, 2), GaussNewton(batch=4, epochs=1)
    course = Course((problem,), Linear(), linear_values(*THETA))
    *_, last = learn_course(course, recipe)
    (only,) = learn_course(course, recipe, state=last.state)
    assert only.state is last.state
    (done,) = learn_course(course, replace(recipe, epochs=9), state=replace(last.state, done=True))
    assert done.iteration == 1


# ---- cost


def test_the_cost_of_a_run_by_hand() -> None:
    """Hard forcing: the first answers once, then N - 1 forward and backward (as two) a sample.

    Two of these five calls are computed again.
    """
    problem, count = counted(euler_problem())
    items = list(
        learning(problem, replace(ADAM, epochs=1, validate_every=100), make_grid("edm", EDM(), N))
    )
    assert items[0].state.evaluations == 16 + 16 + 16 * (N - 1)
    learned, validated = 16 * (3 * (N - 1) + 2), 16 * (N - 1)
    total = items[0].state.evaluations + learned + validated
    assert items[-1].state.evaluations == total == count.cost


@pytest.mark.parametrize("name", sorted(RECIPES))
@pytest.mark.parametrize("secant", [0.0, 0.1])
def test_every_evaluation_is_counted(name: str, secant: float) -> None:
    """After each iteration: steps, validation, soft forcing, the preconditioner, Gauss-Newton."""
    problem, count = counted(replace(euler_problem(2), secant=secant))
    for item in learning(problem, RECIPES[name], make_grid("edm", EDM(), N)):
        assert item.state.evaluations == count.cost, item.iteration


def test_every_evaluation_of_several_problems_is_counted() -> None:
    base, count = counted(mixture_problem(count=8))
    problems = tuple(replace(base, steps=steps) for steps in (3, 4, 5))
    parameters = FamilyParameters(base.solver, Warp(EDM(), 3, 5))
    course = Course(problems, parameters, parameters.start_values(0.0, 2.0), evaluations=1000)
    for item in learn_course(course, PreconditionedAdam(epochs=3, validate_every=2)):
        assert item.state.evaluations == 1000 + count.cost


def test_the_recipe_chooses_what_is_learned() -> None:
    problem = mixture_problem()
    made = solver_parameters(
        problem, PaperRules(variable="t", floor=0.2, window_from="logits", learn="times")
    )
    assert (made.learned, made.grids.variable, made.grids.floor) == (("times",), "t", 0.2)
    assert made.grids.window_from == "logits"
    ours = solver_parameters(problem, replace(OURS, exact=False))
    assert (ours.exact, ours.grids.window_from, ours.grids.steps) == (False, "gaps", 4)
    assert module.solver_parameters(problem, OURS).exact
