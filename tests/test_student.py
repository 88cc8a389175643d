"""The student: losses against brute force, secants and roughness by hand, and what all costs."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ld3 import EDM, FunctionModel, bind, integrate, knots, make_grid, make_solver, noise
from ld3 import problem as module
from ld3.distances import FeatureDistance, l1, l2, pseudo_huber
from ld3.learner.starts import FINALISTS, ROUGH, SCREEN, TRIED, find_starts, with_secant
from ld3.problem import SECANT, SHORT, Problem, Student, chunks, raised, take
from ld3.table import Table, TunedSolver
from ld3.teacher import Pairs
from learning_toys import (
    MODEL,
    columns,
    counted,
    euler_problem,
    linear_problem,
    mixture_problem,
    solved_pairs,
)


def table(problem: Problem, name: str = "edm") -> Table:
    grid = make_grid(name, problem.model.schedule, problem.steps)
    return TunedSolver(problem.solver, grid).table(problem.model.schedule)


def guided_problem(guidance: float, kind: str = "tensor") -> Problem:
    """A model whose condition, null and guidance all change its output."""

    def conditions(seeds: object) -> Tensor | dict[str, Tensor]:
        labels = torch.tensor([[float(s % 3) - 0.5] for s in seeds])  # type: ignore[attr-defined]
        return labels if kind == "tensor" else {"label": labels}

    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        label = cond if isinstance(cond, Tensor) else cond["label"]  # type: ignore[index]
        return MODEL.forward(x, t, None) + 0.3 * label * torch.tanh(x)

    def null(cond: object) -> Tensor | dict[str, Tensor]:
        if isinstance(cond, Tensor):
            return torch.full_like(cond, 0.2)
        return {"label": torch.full_like(cond["label"], 0.2)}  # type: ignore[index]

    model = FunctionModel(
        forward, MODEL.schedule, "x0", (8,), None, conditions, null,  # type: ignore[arg-type]
        decoder=lambda x: 2 * x,
    )  # fmt: skip
    train, valid = (solved_pairs(model, s, 30, guidance) for s in (range(6), range(50, 57)))
    return Problem(model, make_solver("dpmpp"), 4, l2, train, valid, guidance)


# ---- losses


@pytest.mark.parametrize("kind", ["tensor", "mapping"])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_losses_are_those_of_the_solver_with_guidance_and_conditions(
    guidance: float, kind: str
) -> None:
    """The remembered first answers as well: every sample has its own condition."""
    problem = guided_problem(guidance, kind)
    grid = make_grid("edm", problem.model.schedule, 4)
    for part, pairs in (("train", problem.train), ("valid", problem.valid)):
        index = torch.tensor([4, 0, 3])
        denoise = bind(problem.model, take(pairs.cond, index), guidance=guidance)
        k = knots(problem.model.schedule, grid)
        x = integrate(denoise, problem.solver, k, 80 * pairs.noise[index])
        wanted = l2(2 * x, pairs.target[index])
        got = Student(problem).losses(part, index, table(problem))  # type: ignore[arg-type]
        assert (got / wanted - 1).abs().max() < 1e-4
        with torch.no_grad():
            few = Student(replace(problem, batch=2)).losses(part, index, table(problem))  # type: ignore[arg-type]
        assert (few / wanted - 1).abs().max() < 1e-4
    assert float(wanted.max() / wanted.min()) > 1.01


def test_losses_from_other_noise() -> None:
    problem = mixture_problem(count=6)
    index, z = torch.tensor([1, 5]), noise([70, 71], (8,))
    x = integrate(
        bind(problem.model), problem.solver,
        knots(EDM(), make_grid("edm", EDM(), 4)), 80 * z,
    )  # fmt: skip
    wanted = l2(x, problem.valid.target[index])
    got = Student(problem).losses("valid", index, table(problem), z)
    assert (got / wanted - 1).abs().max() < 1e-4


def test_feature_distances_compare_with_the_targets_at_the_index() -> None:
    maps = FeatureDistance(lambda y: (torch.stack([y, y.square()], 1),))
    problem = replace(mixture_problem(count=5), distance=maps)
    index = torch.tensor([3, 1])
    student = Student(problem)
    x, _ = student.sample("train", index, table(problem))
    wanted = maps(x, problem.train.target[index])
    assert torch.allclose(student.losses("train", index, table(problem)), wanted)
    r = student.residual(x, index)
    assert torch.allclose(r.square().sum(1), wanted.to(r.dtype), rtol=1e-4)


def test_mean_loss_with_power_and_limit() -> None:
    """(mean d^p)^(1/p) over the first pairs."""
    problem = linear_problem(5)
    theta = torch.tensor([0.01, 0.5], dtype=torch.float64)
    weights = torch.stack([torch.tensor([1.0, 0.0], dtype=torch.float64), theta])
    one = Table(weights, torch.tensor([80.0], dtype=torch.float64))
    a, y = columns(problem, range(5), "valid")
    d = (a @ theta - y).view(5, 2).square().mean(1)
    student = Student(problem)
    assert student.mean_loss(one) == pytest.approx(float(d.mean()))
    assert student.mean_loss(one, limit=2) == pytest.approx(float(d[:2].mean()))
    assert student.mean_loss(one, limit=99) == pytest.approx(float(d.mean()))
    assert student.mean_loss(one, power=0.5) == pytest.approx(float(d.sqrt().mean()) ** 2)
    assert student.mean_loss(one, limit=3, power=2) == pytest.approx(
        float(d[:3].square().mean()) ** 0.5
    )
    z = problem.valid.noise.flip(0)
    x = 80 * z
    moved = (theta[0] * x + theta[1] * (1 + torch.tanh(x / 40)) - problem.valid.target).square()
    assert student.mean_loss(one, z, limit=2) == pytest.approx(float(moved[:2].mean()))


def test_powers_of_losses() -> None:
    losses = torch.tensor([0.0, 4.0], dtype=torch.float64)
    assert torch.equal(raised(losses, 1.0), losses)
    assert raised(losses, 0.5).tolist() == pytest.approx([1e-15, 2.0])


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_results_do_not_depend_on_the_batch_and_no_batch_is_larger(batch: int) -> None:
    base = mixture_problem(count=10)
    wanted = Student(base).mean_loss(table(base))
    problem, count = counted(replace(base, batch=batch))
    student = Student(problem)
    assert student.mean_loss(table(problem)) == pytest.approx(wanted, rel=1e-6)
    with torch.no_grad():
        student.losses("train", torch.arange(10), table(problem))
    assert student.roughness(make_grid("edm", EDM(), 4)) == pytest.approx(
        Student(base).roughness(make_grid("edm", EDM(), 4)), rel=1e-3
    )
    assert max(count.batches) == min(batch, 10)
    assert student.evaluations == count.cost


def test_chunks() -> None:
    assert [part.tolist() for part in chunks(5, 2)] == [[0, 1], [2, 3], [4]]
    assert chunks(0, 2) == []


# ---- residuals and errors


@pytest.mark.parametrize("distance", [l1, l2, pseudo_huber])
def test_the_residual_squares_to_the_distance(distance: object) -> None:
    problem = replace(mixture_problem(count=8), distance=distance)  # type: ignore[arg-type]
    index = torch.tensor([2, 5, 6])
    x = problem.train.target[index] + torch.linspace(0.1, 0.3, 3)[:, None]
    r = Student(problem).residual(x, index)
    wanted = distance(x, problem.train.target[index])  # type: ignore[operator]
    assert (r.square().sum(1) - wanted).abs().max() < 1e-6
    same = (r * (x - problem.train.target[index]) > 0).all()
    assert bool(same)  # the residual points from the target to the sample


def test_the_squared_error_is_in_units_of_x() -> None:
    """Decoded by 2: error 4 e^2 on targets whose variance is four times that of x."""
    problem = guided_problem(1.0)
    index = torch.arange(3)
    x = problem.train.target[index] / 2 + 0.1
    error = Student(problem).squared_error("train", index, x)
    scale = x.double().var() / problem.train.target.double().var()
    assert error == pytest.approx(0.04 * float(scale), rel=1e-4)


# ---- secants


@pytest.mark.parametrize(
    ("lam", "wanted"),
    [
        (1.0, 2.0),  # inside: (D(lam + h) - D(lam - h)) / 2h of lam^2 is 2 lam
        (-math.log(0.002) - 0.25, 2 * (-math.log(0.002) - 0.25) - 0.25),
        (-math.log(80.0) + 0.25, 2 * (-math.log(80.0) + 0.25) + 0.25),
    ],
    ids=["inside", "at the data", "at the noise"],
)
def test_secants_are_cut_at_the_ends_of_the_range(lam: float, wanted: float) -> None:
    """D = lam^2. With h = 0.5 and an end 0.25 away: (end^2 - far^2) / 0.75 = end + far."""
    seen: list[float] = []

    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        seen.append(float(t))
        return EDM().lam(t) ** 2 + 0 * x

    model = FunctionModel(forward, EDM(), "x0", (1,), None)
    pairs = Pairs((0,), noise([0], (1,), torch.float64), None, torch.zeros(1, 1).double())
    problem = Problem(model, make_solver("euler"), 2, l2, pairs, pairs, secant=0.5)
    t = torch.tensor([80.0, math.exp(-lam)], dtype=torch.float64).requires_grad_()
    rows = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.float64)
    x, _ = Student(problem).sample("train", torch.tensor([0]), Table(rows, t))
    assert x.item() == pytest.approx(lam**2)  # the value is that at the point
    (slope,) = torch.autograd.grad(x.sum(), t)
    assert slope[1].item() == pytest.approx(-wanted / math.exp(-lam), rel=1e-9)
    low, high = -math.log(80.0), -math.log(0.002)
    around = [math.exp(-min(lam + 0.5, high)), math.exp(-max(lam - 0.5, low))]
    assert seen[-2:] == pytest.approx(around)


def test_roughness_of_a_sine() -> None:
    """Secants of sin(k lam) are k cos(k lam) sinc(k h), so the ratio is known."""
    k = 9.0
    model = FunctionModel(
        lambda x, t, c: torch.sin(k * EDM().lam(t)) + 0 * x, EDM(), "x0", (2,), None
    )
    pairs = Pairs(tuple(range(6)), noise(range(6), (2,), torch.float64), None, torch.zeros(6, 2))
    problem = Problem(model, make_solver("euler"), 5, l2, pairs, pairs)
    near, far = (math.sin(k * h) / h for h in (SHORT, SECANT))
    for samples in (1, 4):
        found = Student(problem).roughness(make_grid("edm", EDM(), 5), samples)
        assert found == pytest.approx(((near - far) / far) ** 2, rel=1e-6)
    flat = FunctionModel(lambda x, t, c: 0 * x, EDM(), "x0", (2,), None)
    assert Student(replace(problem, model=flat)).roughness(make_grid("edm", EDM(), 5)) == 0.0


def test_roughness_begins_at_the_noise_of_the_validation_pairs() -> None:
    seen: list[Tensor] = []

    def forward(x: Tensor, t: Tensor, cond: None) -> Tensor:
        seen.append(x)
        return 0 * x

    model = FunctionModel(forward, EDM(), "x0", (2,), None)
    train, valid = (
        Pairs(tuple(s), noise(s, (2,), torch.float64), None, torch.zeros(6, 2))
        for s in (range(6), range(6, 12))
    )
    problem = Problem(model, make_solver("euler"), 5, l2, train, valid)
    Student(problem).roughness(make_grid("edm", EDM(), 5))
    assert torch.equal(seen[0], 80.0 * valid.noise[:4])


def test_roughness_uses_guidance_and_conditions() -> None:
    low, high = (
        Student(replace(guided_problem(1.0), guidance=g)).roughness(make_grid("edm", EDM(), 4))
        for g in (1.0, 4.0)
    )
    assert low != pytest.approx(high, rel=1e-3)


# ---- cost


@pytest.mark.parametrize("secant", [0.0, 0.1])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("steps", [2, 4, 7])
def test_the_cost_of_a_gradient_is_what_the_network_does(
    steps: int, soft: bool, secant: float
) -> None:
    """Forward and backward passes, those that are computed again, and the secants."""
    problem, count = counted(replace(euler_problem(2, steps), secant=secant))
    student, index = Student(problem), torch.arange(5)
    weights = table(problem).weights.clone().requires_grad_()
    leaf = Table(weights, table(problem).net_times)
    z = problem.train.noise[index].clone().requires_grad_() if soft else None
    student.losses("train", index, leaf, z).sum().backward()
    assert student.evaluations == count.cost
    calls = steps if soft else steps - 1
    again, first = max(0, calls - module.KEPT), 0 if soft else 16
    assert count.backward == 5 * calls
    assert count.forward == first + 5 * (calls + again + (2 * calls if secant else 0))


def test_a_guided_evaluation_counts_once() -> None:
    problem, count = counted(guided_problem(3.0))
    student = Student(problem)
    student.mean_loss(table(problem))
    assert student.evaluations == 7 * 4
    assert count.forward == 2 * 7 * 4  # two passes each


def test_first_answers_are_evaluated_once() -> None:
    problem, count = counted(mixture_problem(count=6))
    student = Student(problem)
    for _ in range(3):
        student.mean_loss(table(problem))
    assert student.evaluations == count.cost == 6 + 3 * 6 * 3
    with torch.no_grad():
        student.losses("train", torch.tensor([1]), table(problem))
    assert student.evaluations == count.cost == 6 + 3 * 6 * 3 + 6 + 3


def test_known_answers_are_not_evaluated_again() -> None:
    problem, count = counted(mixture_problem(count=4))
    student, index = Student(problem), torch.arange(4)
    with torch.no_grad():
        x, answers = student.sample("train", index, table(problem))
        before = count.cost
        again, _ = student.sample("train", index, table(problem), known=answers[:3])
    assert torch.allclose(x, again)
    assert count.cost - before == 4
    assert student.evaluations == count.cost


def test_the_cost_of_roughness() -> None:
    problem, count = counted(mixture_problem(count=6))
    student = Student(problem)
    student.roughness(make_grid("edm", EDM(), 4))
    assert student.evaluations == count.cost == 4 * (4 + 4 * 3)


# ---- starts


def test_starts_are_the_best_known_grids() -> None:
    base = mixture_problem("unipc", 5, 12)
    problem, count = counted(base)
    reports: list[tuple[int, int]] = []
    found = find_starts(problem, 3, 0.75, lambda done, total: reports.append((done, total)))
    student = Student(base)
    few = {name: student.mean_loss(table(base, name), limit=SCREEN, power=0.75) for name in TRIED}
    finalists = sorted(few, key=lambda name: few[name])[:FINALISTS]
    full = {name: student.mean_loss(table(base, name), power=0.75) for name in finalists}
    ranking = sorted(full, key=lambda name: full[name])
    assert list(found.names) == ranking[:3]
    assert list(found.losses) == ranking
    assert found.losses == pytest.approx(full)
    assert found.roughness == student.roughness(make_grid(ranking[0], EDM(), 5))
    assert found.evaluations == count.cost
    assert count.cost == 12 + 4 * (SCREEN * len(TRIED) + FINALISTS * 12) + 4 * (5 + 4 * 4)
    assert reports == [(i + 1, n) for n in (len(TRIED), FINALISTS) for i in range(n)]


def test_grids_with_losses_that_are_not_finite_come_last() -> None:
    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        out = MODEL.forward(x, t, None)
        return out * math.nan if 3.0 < float(t) < 60 else out

    model = FunctionModel(forward, EDM(), "x0", (8,), None)
    problem = replace(mixture_problem("dpmpp", 3, 8), model=model)
    found = find_starts(problem, 2)
    assert all(math.isfinite(found.losses[name]) for name in found.names)
    never = FunctionModel(lambda x, t, c: x * math.nan, EDM(), "x0", (8,), None)
    assert len(find_starts(replace(problem, model=never), 2).names) == 2
    assert find_starts(replace(problem, model=never)).roughness == 0.0
    huge = FunctionModel(lambda x, t, c: 1e160 * t + 0 * x, EDM(), "x0", (8,), torch.float64)
    z = problem.valid.noise.double()
    wide = replace(problem, model=huge, steps=2, valid=replace(problem.valid, noise=z))
    assert find_starts(wide).roughness == 0.0  # inf / inf


def test_secants_are_for_rough_networks() -> None:
    problem = linear_problem()
    assert with_secant(problem, ROUGH).secant == 0.0
    assert with_secant(problem, ROUGH + 0.01).secant == SECANT
