"""The learner: closed-form optima, its parts one by one, and going on to the bit."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ld3 import (
    METHODS,
    Flow,
    FunctionModel,
    Model,
    TimeGrid,
    VPLinear,
    make_grid,
    make_solver,
    noise,
)
from ld3 import problem as student
from ld3.distances import l2
from ld3.errors import ModelError, PlanError, SpecError, StoreError
from ld3.learner.forcing import keep_better, moved, radius
from ld3.learner.learn import Progress, Recipe, State, begin, learn, tuning_of
from ld3.learner.optimize import RULES, clipped
from ld3.learner.presets import PRESETS, iterations, make_preset
from ld3.parameters import Clock, tuned_table
from ld3.problem import ROUGH, Problem, Student, roughness
from ld3.searches import tangent_law
from ld3.store import read_tensors, write_tensors
from ld3.table import Table, Tuned
from ld3.teacher import Pairs, teach
from ld3.zoo.toy import gaussian, mixture

STD, N = 0.5, 6


def exact_pairs(seeds: range, d: int = 1) -> Pairs:
    """Noise and the exact solution of the ODE on Gaussian data."""
    model = gaussian([0.0] * d, [STD] * d)
    z = noise(seeds, (d,), torch.float64)
    ends = torch.tensor([80.0, 0.002], dtype=torch.float64)
    return Pairs(tuple(seeds), z, None, model.solve(80 * z, ends[0], ends[1]))


def euler_problem(d: int = 1) -> Problem:
    model = gaussian([0.0] * d, [STD] * d)
    return Problem(
        model,
        make_solver("euler"),
        N,
        l2,
        exact_pairs(range(16), d),
        exact_pairs(range(100, 116), d),
    )


def table(problem: Problem, grid: TimeGrid) -> Table:
    return tuned_table(problem.solver, problem.model.schedule, Tuned(grid))


def run(problem: Problem, recipe: Recipe, start: TimeGrid | None = None) -> Progress:
    grid = make_grid("logsnr", problem.model.schedule, problem.steps) if start is None else start
    *_, last = learn(problem, recipe, begin(problem, recipe, grid))
    return last


def test_euler_on_gaussian_data_learns_the_tangent_law() -> None:
    recipe = Recipe(batch=16, epochs=400, learn="times", rate_times=0.1, floor=0.001)
    result = run(euler_problem(), recipe)
    wanted = tangent_law(euler_problem().model.schedule, N, STD).times
    assert (result.grid.times / wanted - 1).abs().max() < 1e-4
    assert torch.equal(result.grid.times, result.grid.net_times)


def test_network_times_make_euler_exact() -> None:
    recipe = Recipe(batch=16, epochs=400, rate_times=0.05, rate_net=0.05, floor=0.001)
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
    grid = tangent_law(problem.model.schedule, N, STD)
    angle = torch.atan(grid.times / STD)
    rho = torch.cos(angle[:-1] - angle[1:]).prod().item()
    k = (problem.train.target / (80 * problem.train.noise)).mean().item()
    size = torch.linalg.vector_norm(problem.train.noise, dim=1)
    needed = ((1 / rho - 1) * size).max().item()
    r = 2 * needed if reach == "inside" else 0.3 * needed
    student, near, index = Student(problem), problem.train.noise, torch.arange(16)
    for _ in range(400):
        leaf = near.clone().requires_grad_()
        losses = student.losses("train", index, table(problem, grid), leaf)
        (slope,) = torch.autograd.grad(losses.sum(), leaf)
        near = moved(near, problem.train.noise, slope, 0.2 * d / (rho * k * 80) ** 2, r)
        away = torch.linalg.vector_norm(near - problem.train.noise, dim=1)
        assert bool((away <= r * (1 + 1e-6)).all())
    residual = (d * student.losses("train", index, table(problem, grid), near)).sqrt()
    wanted = k * 80 * ((1 - rho) * size - rho * r).clamp_min(0)
    assert (residual - wanted).abs().max() < 1e-6


def test_hard_forcing_leaves_the_noise_alone_and_soft_keeps_to_the_ball() -> None:
    problem = euler_problem(4)
    base = Recipe(
        batch=4, epochs_times=1, epochs=2, rule_times="rmsprop", rule_net="sgd", rate_times=0.005,
        rate_net=0.02, clip=1.0, decay="plateau", validate_every=1,
    )  # fmt: skip
    hard = run(problem, base).state
    assert len(hard.near_train) == len(hard.near_valid) == 0
    soft = run(problem, replace(base, gamma=0.5, rate_noise=2.0)).state
    r = radius(0.5, (4,), N)
    for near, pairs in ((soft.near_train, problem.train), (soft.near_valid, problem.valid)):
        away = torch.linalg.vector_norm(near - pairs.noise, dim=1)
        assert bool((away <= r * (1 + 1e-6)).all())
        assert away.max() > 0
    assert radius(0.001, (3, 32, 32), 4) == pytest.approx(0.192)
    assert radius(0.001, (4, 64, 64), 7) == pytest.approx(0.334, abs=1e-3)


def test_accepting_only_what_is_better_lowers_every_loss() -> None:
    old, new = torch.zeros(3, 2), torch.ones(3, 2)
    kept = keep_better(old, new, torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 1.0, 2.0]))
    assert kept.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_first_phase_keeps_the_network_times() -> None:
    problem = euler_problem()
    recipe = Recipe(batch=8, epochs_times=2, epochs=1, rate_net=0.1)
    states = [p.state for p in learn(problem, recipe, begin(problem, recipe, make_grid("edm", problem.model.schedule, N)))]  # noqa: E501  # fmt: skip
    assert all(bool((state.numbers["net"] == 0).all()) for state in states[:4])
    assert bool((states[-1].numbers["net"] != 0).any())


def test_the_best_is_what_its_validation_loss_says() -> None:
    problem = euler_problem()
    result = run(problem, Recipe(batch=8, epochs=6, validate_every=1, rate_times=0.3))
    student = Student(problem)
    assert student.mean_loss(table(problem, result.grid)) == result.best


def test_one_far_sample_does_not_decide_a_mean_of_roots() -> None:
    """Of two grids, it takes the one that is better for the others."""
    problem = euler_problem()
    grids = [make_grid(name, problem.model.schedule, problem.steps) for name in ("edm", "logsnr")]
    tables = [table(problem, grid) for grid in grids]
    student = Student(problem)
    index = torch.arange(len(problem.valid))
    for one in tables:
        losses = student.losses("valid", index, one, None)
        roots = float(losses.sqrt().mean())
        assert student.mean_loss(one, power=0.5) == pytest.approx(roots**2)
    better, worse = sorted(tables, key=student.mean_loss)
    with torch.no_grad():  # a target that only the worse grid meets
        x, _ = student.sample("valid", index[:1], worse)
    target = problem.valid.target.clone()
    target[0] = x[0] + 30_000 * (x[0] - student.sample("valid", index[:1], better)[0][0]).detach()
    far = Student(replace(problem, valid=replace(problem.valid, target=target)))
    assert far.mean_loss(better) > far.mean_loss(worse)
    assert far.mean_loss(better, power=0.5) < far.mean_loss(worse, power=0.5)
    result = run(problem, Recipe(epochs=1, validate_every=1, power=0.5), grids[0])
    assert student.mean_loss(table(problem, result.grid), power=0.5) == result.best


def test_one_far_sample_does_not_decide_what_is_learned_from_roots() -> None:
    """With a target out of reach among the pairs, the others are met better."""
    problem = euler_problem()
    target = problem.train.target.clone()
    target[0] += 5.0
    spoilt = replace(problem, train=replace(problem.train, target=target))
    student = Student(problem)
    left = []
    for power in (1.0, 0.5):
        recipe = Recipe(batch=16, epochs=100, validate_every=100, rate_times=0.1, power=power)
        state = begin(spoilt, recipe, make_grid("logsnr", problem.model.schedule, problem.steps))
        *_, last = learn(spoilt, recipe, state)
        grid = tuning_of(problem, recipe).tuned(last.state.numbers, problem.steps).grid
        left.append(student.mean_loss(table(problem, grid)))
    assert left[1] < 0.5 * left[0]


def test_the_learned_grid_is_better_on_noise_it_never_saw() -> None:
    model = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)
    fine = make_grid("logsnr", model.schedule, 200)
    teacher = make_solver("unipc")
    train, valid, held = (
        teach(model, "toy", teacher, fine, seeds)
        for seeds in (range(32), range(1000, 1032), range(2000, 2064))
    )
    for name in ("dpmpp", "ipndm", "unipc", "euler"):
        problem = Problem(model, make_solver(name), 5, l2, train, valid)
        starts = [make_grid(method, model.schedule, 5) for method in ("edm", "logsnr", "cosine")]
        judge = Student(replace(problem, valid=held))
        losses = [judge.mean_loss(table(problem, grid)) for grid in starts]
        start = starts[losses.index(min(losses))]
        result = run(problem, Recipe(epochs=20, rate_times=0.05, rate_net=0.02, average=0.8), start)
        assert judge.mean_loss(table(problem, result.grid)) < 0.8 * min(losses), name


# Rough networks and long trajectories


def rippled(size: float) -> FunctionModel:
    """A mixture whose denoiser ripples in lam with a period of 0.1, as if made for whole times."""
    toy = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)

    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        wave = torch.sin(2 * math.pi * toy.schedule.lam(t) / 0.1)
        return toy.forward(x, t, None) + size * wave * torch.cos(3 * x)

    return FunctionModel(forward, toy.schedule, "x0", (2,), torch.float64)


def toy_problem(model: Model, steps: int = 5) -> Problem:
    fine = make_grid("logsnr", model.schedule, 400)
    train, valid = (
        teach(model, "toy", make_solver("euler"), fine, seeds)
        for seeds in (range(32), range(1000, 1032))
    )
    return Problem(model, make_solver("dpmpp"), steps, l2, train, valid)


def test_roughness_is_seen() -> None:
    grid = make_grid("logsnr", rippled(0).schedule, 5)
    assert roughness(toy_problem(rippled(0)), grid) < 0.05
    assert roughness(toy_problem(rippled(0.005)), grid) > ROUGH


def test_secants_find_the_way_where_slopes_mislead() -> None:
    """On a rippled network; and on a smooth one they cost quality nothing to speak of."""
    recipe = Recipe(epochs=15, rate_times=0.05, rate_net=0.03, average=0.8, validate_every=5)
    ends = {}
    for size in (0.0, 0.005):
        problem = toy_problem(rippled(size))
        for h in (0.0, 0.1):
            ends[size, h] = run(replace(problem, secant=h), recipe).best
    assert ends[0.005, 0.1] < 0.8 * ends[0.005, 0.0]
    assert ends[0.0, 0.1] < 1.2 * ends[0.0, 0.0]


@pytest.mark.parametrize("secant", [0.0, 0.1])
def test_calls_that_are_rematerialised_change_no_bit(
    monkeypatch: pytest.MonkeyPatch, secant: float
) -> None:
    problem = replace(toy_problem(rippled(0), 10), secant=secant)
    recipe, found = Recipe(epochs=1, validate_every=4), []
    for kept in (1, 3, 100):
        monkeypatch.setattr(student, "KEPT", kept)
        found.append(run(problem, recipe).state)
    for other in found[1:]:
        assert torch.equal(found[0].numbers["times"], other.numbers["times"])
        assert torch.equal(found[0].numbers["net"], other.numbers["net"])
        assert found[0].evaluations > other.evaluations


# Parts


@pytest.mark.parametrize("variable", ["lam", "t"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_any_grid_can_be_the_start(variable: str, method: str) -> None:
    for schedule in (VPLinear(), Flow()):
        clock = Clock(schedule, 7, variable, floor=1e-4)  # type: ignore[arg-type]
        grid = make_grid(method, schedule, 7)
        shifted = TimeGrid.of(grid.times, grid.times.clone())
        again = clock.grid(clock.logits(shifted), clock.shifts(shifted))
        if variable == "lam" and method == "uniform":
            continue  # gaps below the floor: the nearest grid above it
        assert (again.times / grid.times - 1).abs().max() < 2e-2
        assert again.times[0] == schedule.t_max
        assert again.times[-1] == schedule.t_min
    with pytest.raises(PlanError, match="got a grid of 3 steps, wanted 7"):
        clock.logits(make_grid(method, schedule, 3))


def test_any_numbers_are_a_grid_and_network_times_do_not_cross() -> None:
    generator = torch.Generator().manual_seed(0)
    clock = Clock(VPLinear(), 8)
    for size in (0.1, 1.0, 10.0, 100.0):
        logits = size * torch.randn(8, generator=generator, dtype=torch.float64)
        shifts = size * torch.randn(7, generator=generator, dtype=torch.float64)
        grid = clock.grid(logits, shifts).checked(VPLinear())
        assert bool((grid.net_times[1:] <= grid.net_times[:-1]).all())


def test_the_window_of_the_papers_code_is_shut_at_even_logits() -> None:
    clock = Clock(VPLinear(), 4, window_from="logits")
    even = torch.ones(4, dtype=torch.float64)
    grid = clock.grid(even, torch.full((3,), 0.3, dtype=torch.float64))
    assert torch.equal(grid.times, grid.net_times)


def test_gradients_of_the_parametrisation() -> None:
    clock = Clock(VPLinear(), 5)
    logits = torch.linspace(-0.5, 0.5, 5, dtype=torch.float64).requires_grad_()
    shifts = torch.full((4,), 0.01, dtype=torch.float64).requires_grad_()

    def times(logits: Tensor, shifts: Tensor) -> Tensor:
        grid = clock.grid(logits, shifts)
        return torch.cat([grid.times, grid.net_times])

    assert torch.autograd.gradcheck(times, (logits, shifts))
    (slope,) = torch.autograd.grad(times(logits, shifts).sum(), logits)
    assert abs(slope.sum().item()) < 1e-12  # only differences of logits matter


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.1)),
        ("rmsprop", lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9)),
        ("adam", lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.99))),
    ],
)
def test_rules_are_those_of_torch(
    name: str, make: Callable[[list[Tensor]], torch.optim.Optimizer]
) -> None:
    generator = torch.Generator().manual_seed(0)
    theirs = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    ours, memory = torch.zeros(3, dtype=torch.float64), {}
    optimizer = make([theirs])
    for _ in range(20):
        slope = torch.randn(3, generator=generator, dtype=torch.float64)
        theirs.grad = slope.clone()
        optimizer.step()
        direction, memory = RULES[name](slope, memory)
        ours = ours - 0.1 * direction
        assert (ours - theirs.detach()).abs().max() < 1e-10


def test_clipping() -> None:
    slope = torch.tensor([3.0, 4.0])
    assert torch.linalg.vector_norm(clipped(slope, 1.0)).item() == pytest.approx(1, abs=1e-5)
    assert torch.equal(clipped(slope, math.inf), slope)
    assert torch.equal(clipped(slope, 100.0), slope)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets(name: str) -> None:
    preset = make_preset(name, 5)
    assert preset.train >= preset.valid > 0
    assert iterations(preset) > 0
    assert make_preset(name, 5, pairs=12).train == 12
    if name == "paper-pixel":
        recipe = preset.recipe
        assert (recipe.rate_net, recipe.rate_noise, recipe.rate_times) == (0.02, 2.4, 0.005)
        assert iterations(preset) == 175
    if name == "paper-latent":
        assert iterations(preset) == 250
    if name == "paper-text-to-image":
        assert iterations(preset) == 125
        assert (preset.teacher.solver, preset.teacher.steps) == ("ipndm", 6)
    with pytest.raises(SpecError, match="did you mean"):
        make_preset(name + "x", 5)


# Going on


RECIPES = {
    "ours": Recipe(batch=4, epochs=4, validate_every=3, average=0.8),
    "paper": replace(make_preset("paper-pixel", N).recipe, epochs_times=1, epochs=2, gamma=0.3),
}


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_stopped_run_goes_on_to_the_bit(tmp_path: Path, name: str) -> None:
    problem, recipe = euler_problem(3), RECIPES[name]
    start = begin(problem, recipe, make_grid("edm", problem.model.schedule, N))
    whole = [p.state for p in learn(problem, recipe, start)]
    for stop in (0, 1, 5, len(whole) - 2):
        write_tensors(tmp_path / "state.safetensors", whole[stop].to_tensors())
        state = State.from_tensors(read_tensors(tmp_path / "state.safetensors"))
        *_, last = learn(problem, recipe, state)
        ended, wanted = last.state.to_tensors(), whole[-1].to_tensors()
        assert set(ended) == set(wanted)
        for part in wanted:
            assert torch.equal(ended[part], wanted[part]), part


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    problem = euler_problem()
    tensors = begin(problem, Recipe(), make_grid("edm", problem.model.schedule, N)).to_tensors()
    for name in ("numbers.times", "best", "iteration"):
        with pytest.raises(StoreError, match="wanted all parts"):
            State.from_tensors({key: v for key, v in tensors.items() if key != name})
    with pytest.raises(StoreError, match="wanted all parts"):
        State.from_tensors({**tensors, "surprise": torch.ones(1)})


def test_losses_that_are_not_finite_are_skipped_then_fatal() -> None:
    problem = euler_problem()
    bad = replace(problem, train=replace(problem.train, target=problem.train.target * math.nan))
    recipe = Recipe(batch=4, epochs=10, max_skipped=5)
    state = begin(bad, recipe, make_grid("edm", problem.model.schedule, N))
    steps = learn(bad, recipe, state)
    seen = [next(steps).state for _ in range(5)]
    with pytest.raises(ModelError, match="not finite 6 times"):
        next(steps)
    assert [s.skipped for s in seen] == [1, 2, 3, 4, 5]
    assert torch.equal(seen[-1].numbers["times"], state.numbers["times"])


def test_cost_is_counted() -> None:
    """Hard forcing: the first answers once, then N - 1 forward and backward (as two) a sample.

    Two of these five calls are rematerialised.
    """
    problem = euler_problem()
    recipe = Recipe(batch=8, epochs=1, validate_every=100)
    state = begin(problem, recipe, make_grid("edm", problem.model.schedule, N))
    assert state.evaluations == 16 + 16 + 16 * (N - 1)
    last = run(problem, recipe)
    learned = 16 * (3 * (N - 1) + 2)
    judged = 16 * (N - 1)
    assert last.state.evaluations == state.evaluations + learned + judged


# The teacher


def test_pairs_are_made_once_and_shared(tmp_path: Path) -> None:
    model = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)
    grid, solver = make_grid("edm", model.schedule, 10), make_solver("unipc")
    seen: list[int] = []
    first = teach(model, "a", solver, grid, range(40), folder=tmp_path, progress=seen.append)
    assert seen == [32, 8]
    files = sorted(tmp_path.rglob("*.safetensors"))
    stamps = [file.stat().st_mtime_ns for file in files]
    again = teach(model, "a", solver, grid, [5, 33, 7], folder=tmp_path)
    assert torch.equal(again.target, first.target[[5, 33, 7]])
    assert torch.equal(again.noise, first.noise[[5, 33, 7]])
    assert [file.stat().st_mtime_ns for file in files] == stamps
    files[0].write_bytes(b"broken")  # is made anew
    assert torch.equal(
        teach(model, "a", solver, grid, range(40), folder=tmp_path).target, first.target
    )
    for other in (("b", grid, 1.0), ("a", make_grid("logsnr", model.schedule, 10), 1.0)):
        teach(model, other[0], solver, other[1], range(4), folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
