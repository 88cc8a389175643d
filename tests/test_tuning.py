"""Parameters: grids and back, corrections of the table, and their exactness."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ld3 import (
    EDM,
    METHODS,
    SOLVERS,
    Flow,
    Plan,
    TimeGrid,
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
from ld3.density import Warp
from ld3.errors import PlanError
from ld3.parameters import GROUPS, FamilyParameters, GridParameters, SolverParameters
from ld3.plan import rows_of
from ld3.predictions import Prediction
from ld3.schedule_json import schedule_to_json
from ld3.table import TunedSolver
from ld3.zoo.toy import mixture
from learning_toys import MODEL, mixture_problem

NAMES = sorted(SOLVERS)


def parameters(solver: str, steps: int = 4, exact: bool = False) -> SolverParameters:
    return SolverParameters(make_solver(solver), GridParameters(VPLinear(), steps), GROUPS, exact)


def shaken(made: SolverParameters, size: float = 0.05) -> tuple[dict[str, Tensor], TunedSolver]:
    """Values of a grid, moved at random, and their tuned solver."""
    values = made.start_values(make_grid("edm", made.schedule, made.grids.steps))
    generator = torch.Generator().manual_seed(0)
    moved = {
        name: value + size * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in values.items()
    }
    return moved, made.tuned(moved, made.grids.steps)


# ---- grids


def test_a_grid_by_hand() -> None:
    """Shares 0.1, 0.3, 0.6 of the softmax above a floor of 0.3 / 3."""
    grids = GridParameters(Flow(), 3, "t", floor=0.3)
    logits = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64).log() + 5
    shares = [0.7 * 0.1 + 0.1, 0.7 * 0.3 + 0.1, 0.7 * 0.6 + 0.1]
    assert grids.shares(logits).tolist() == pytest.approx(shares)
    first, last = Flow().t_max, Flow().t_min
    span = last - first
    inner = [first + span * shares[0], first + span * (shares[0] + shares[1])]
    grid = grids.grid(logits, torch.tensor([0.01, -9.0], dtype=torch.float64))
    assert grid.times.tolist() == pytest.approx([first, *inner, last])
    width = 0.5 * shares[0] * abs(span)  # half the smallest gap
    assert grid.net_times.tolist() == pytest.approx(
        [first, inner[0] + 0.01, inner[1] - width, last]
    )


@pytest.mark.parametrize("variable", ["lam", "t"])
def test_grids_and_back(variable: str) -> None:
    """Logits have mean zero; shifts within the window are kept."""
    grids = GridParameters(VPLinear(), 5, variable)  # type: ignore[arg-type]
    logits = torch.tensor([0.3, -0.2, 0.4, 0.1, -0.6], dtype=torch.float64)
    shifts = 0.01 * torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.float64)
    grid = grids.grid(logits + 3, shifts)
    assert torch.allclose(grids.logits(grid), logits, atol=1e-9)
    assert torch.allclose(grids.shifts(grid), shifts, atol=1e-9)
    first, last = grids.ends()
    ends = torch.tensor([VPLinear().t_max, VPLinear().t_min], dtype=torch.float64)
    wanted = VPLinear().lam(ends) if variable == "lam" else ends
    assert [float(first), float(last)] == wanted.tolist()


@pytest.mark.parametrize("variable", ["lam", "t"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_any_grid_can_be_the_start(variable: str, method: str) -> None:
    for schedule in (VPLinear(), Flow()):
        grids = GridParameters(schedule, 7, variable, floor=1e-4)  # type: ignore[arg-type]
        grid = make_grid(method, schedule, 7)
        again = grids.grid(grids.logits(grid), grids.shifts(grid))
        if variable == "lam" and method == "uniform":
            continue  # gaps below the floor: the nearest grid above it
        assert (again.times / grid.times - 1).abs().max() < 2e-2
        assert again.times[0] == schedule.t_max
        assert again.times[-1] == schedule.t_min
    with pytest.raises(PlanError, match="got a grid of 3 steps, expected 7"):
        grids.logits(make_grid(method, schedule, 3))


def test_gaps_at_the_floor_keep_a_slope() -> None:
    grids = GridParameters(Flow(), 3, "t", floor=0.5)
    grid = TimeGrid.of([Flow().t_max, 0.9999 * Flow().t_max, 0.5, Flow().t_min])
    logits = grids.logits(grid)
    assert bool(torch.isfinite(logits).all())
    smallest = torch.softmax(logits, 0).min().item()
    assert 0.2e-6 < smallest < 0.5e-6  # 1e-6 / N


def test_any_values_are_a_grid_and_network_times_do_not_cross() -> None:
    generator = torch.Generator().manual_seed(0)
    grids = GridParameters(VPLinear(), 8)
    for size in (0.1, 1.0, 10.0, 100.0):
        logits = size * torch.randn(8, generator=generator, dtype=torch.float64)
        shifts = size * torch.randn(7, generator=generator, dtype=torch.float64)
        grid = grids.grid(logits, shifts).checked(VPLinear())
        assert bool((grid.net_times[1:] <= grid.net_times[:-1]).all())
        gaps = VPLinear().lam(grid.times).diff()
        assert gaps.min() > 0.0099 * gaps.mean()


def test_the_window_of_the_papers_code() -> None:
    """Half the smallest difference of the logits, beginning with 1; shut at even logits."""
    grids = GridParameters(VPLinear(), 4, window_from="logits")
    even = torch.ones(4, dtype=torch.float64)
    shifts = torch.full((3,), 0.3, dtype=torch.float64)
    grid = grids.grid(even, shifts)
    assert torch.equal(grid.times, grid.net_times)
    uneven = torch.tensor([1.5, 2.1, 2.5, 1.9], dtype=torch.float64)
    grid = grids.grid(uneven, shifts)
    lam = VPLinear().lam
    assert (lam(grid.net_times) - lam(grid.times))[1:-1].tolist() == pytest.approx([0.2] * 3)
    made = SolverParameters(make_solver("euler"), grids)
    start = make_grid("uniform", VPLinear(), 4)
    assert made.start_values(start)["times"][0] == 1.0


def test_gradients_of_the_grid() -> None:
    grids = GridParameters(VPLinear(), 5)
    logits = torch.linspace(-0.5, 0.5, 5, dtype=torch.float64).requires_grad_()
    shifts = torch.full((4,), 0.01, dtype=torch.float64).requires_grad_()

    def times(logits: Tensor, shifts: Tensor) -> Tensor:
        grid = grids.grid(logits, shifts)
        return torch.cat([grid.times, grid.net_times])

    assert torch.autograd.gradcheck(times, (logits, shifts))
    (slope,) = torch.autograd.grad(times(logits, shifts).sum(), logits)
    assert abs(slope.sum().item()) < 1e-12  # only differences of logits matter


def test_a_family_begins_with_a_bump() -> None:
    made = FamilyParameters(make_solver("dpmpp"), Warp(EDM(), 4, 9))
    values = made.start_values(0.0, 2.0)
    assert {name: len(value) for name, value in values.items()} == {
        "times": 16, "net": 10, "coefficients": 0,
    }  # fmt: skip
    for steps in (4, 6, 9, 20):
        tuned = made.tuned(values, steps)
        assert tuned.grid.steps == steps
        assert tuned.corrections is None
        near = make_grid("bump:0:2", EDM(), steps)
        gaps = (EDM().lam(tuned.grid.times) - EDM().lam(near.times)).abs().max()
        assert gaps < 0.3  # 8 knots, linear in between
    assert [made.probe(name) for name in made.learned] == [0.1, 0.03]


# ---- corrections


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
def test_values_and_back(name: str, exact: bool) -> None:
    made = parameters(name, exact=exact)
    values, tuned = shaken(made)
    found = made.start_values(tuned)
    for group in ("net", "coefficients"):
        assert (found[group] - values[group]).abs().max() < 1e-10
    assert (made.tuned(found, 4).grid.times - tuned.grid.times).abs().max() < 1e-12
    vector = made.flat(values)
    assert all(torch.equal(made.unflat(vector, found)[g], values[g]) for g in GROUPS)


@pytest.mark.parametrize("name", NAMES)
def test_zero_corrections_are_the_solver_itself(name: str) -> None:
    made = parameters(name)
    grid = make_grid("edm", VPLinear(), 4)
    plain = compile_table(made.solver, knots(VPLinear(), grid))
    table = made.table(made.start_values(grid), 4)
    assert (table.weights - plain.weights).abs().max() < 1e-12
    assert table.nfe == made.solver.nfe(4)


@pytest.mark.parametrize("prediction", ["eps", "v", "flow"])
def test_corrections_are_the_same_in_every_prediction(prediction: str) -> None:
    """The table on raw outputs samples what the table on x0 does."""
    from ld3 import FunctionModel
    from ld3.predictions import from_x0

    made = parameters("dpmpp", 5)
    schedule = made.schedule
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
    wanted, _ = tuned.table(schedule).follow(x0, x)
    table = tuned.table(schedule, model.prediction)
    assert table.nfe == tuned.nfe == 5
    assert (table.run(bind_network(model), x) - wanted).abs().max() < 1e-9


@pytest.mark.parametrize("name", [name for name in NAMES if name != "euler-log"])
@pytest.mark.parametrize("exact", [False, True])
def test_exact_corrections_integrate_constant_networks(name: str, exact: bool) -> None:
    """x on the line alpha c + sigma e stays there; free corrections leave it.

    Euler in log sigma leaves it by itself.
    """
    made = parameters(name, exact=exact)
    values, _ = shaken(made)
    values["net"] = torch.zeros_like(values["net"])  # at the solver's times
    tuned = made.tuned(values, 4)
    schedule = made.schedule
    c, e = noise([0], (5,), torch.float64), noise([1], (5,), torch.float64)
    ends = [(schedule.log_alpha(t).exp(), schedule.log_sigma(t).exp()) for t in tuned.grid.times]
    (alpha_T, sigma_T), (alpha_0, sigma_0) = ends[0], ends[-1]
    x, wanted = alpha_T * c + sigma_T * e, alpha_0 * c + sigma_0 * e
    table = tuned.table(schedule)
    constant_x0, _ = table.follow(lambda x, t: c, x)

    def constant_eps(x: Tensor, t: Tensor) -> Tensor:
        return (x - schedule.log_sigma(t).exp() * e) / schedule.log_alpha(t).exp()

    for found in (constant_x0, table.follow(constant_eps, x)[0]):
        error = (found - wanted).abs().max()
        assert (error < 1e-9) == exact


def test_slopes_of_corrections_are_right() -> None:
    made, task = parameters("unipc", 3), mixture_problem(steps=3, count=4)
    made = replace(made, grids=replace(made.grids, schedule=MODEL.schedule))
    values, _ = shaken(made)
    x = MODEL.schedule.prior_std * task.train.noise[:2].double()

    def sample(vector: Tensor) -> Tensor:
        return made.table(made.unflat(vector, values), 3).follow(bind(MODEL), x)[0]

    # the sizes of corrections are constants to the learner, so leave the times alone
    fixed = replace(made, learned=("coefficients",))
    coefficients = fixed.flat(values).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v: made.table({**values, "coefficients": v}, 3).follow(bind(MODEL), x)[0],
        coefficients,
    )
    assert sample(made.flat(values)).shape == (2, 8)


@pytest.mark.parametrize("form", ["x0", "eps", "flow"])
@pytest.mark.parametrize("name", NAMES)
def test_increments_give_every_state_of_the_table(name: str, form: Prediction) -> None:
    _, tuned = shaken(parameters(name))
    table = tuned.table(VPLinear())
    count = table.nfe
    x, *outputs = noise(range(count + 1), (3,), torch.float64)
    steps = table.increments(form, VPLinear())
    assert (steps.form, len(steps.ratios)) == (form, count)
    assert torch.equal(steps.net_times, table.net_times)
    state = x
    for n, row in enumerate(table.in_outputs(form, VPLinear()).weights[1:]):
        assert len(steps.weights[n]) == n + 1
        terms = zip(steps.weights[n], outputs, strict=False)
        state = steps.ratios[n] * state + sum(weight * output for weight, output in terms)
        wanted = row @ torch.stack([x, *outputs])
        assert (state - wanted).abs().max() < 1e-9 * wanted.abs().max()


@pytest.mark.parametrize("begin", [1, 2, 3])
@pytest.mark.parametrize("name", ["euler", "dpmpp", "deis", "unipc"])
def test_the_tail_of_a_table_after_equal_answers_is_the_table(name: str, begin: int) -> None:
    """Answers before X_b that equal the one at X_b: its weight may stand for theirs."""
    table = shaken(parameters(name))[1].table(VPLinear())
    x, *answers = noise(range(table.nfe + 1), (3,), torch.float64)
    answers[:begin] = [answers[begin]] * begin
    states = table.weights @ torch.stack([x, *answers])
    tail = table.tail(begin)
    assert torch.equal(tail.net_times, table.net_times[begin:])
    found = tail.weights @ torch.stack([states[begin], *answers[begin:]])
    assert (found - states[begin:]).abs().max() < 1e-10 * states.abs().max()


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
    made = parameters("dpmpp", 3)
    _, tuned = shaken(made)
    plan = Plan.checked(plan_with(rows_of(tuned.corrections)))
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
    made = parameters("dpmpp", 3)
    _, tuned = shaken(made)
    with pytest.raises(PlanError, match="coefficients"):
        replace(made, learned=GROUPS[:2]).start_values(tuned)
    with pytest.raises(PlanError, match="learned coefficients of dpmpp-3, expected those of unipc"):
        parameters("unipc", 3).start_values(tuned)


def test_corrections_by_hand() -> None:
    """Scaled by alpha_n on the answers and sigma_n / sigma_T on the noise, row by row."""
    made = parameters("euler", 2)
    values = made.start_values(make_grid("edm", VPLinear(), 2))
    assert len(values["coefficients"]) == 2 + 3
    values["coefficients"] = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    tuned = made.tuned(values, 2)
    assert tuned.corrections is not None
    alpha, sigma = (
        f(tuned.grid.times).exp().tolist() for f in (VPLinear().log_alpha, VPLinear().log_sigma)
    )
    wanted = [
        [0.1 * sigma[1] / sigma[0], 0.2 * alpha[1], 0.0],
        [0.3 * sigma[2] / sigma[0], 0.4 * alpha[2], 0.5 * alpha[2]],
    ]
    for row, want in zip(tuned.corrections.tolist(), wanted, strict=True):
        assert row == pytest.approx(want)
    plain = TunedSolver(made.solver, tuned.grid).table(VPLinear()).weights
    added = tuned.table(VPLinear()).weights - plain
    assert torch.allclose(added[1:], tuned.corrections)
    assert torch.equal(added[0], torch.zeros(3, dtype=torch.float64))
    exact = parameters("euler", 2, exact=True)
    free = exact.start_values(make_grid("edm", VPLinear(), 2))
    assert len(free["coefficients"]) == 1
    free["coefficients"] += 0.5
    kept = exact.tuned(free, 2).corrections
    assert kept is not None
    assert kept[1].tolist() == pytest.approx([0, -0.5 * alpha[2], 0.5 * alpha[2]])
    assert math.isclose(float(kept[0].abs().sum()), 0)
