"""Tuned solvers: corrections of the table, their exactness, and the coordinates they move in."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ld3 import (
    SOLVERS,
    FunctionModel,
    Plan,
    VPLinear,
    bind,
    bind_network,
    compile_table,
    integrate,
    knots,
    make_grid,
    make_solver,
    noise,
)
from ld3.distances import l2
from ld3.errors import PlanError
from ld3.learner.differences import gauss_newton, normal_equations, precondition
from ld3.learner.learn import Recipe, State, begin, learn, tuning_of
from ld3.parameters import GROUPS, Clock, SolverTuning, tuned_table
from ld3.problem import Problem, Student, Task
from ld3.schedules import schedule_to_json
from ld3.table import Tuned
from ld3.teacher import teach
from ld3.zoo.toy import mixture

MEANS = 0.6 * torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
MODEL = mixture(MEANS.tolist(), 0.5)
NAMES = sorted(SOLVERS)


def problem(solver: str = "dpmpp", steps: int = 4) -> Problem:
    fine = make_grid("logsnr", MODEL.schedule, 100)
    train, valid = (
        teach(MODEL, "toy", make_solver("unipc"), fine, seeds)
        for seeds in (range(32), range(1000, 1032))
    )
    return Problem(MODEL, make_solver(solver), steps, l2, train, valid)


def tuning(solver: str, steps: int = 4, exact: bool = False) -> SolverTuning:
    return SolverTuning(make_solver(solver), Clock(VPLinear(), steps), GROUPS, exact)


def shaken(made: SolverTuning, size: float = 0.05) -> tuple[dict[str, Tensor], Tuned]:
    """Numbers of a grid, moved at random, and what they stand for."""
    numbers = made.numbers(Tuned(make_grid("edm", made.clock.schedule, made.clock.steps)))
    generator = torch.Generator().manual_seed(0)
    moved = {
        name: value + size * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in numbers.items()
    }
    return moved, made.tuned(moved, made.clock.steps)


@pytest.mark.parametrize("name", NAMES)
def test_following_a_table_is_running_the_solver(name: str) -> None:
    solver = make_solver(name)
    grid = make_grid("edm", MODEL.schedule, 5)
    k = knots(MODEL.schedule, grid)
    x = MODEL.schedule.prior_std * noise(range(3), (8,), torch.float64)
    wanted = integrate(bind(MODEL), solver, k, x)
    table = compile_table(solver, k)
    sample, answers = table.follow(bind(MODEL), x)
    assert (sample - wanted).abs().max() < 1e-10
    again, _ = table.follow(lambda x, t: pytest.fail("asked again"), x, answers)
    assert torch.equal(again, sample)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("exact", [False, True])
def test_numbers_and_back(name: str, exact: bool) -> None:
    made = tuning(name, exact=exact)
    numbers, tuned = shaken(made)
    found = made.numbers(tuned)
    for group in ("net", "coefficients"):
        assert (found[group] - numbers[group]).abs().max() < 1e-10
    assert (made.tuned(found, 4).grid.times - tuned.grid.times).abs().max() < 1e-12
    vector = made.flat(numbers)
    assert all(torch.equal(made.unflat(vector, found)[g], numbers[g]) for g in GROUPS)


@pytest.mark.parametrize("name", NAMES)
def test_zero_corrections_are_the_solver_itself(name: str) -> None:
    made = tuning(name)
    grid = make_grid("edm", VPLinear(), 4)
    plain = compile_table(made.solver, knots(VPLinear(), grid))
    table = made.table(made.numbers(Tuned(grid)), 4)
    assert (table.weights - plain.weights).abs().max() < 1e-12
    assert table.nfe == made.solver.nfe(4)


@pytest.mark.parametrize("prediction", ["eps", "v", "flow"])
def test_corrections_are_the_same_in_every_prediction(prediction: str) -> None:
    """The table on raw outputs samples what the table on x0 does."""
    from ld3 import FunctionModel
    from ld3.predictions import from_x0

    made = tuning("dpmpp", 5)
    schedule = made.clock.schedule
    _, tuned = shaken(made)
    toy = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)

    def x0(x: Tensor, t: Tensor) -> Tensor:
        alpha, sigma = schedule.log_alpha(t).exp(), schedule.log_sigma(t).exp()
        return toy.forward(x / alpha, sigma / alpha, None)

    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        alpha, sigma = schedule.log_alpha(t).exp(), schedule.log_sigma(t).exp()
        return from_x0(prediction, x0(x, t), x, alpha, sigma)  # type: ignore[arg-type]

    model = FunctionModel(forward, schedule, prediction, (2,), torch.float64)  # type: ignore[arg-type]
    x = noise(range(4), (2,), torch.float64)
    wanted, _ = tuned_table(made.solver, schedule, tuned).follow(x0, x)
    k = knots(schedule, tuned.grid)
    table = compile_table(made.solver, k, model.prediction, tuned.corrections)
    assert (table.run(bind_network(model), x) - wanted).abs().max() < 1e-9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("exact", [False, True])
def test_exact_corrections_integrate_constant_networks(name: str, exact: bool) -> None:
    """x on the line alpha c + sigma e stays there; free corrections leave it."""
    made = tuning(name, exact=exact)
    numbers, _ = shaken(made)
    numbers["net"] = torch.zeros_like(numbers["net"])  # told the times where the solver is
    tuned = made.tuned(numbers, 4)
    schedule = made.clock.schedule
    c, e = noise([0], (5,), torch.float64), noise([1], (5,), torch.float64)
    ends = [(schedule.log_alpha(t).exp(), schedule.log_sigma(t).exp()) for t in tuned.grid.times]
    (alpha_T, sigma_T), (alpha_0, sigma_0) = ends[0], ends[-1]
    x, wanted = alpha_T * c + sigma_T * e, alpha_0 * c + sigma_0 * e
    table = tuned_table(made.solver, schedule, tuned)
    constant_x0, _ = table.follow(lambda x, t: c, x)

    def constant_eps(x: Tensor, t: Tensor) -> Tensor:
        return (x - schedule.log_sigma(t).exp() * e) / schedule.log_alpha(t).exp()

    for found in (constant_x0, table.follow(constant_eps, x)[0]):
        error = (found - wanted).abs().max()
        assert (error < 1e-9) == exact


def test_slopes_of_corrections_are_right() -> None:
    made, task = tuning("unipc", 3), problem(steps=3)
    made = replace(made, clock=replace(made.clock, schedule=MODEL.schedule))
    numbers, _ = shaken(made)
    x = MODEL.schedule.prior_std * task.train.noise[:2].double()

    def sample(vector: Tensor) -> Tensor:
        return made.table(made.unflat(vector, numbers), 3).follow(bind(MODEL), x)[0]

    # the sizes of corrections are constants to the learner, so leave the times alone
    fixed = replace(made, learned=("coefficients",))
    coefficients = fixed.flat(numbers).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v: made.table({**numbers, "coefficients": v}, 3).follow(bind(MODEL), x)[0],
        coefficients,
    )
    assert sample(made.flat(numbers)).shape == (2, 8)


def test_the_preconditioner_makes_directions_alike() -> None:
    """Slopes of the samples in phi are orthonormal but for the damping, times the error."""
    task = problem()
    recipe = Recipe(learn="times+net+coefficients")
    made, student = tuning_of(task, recipe), Student(task)
    numbers = made.numbers(Tuned(make_grid("edm", MODEL.schedule, 4)))
    basis = precondition([Task(student, 4)], made, numbers, 32)
    theta, x0 = made.flat(numbers), MODEL.schedule.prior_std * task.train.noise

    def samples(phi: Tensor) -> Tensor:
        return made.table(made.unflat(theta + basis @ phi, numbers), 4).follow(bind(MODEL), x0)[0]

    base = samples(torch.zeros_like(theta))
    error = (base - task.train.target).square().mean().sqrt()
    columns = torch.autograd.functional.jacobian(samples, torch.zeros_like(theta)).flatten(0, -2)
    sizes = torch.linalg.svdvals(columns / base.numel() ** 0.5) / error
    assert 0.3 < sizes[0] < 1.5
    assert (sizes > 0.5 * sizes[0]).sum() >= 4  # the damping holds the rest back
    plain = torch.linalg.svdvals(columns @ torch.linalg.inv(basis))
    assert plain[0] / plain[3] > 5 * sizes[0] / sizes[3]


def test_the_preconditioner_asks_only_for_what_changed() -> None:
    """Counted: the answers before a changed row are not asked for again."""
    task = problem("dpmpp", 4)
    made, student = (
        tuning_of(task, Recipe(learn="times+net+coefficients", exact=False)),
        Student(task),
    )
    precondition(
        [Task(student, 4)], made, made.numbers(Tuned(make_grid("edm", MODEL.schedule, 4))), 4
    )
    base = 2 * 3  # once for the slopes, once for the error
    times, net = 4 * 3, 3 + 2 + 1
    rows = 2 * 3 + 3 * 2 + 4 * 1 + 5 * 0  # row n has n + 1 numbers and leaves 4 - n calls
    assert student.evaluations == 4 * (base + times + net + rows)


def test_forward_differences_are_the_slopes() -> None:
    task = problem("unipc", 4)
    recipe = Recipe(learn="times+net+coefficients")
    made, student = tuning_of(task, recipe), Student(task)
    numbers = made.numbers(Tuned(make_grid("edm", MODEL.schedule, 4)))
    index = torch.arange(8)
    found = normal_equations(Task(student, 4), made, numbers, index, student.residual)
    leaf = made.flat(numbers).requires_grad_()
    loss = student.losses("train", index, made.table(made.unflat(leaf, numbers), 4), None).mean()
    (slope,) = torch.autograd.grad(loss, leaf)
    assert found.square == pytest.approx(float(loss.detach()), rel=1e-6)
    cosine = torch.nn.functional.cosine_similarity(2 * found.slope, slope, 0)
    assert cosine > 0.98  # steps are as long as learning's, not small


def test_differences_are_longer_on_rough_networks() -> None:
    """A network that answers in steps: short differences see the steps, long ones the way."""
    steps = 1 / 8

    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        return steps * torch.round(MODEL.forward(x, t, None) / steps)

    smooth = problem()
    rough = FunctionModel(forward, MODEL.schedule, "x0", MODEL.shape, torch.float64)
    made = tuning_of(smooth, Recipe(learn="times+net+coefficients"))
    numbers = made.numbers(Tuned(make_grid("edm", MODEL.schedule, 4)))

    def curvature(task: Problem) -> Tensor:
        student = Student(task)
        index = torch.arange(16)
        return normal_equations(Task(student, 4), made, numbers, index, student.residual).curvature

    true = curvature(smooth)
    short, long = (
        float((curvature(replace(smooth, model=rough, secant=secant)) - true).norm())
        for secant in (0.0, 0.1)
    )
    assert long < 0.5 * short


def test_the_residual_squares_to_any_distance() -> None:
    from ld3 import zoo
    from ld3.distances import l1, pseudo_huber

    task = problem()
    for distance in (l1, l2, pseudo_huber):
        student = Student(replace(task, distance=distance))
        x = task.train.target[:6] + 0.1
        r = student.residual(x, torch.arange(6))
        assert (r.square().sum(1) - distance(x, task.train.target[:6])).abs().max() < 1e-6
    eye = zoo.perceptual()
    a, b = noise(range(3), (1, 28, 28)), noise(range(3, 6), (1, 28, 28))
    assert (eye.residual(a, eye.target(b)).square().sum(1) - eye(a, b)).abs().max() < 1e-5


@pytest.mark.parametrize("method", ["dpmpp", "unipc", "ipndm", "euler"])
def test_learning_without_gradients(method: str) -> None:
    """Under no_grad throughout, better than the start on held-out noise, counted forward only."""
    task = problem(method)
    fine = make_grid("logsnr", MODEL.schedule, 100)
    held = teach(MODEL, "toy", make_solver("unipc"), fine, range(2000, 2128))
    recipe = Recipe(gradient_free=True, epochs=6, batch=32, validate_every=1)
    start = make_grid("edm", MODEL.schedule, 4)
    with torch.no_grad():
        *_, last = learn(task, recipe, begin(task, recipe, start))
    judge = Student(replace(task, valid=held))
    known, own = (
        judge.mean_loss(tuned_table(task.solver, MODEL.schedule, tuned))
        for tuned in (Tuned(start), last.tuned)
    )
    assert own < 0.3 * known


def test_gauss_newton_never_makes_it_worse() -> None:
    task = problem()
    made, student = tuning_of(task, Recipe()), Student(task)
    numbers: dict[str, Tensor] = made.numbers(Tuned(make_grid("edm", MODEL.schedule, 4)))
    losses = []
    for _ in range(5):
        numbers, loss = gauss_newton([Task(student, 4)], made, numbers, torch.arange(32))
        losses.append(loss)
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(losses))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("method", ["dpmpp", "unipc", "ipndm", "euler", "heun"])
def test_coefficients_help_on_noise_they_never_saw(method: str) -> None:
    task = problem(method)
    fine = make_grid("logsnr", MODEL.schedule, 100)
    held = teach(MODEL, "toy", make_solver("unipc"), fine, range(2000, 2128))
    losses = {}
    for what in ("times+net", "times+net+coefficients"):
        recipe = Recipe(learn=what, epochs=40, precondition=12, rate=0.12, average=0.9)  # type: ignore[arg-type]
        start = make_grid("edm", MODEL.schedule, 4)
        *_, last = learn(task, recipe, begin(task, recipe, start))
        judge = Student(replace(task, valid=held))
        losses[what] = judge.mean_loss(tuned_table(task.solver, MODEL.schedule, last.tuned))
        known = judge.mean_loss(tuned_table(task.solver, MODEL.schedule, Tuned(start)))
        assert losses[what] < 0.7 * known
    assert losses["times+net+coefficients"] < 0.9 * losses["times+net"]


def test_a_preconditioned_run_goes_on_to_the_bit() -> None:
    task = problem()
    recipe = Recipe(learn="times+net+coefficients", epochs=2, precondition=8, average=0.9)
    start = begin(task, recipe, make_grid("edm", MODEL.schedule, 4))
    whole = [p.state for p in learn(task, recipe, start)]
    for stop in (0, 3):
        state = State.from_tensors(whole[stop].to_tensors())
        *_, last = learn(task, recipe, state)
        ours, theirs = last.state.to_tensors(), whole[-1].to_tensors()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def plan_with(rows: object) -> dict[str, object]:
    grid = make_grid("edm", VPLinear(), 3)
    return {
        "nfe": 3,
        "solver": {"name": "dpmpp", "order": 3},
        "times": grid.times.tolist(),
        "net_times": grid.net_times.tolist(),
        "corrections": rows,
        "schedule": schedule_to_json(VPLinear()),
        "model": {"name": "toy", "digest": "x", "shape": [2], "prediction": "eps"},
    }


def test_a_plan_keeps_corrections() -> None:
    made = tuning("dpmpp", 3)
    _, tuned = shaken(made)
    plan = Plan.checked(plan_with(Plan.rows(tuned)))
    assert tuned.corrections is not None
    assert plan.tuned.corrections is not None
    assert torch.equal(plan.tuned.corrections, tuned.corrections.detach())
    plain = Plan.checked(plan_with(None))
    assert not torch.allclose(plan.table().weights, plain.table().weights, atol=1e-3)


@pytest.mark.parametrize(
    "rows",
    [[], [[0.0] * 2], [[0.0] * 4] * 3, [[0.0] * 2, [0.0] * 3, [float("nan")] * 4], [[1e9] * 2]],
)
def test_wrong_corrections_are_refused(rows: object) -> None:
    with pytest.raises(PlanError, match="corrections"):
        Plan.checked(plan_with(rows))


def test_a_start_with_coefficients_needs_them_learned() -> None:
    made = tuning("dpmpp", 3)
    _, tuned = shaken(made)
    with pytest.raises(PlanError, match="coefficients"):
        replace(made, learned=GROUPS[:2]).numbers(tuned)
