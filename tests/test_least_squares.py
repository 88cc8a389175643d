"""The preconditioner and the Gauss-Newton step against small systems solved by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ld3 import EDM, FunctionModel, make_grid, make_solver
from ld3.errors import ModelError
from ld3.learner import least_squares
from ld3.learner.course import Task, cost, make_tasks
from ld3.learner.learn import solver_parameters
from ld3.learner.least_squares import (
    DAMP,
    DAMPS,
    GROUP,
    TRUST,
    WIDE,
    Normal,
    gauss_newton_step,
    normal_equations,
    preconditioner,
)
from ld3.learner.recipes import GaussNewton
from ld3.parameters import GridParameters, SolverParameters
from ld3.problem import Problem, Student
from learning_toys import (
    MODEL,
    Linear,
    columns,
    counted,
    linear_problem,
    linear_values,
    mixture_problem,
    solved_pairs,
)

ALL = GaussNewton(learn="times+net+coefficients")
THETA = torch.tensor([0.02, 0.3], dtype=torch.float64)


def plain(x: Tensor, part: Tensor) -> Tensor:
    return x.flatten(1)


# ---- normal equations


@pytest.mark.parametrize("batch", [1, 64])
def test_normal_equations_of_a_linear_problem(batch: int) -> None:
    """J is known: A / sqrt(d), so J J^T = A^T A / (B d) and J r = A^T (A theta - y) / (B d)."""
    problem = replace(linear_problem(7, 3), batch=batch)
    index = [5, 0, 6, 2, 3, 1]
    a, y = columns(problem, index)
    task, values = Task(Student(problem), 1), linear_values(*THETA.tolist())
    residual = task.student.residual
    found = normal_equations(task, Linear(), values, torch.tensor(index), residual)
    r = a @ THETA - y
    assert torch.allclose(found.curvature, a.T @ a / 18, rtol=1e-4)
    assert torch.allclose(found.slope, a.T @ r / 18, rtol=1e-4, atol=1e-5)
    assert found.square == pytest.approx(float(r.square().sum() / 18), rel=1e-6)
    assert torch.allclose(found.samples.flatten(), a @ THETA)


def test_normal_equations_are_those_of_the_jacobian() -> None:
    """Of a real solver, with short probes; J by automatic differentiation."""
    problem = mixture_problem("unipc", 4, 8)
    made, student = solver_parameters(problem, ALL), Student(problem)
    values = made.start_values(make_grid("edm", EDM(), 4))
    index, theta = torch.arange(6), made.flat(values)

    def residuals(vector: Tensor) -> Tensor:
        x, _ = student.sample("train", index, made.table(made.unflat(vector, values), 4))
        return ((x - problem.train.target[index]) / 8**0.5).flatten().double()

    class Short(SolverParameters):
        def probe(self, name: str) -> float:
            return 0.01 * super().probe(name)

    short = Short(made.solver, made.grids, made.learned, made.exact)
    jacobian = torch.autograd.functional.jacobian(residuals, theta).T  # (P, B F)
    found = normal_equations(Task(student, 4), short, values, index, student.residual)
    wanted = jacobian @ jacobian.T / 6
    assert (found.curvature - wanted).abs().max() < 0.02 * wanted.abs().max()
    slope = jacobian @ residuals(theta) / 6
    assert (found.slope - slope).abs().max() < 0.02 * slope.abs().max()


def test_probes() -> None:
    """0.1 of a logit, 0.03 of the mean gap, 0.02 of a weight; six times that on rough networks."""
    made = SolverParameters(make_solver("dpmpp"), GridParameters(EDM(), 4), ALL.groups)
    gap = float(EDM().lam(torch.tensor(0.002)) - EDM().lam(torch.tensor(80.0))) / 4
    assert [made.probe(name) for name in made.learned] == pytest.approx([0.1, 0.03 * gap, 0.02])
    seen: list[Tensor] = []

    class Watched(Linear):
        def table(self, values, steps):  # type: ignore[no-untyped-def]
            seen.append(self.flat(values))
            return super().table(values, steps)

    for secant, wide in ((0.0, 1), (0.1, WIDE)):
        seen.clear()
        problem = replace(linear_problem(), secant=secant)
        task, values = Task(Student(problem), 1), linear_values(*THETA.tolist())
        normal_equations(task, Watched(), values, torch.arange(2), plain)
        moves = torch.stack(seen) - THETA
        wanted = [[0, 0], [0.25 * wide, 0], [0, 0.25 * wide]]
        assert torch.allclose(moves, torch.tensor(wanted, dtype=torch.float64))


def test_differences_are_longer_on_rough_networks() -> None:
    """A network whose output is rounded: short differences see the steps, long ones the slope."""
    size = 1 / 8

    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        return size * torch.round(MODEL.forward(x, t, None) / size)

    smooth = mixture_problem(count=16)
    rough = FunctionModel(forward, MODEL.schedule, "x0", MODEL.shape, torch.float64)
    made = solver_parameters(smooth, ALL)
    values = made.start_values(make_grid("edm", EDM(), 4))

    def curvature(problem: Problem) -> Tensor:
        student = Student(problem)
        task, index = Task(student, 4), torch.arange(16)
        return normal_equations(task, made, values, index, student.residual).curvature

    true = curvature(smooth)
    short, long = (
        float((curvature(replace(smooth, model=rough, secant=secant)) - true).norm())
        for secant in (0.0, 0.1)
    )
    assert long < 0.5 * short


def test_answers_before_a_changed_row_are_not_evaluated_again() -> None:
    problem, count = counted(mixture_problem("dpmpp", 4, 8))
    recipe = replace(ALL, exact=False)
    made, student = solver_parameters(problem, recipe), Student(problem)
    values = made.start_values(make_grid("edm", EDM(), 4))
    normal_equations(Task(student, 4), made, values, torch.arange(4), plain)
    base, times, net = 3, 4 * 3, 3 + 2 + 1
    rows = 2 * 3 + 3 * 2 + 4 * 1 + 5 * 0  # row n has n + 1 weights and leaves 4 - n calls
    assert student.evaluations == count.cost == 8 + 4 * (base + times + net + rows)
    assert max(count.batches[1:]) == GROUP
    count.batches.clear()
    few = Student(replace(problem, batch=2))
    normal_equations(Task(few, 4), made, values, torch.arange(4), plain)
    assert max(count.batches) == 2


# ---- the preconditioner


def by_hand(curvature: Tensor) -> Tensor:
    """(H + DAMP max-eig)^(-1/2) of a 2x2 matrix by its square root in closed form."""
    top = float(torch.linalg.eigvalsh(curvature)[-1])
    m = torch.linalg.inv(curvature + DAMP * top * torch.eye(2))
    s = torch.det(m).sqrt()
    return (m + s * torch.eye(2)) / (m.trace() + 2 * s).sqrt()


@pytest.mark.parametrize("far", [False, True])
def test_the_preconditioner_of_a_linear_problem(far: bool) -> None:
    """e^2 is the mean squared error, or TRUST^2 of the variance of the samples if that is less."""
    problem = linear_problem(6, 2)
    a, y = columns(problem, range(6))
    theta = torch.linalg.lstsq(a, y).solution + (0.02 if far else 0.0)
    x = a @ theta
    scale = 1.0 if far else 1e-3
    target = (x + scale * (y - x)).view(6, 2)
    problem = replace(problem, train=replace(problem.train, target=target))
    error = float((x - target.flatten()).square().mean() * x.var() / target.var())
    limit = TRUST**2 * float(x.var())
    assert (error > limit) == far
    wanted = by_hand(a.T @ a / 12 / min(error, limit))
    tasks = [Task(Student(problem), 1)]
    got = preconditioner(tasks, Linear(), linear_values(*theta.tolist()), 6)
    assert torch.allclose(got, wanted, rtol=1e-3)


def test_how_many_samples_and_tasks_are_probed() -> None:
    """Of many tasks every second or so, with both ends; the samples are shared among them."""
    for count, probed, each in ((1, [0], 12), (2, [0, 1], 6), (5, [0, 2, 4], 4), (9, [0, 4, 8], 4)):
        students = [Student(linear_problem(20)) for _ in range(count)]
        tasks = [Task(student, 1) for student in students]
        seen: list[tuple[int, int]] = []
        original = normal_equations

        def watched(task, parameters, values, index, residual):  # type: ignore[no-untyped-def]
            seen.append((tasks.index(task), len(index)))  # noqa: B023
            return original(task, parameters, values, index, residual)  # noqa: B023

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(least_squares, "normal_equations", watched)
            preconditioner(tasks, Linear(), linear_values(*THETA.tolist()), 12)
        assert seen == [(number, each) for number in probed]


def test_preconditioners_of_several_tasks_are_averaged_before_the_root() -> None:
    problems = [linear_problem(6, 2)]
    noise = problems[0].train.noise.flip(1) * 0.5
    problems.append(replace(problems[0], train=replace(problems[0].train, noise=noise)))
    total = torch.zeros(2, 2, dtype=torch.float64)
    for problem in problems:
        a, y = columns(problem, range(3))
        x = a @ THETA
        error = float((x - y).square().mean() * x.var() / problem.train.target.var())
        total += a.T @ a / 6 / min(error, TRUST**2 * float(x.var())) / 2
    tasks = [Task(Student(problem), 1) for problem in problems]
    got = preconditioner(tasks, Linear(), linear_values(*THETA.tolist()), 6)
    assert torch.allclose(got, by_hand(total), rtol=1e-3)


def test_the_preconditioner_of_nothing_and_of_no_numbers() -> None:
    class Still(Linear):
        def table(self, values, steps):  # type: ignore[no-untyped-def]
            return Linear.table(self, linear_values(0.1, 0.2), steps)

    task = Task(Student(linear_problem()), 1)
    values = linear_values(*THETA.tolist())
    assert torch.equal(preconditioner([task], Still(), values, 4), torch.zeros(2, 2).double())
    with pytest.raises(ModelError, match="not finite at the start"):
        preconditioner([task], Linear(), linear_values(float("nan"), 0.0), 4)


def test_the_preconditioner_makes_directions_alike() -> None:
    """Slopes of the samples in phi are orthonormal but for the damping, times the error."""
    problem = mixture_problem()
    made, student = solver_parameters(problem, ALL), Student(problem)
    values = made.start_values(make_grid("edm", EDM(), 4))
    basis = preconditioner([Task(student, 4)], made, values, 32)
    theta, index = made.flat(values), torch.arange(32)

    def samples(phi: Tensor) -> Tensor:
        table = made.table(made.unflat(theta + basis @ phi, values), 4)
        return student.sample("train", index, table)[0]

    base = samples(torch.zeros_like(theta))
    error = (base - problem.train.target).square().mean().sqrt()
    slopes = torch.autograd.functional.jacobian(samples, torch.zeros_like(theta)).flatten(0, -2)
    sizes = torch.linalg.svdvals(slopes / base.numel() ** 0.5) / error
    assert 0.3 < sizes[0] < 1.5
    assert (sizes > 0.5 * sizes[0]).sum() >= 4  # the damping holds the rest back
    plain_sizes = torch.linalg.svdvals(slopes @ torch.linalg.inv(basis).to(slopes.dtype))
    assert plain_sizes[0] / plain_sizes[3] > 5 * sizes[0] / sizes[3]


# ---- Gauss-Newton


def step_by_hand(a: Tensor, y: Tensor, theta: Tensor, damp: float, count: int) -> Tensor:
    h, g = a.T @ a / count, a.T @ (a @ theta - y) / count
    damped = h + torch.diag(damp * h.diagonal() + 1e-6 * h.diagonal().max())
    return theta - torch.linalg.solve(damped, g)


def test_a_gauss_newton_step_of_a_linear_problem() -> None:
    """Linear least squares: the least damped candidate is the best and nearly the solution."""
    problem = linear_problem(6, 2)
    a, y = columns(problem, range(6))
    task, index = Task(Student(problem), 1), torch.arange(6)
    values, before = gauss_newton_step([task], Linear(), linear_values(*THETA.tolist()), index)
    wanted = step_by_hand(a, y, THETA, DAMPS[0], 12)
    assert torch.allclose(Linear().flat(values), wanted, rtol=1e-3)
    assert before == pytest.approx(float((a @ THETA - y).square().mean()))
    for _ in range(5):
        values, last = gauss_newton_step([task], Linear(), values, index)
    best = torch.linalg.lstsq(a, y).solution
    assert torch.allclose(Linear().flat(values), best, rtol=1e-3)
    assert last == pytest.approx(float((a @ best - y).square().mean()), rel=1e-6)


def test_gauss_newton_weighs_tasks_by_their_scale() -> None:
    first = linear_problem(6, 2)
    target = first.train.target.flip(0) + 3
    second = replace(first, train=replace(first.train, target=target))
    tasks = [Task(Student(first), 1, 0.5), Task(Student(second), 1, 4.0)]
    (a, y), (b, z) = (columns(problem, range(6)) for problem in (first, second))
    stacked = torch.cat([0.5**0.5 * a, 4.0**0.5 * b]), torch.cat([0.5**0.5 * y, 4.0**0.5 * z])
    values, before = gauss_newton_step(
        tasks, Linear(), linear_values(*THETA.tolist()), torch.arange(6)
    )
    wanted = step_by_hand(*stacked, THETA, DAMPS[0], 12)
    assert torch.allclose(Linear().flat(values), wanted, rtol=1e-3)
    losses = [float((m @ THETA - t).square().mean()) for m, t in ((a, y), (b, z))]
    assert before == pytest.approx((0.5 * losses[0] + 4 * losses[1]) / 2)


def test_no_candidate_better_leaves_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = linear_problem(6, 2)
    original = normal_equations

    def uphill(*args, **kwargs) -> Normal:  # type: ignore[no-untyped-def]
        found = original(*args, **kwargs)
        return replace(found, slope=-found.slope)

    monkeypatch.setattr(least_squares, "normal_equations", uphill)
    start, index = linear_values(*THETA.tolist()), torch.arange(6)
    values, _ = gauss_newton_step([Task(Student(problem), 1)], Linear(), start, index)
    assert torch.equal(Linear().flat(values), THETA)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_the_best_damping_is_taken(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """With slopes 10 times too long only strong damping helps."""
    problem = linear_problem(6, 2)
    original = normal_equations

    def scaled(*args, **kwargs) -> Normal:  # type: ignore[no-untyped-def]
        found = original(*args, **kwargs)
        return replace(found, slope=factor * found.slope)

    monkeypatch.setattr(least_squares, "normal_equations", scaled)
    a, y = columns(problem, range(6))
    h, g = a.T @ a / 12, factor * a.T @ (a @ THETA - y) / 12

    def candidate(damp: float) -> Tensor:
        floor = 1e-6 * h.diagonal().max()
        return THETA - torch.linalg.solve(h + torch.diag(damp * h.diagonal() + floor), g)

    losses = {d: float((a @ candidate(d) - y).square().mean()) for d in DAMPS}
    best = min(losses, key=lambda d: losses[d])
    task, start = Task(Student(problem), 1), linear_values(*THETA.tolist())
    values, before = gauss_newton_step([task], Linear(), start, torch.arange(6))
    wanted = candidate(best) if losses[best] < before else THETA
    assert torch.allclose(Linear().flat(values), wanted, rtol=1e-3)


def test_gauss_newton_without_slopes_or_numbers_stays() -> None:
    class Still(Linear):
        def table(self, values, steps):  # type: ignore[no-untyped-def]
            return Linear.table(self, linear_values(0.1, 0.2), steps)

    task, start = Task(Student(linear_problem()), 1), linear_values(*THETA.tolist())
    values, _ = gauss_newton_step([task], Still(), start, torch.arange(4))
    assert torch.equal(Linear().flat(values), THETA)
    bad = linear_values(float("nan"), 0.0)
    values, loss = gauss_newton_step([task], Linear(), bad, torch.arange(4))
    assert loss != loss
    assert torch.equal(values["net"], bad["net"])


def test_gauss_newton_never_makes_it_worse() -> None:
    problem = mixture_problem()
    made, student = solver_parameters(problem, GaussNewton()), Student(problem)
    values = made.start_values(make_grid("edm", EDM(), 4))
    losses = []
    for _ in range(5):
        values, loss = gauss_newton_step([Task(student, 4)], made, values, torch.arange(32))
        losses.append(loss)
    assert all(after <= before * (1 + 1e-6) for before, after in pairwise(losses))
    assert losses[-1] < 0.5 * losses[0]


# ---- tasks


def test_problems_that_differ_in_steps_share_a_student() -> None:
    first = mixture_problem(count=4)
    other = replace(first, train=solved_pairs(MODEL, range(4, 8)))
    problems = [first, replace(first, steps=6), replace(first, guidance=2.0), other]
    tasks = make_tasks(problems)
    assert [task.steps for task in tasks] == [4, 6, 4, 4]
    assert tasks[0].student is tasks[1].student
    assert len({task.student for task in tasks}) == 3
    for number, task in enumerate(tasks):
        task.student.evaluations = 10**number
    assert cost(tasks)[0] == 10 + 100 + 1000
