"""Solvers, over the registry: order, gradients, evaluations, invariances, closed forms.

A solver added to `SOLVERS` is tested by all of this without a line here.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from ld3 import (
    EDM,
    Flow,
    Schedule,
    Solver,
    TimeGrid,
    VPLinear,
    bind,
    bind_network,
    compile_table,
    count_calls,
    integrate,
    knots,
    make_grid,
    make_solver,
    noise,
    trajectory,
)
from ld3.known_grids import tangent_law
from ld3.zoo.toy import Gaussian, gaussian, mixture

SCHEDULES: dict[str, Schedule] = {"ve": EDM(), "vp": VPLinear(), "flow": Flow()}
STDS = [0.2, 0.5, 1.0, 2.0]


def uneven(schedule: Schedule, steps: int, spread: float = 0.5, seed: int = 0) -> TimeGrid:
    """Random gaps in lam, each 1 +- spread of the mean gap."""
    generator = torch.Generator().manual_seed(seed)
    gaps = 1 + spread * (2 * torch.rand(steps, generator=generator, dtype=torch.float64) - 1)
    u = torch.cat([torch.zeros(1, dtype=torch.float64), gaps.cumsum(0)])
    ends = schedule.lam(torch.tensor([schedule.t_max, schedule.t_min], dtype=torch.float64))
    return TimeGrid.of(schedule.time_at(ends[0] + (ends[1] - ends[0]) * u / u[-1]))


def rms(error: Tensor) -> float:
    return error.square().mean().sqrt().item()


def graded(schedule: Schedule, grid: TimeGrid) -> TimeGrid:
    """The same grid with its first and last interval split at ever smaller parts of themselves.

    Methods begin, and some end, with low orders. With gaps h^4, h^3, h^2, h there, these steps err
    by less than the rest, and the order of the formulas shows.
    """
    lam = schedule.lam(grid.times)
    h = (lam[-1] - lam[0]) / grid.steps
    parts = torch.stack([h**3, h**2, h])
    first, last = lam[1] - lam[0], lam[-1] - lam[-2]
    split = [lam[:1], lam[0] + first * parts, lam[1:-1], lam[-1] - last * parts.flip(0), lam[-1:]]
    return TimeGrid.of(schedule.time_at(torch.cat(split)))


# Where the order is not the nominal one, and why: the published third-order formula of DPM++ takes
# half of a Taylor term; iPNDM uses the weights of equal steps on unequal ones; the corrector of
# UniPC adds an order; DEIS-3 in log rho gains one on even steps, where its error term cancels;
# Euler in log sigma reaches its order late where lam begins very low.
OTHER: dict[str, dict[tuple[str, int, str], tuple[float, float]]] = {
    "even": {
        ("dpmpp", 3, ""): (1.9, 2.3),
        ("dpmpp", 3, "full"): (1.9, 2.3),
        ("ipndm", 3, ""): (1.8, 2.2),
        ("ipndm", 4, ""): (1.9, 2.2),
        ("deis", 3, "log-rho"): (3.8, 4.2),
        ("euler-log", 1, ""): (0.75, 1.12),
    },
    "uneven": {
        ("dpmpp", 3, ""): (1.9, 2.3),
        ("dpmpp", 3, "full"): (1.9, 2.3),
        ("ipndm", 3, ""): (1.4, 2.4),
        ("ipndm", 4, ""): (1.7, 2.7),
        ("deis", 3, "log-rho"): (2.4, 3.2),
        ("euler-log", 1, ""): (0.75, 1.12),
    },
}
UNIPC = {1: (1.85, 2.2), 2: (2.65, 3.2), 3: (3.2, 4.4)}


def order_range(solver: Solver, kind: str) -> tuple[float, float]:
    """The lowest and the highest order that may be observed."""
    if solver.name == "unipc":
        return UNIPC[solver.order]
    key = (solver.name, solver.order, solver.variant)
    slack = 0.12 * solver.order
    return OTHER[kind].get(key, (solver.order - slack, solver.order + slack))


@pytest.mark.parametrize("path", SCHEDULES)
@pytest.mark.parametrize("kind", ["even", "uneven"])
def test_order_of_convergence(solver: Solver, path: str, kind: str) -> None:
    """The error against the exact solution on Gaussian data falls like N^-order."""
    schedule = SCHEDULES[path]
    model = gaussian([0.3, -0.5, 0.0, 1.0], STDS, schedule)
    x = schedule.prior_std * noise(range(4), model.shape, torch.float64)
    lam = schedule.lam(uneven(schedule, 40, 0.5 if kind == "uneven" else 0.0).times)
    errors = []
    for _ in range(4):
        grid = graded(schedule, TimeGrid.of(schedule.time_at(lam)))
        exact = model.solve(x, grid.times[0], grid.times[-1])
        found = integrate(bind(model), solver, knots(schedule, grid), x)
        errors.append(math.log2(rms(found - exact)))
        halved = torch.stack([lam[:-1], (lam[:-1] + lam[1:]) / 2], dim=1).flatten()
        lam = torch.cat([halved, lam[-1:]])
    observed = (3 * (errors[0] - errors[3]) + errors[1] - errors[2]) / 10  # least squares
    low, high = order_range(solver, kind)
    assert low < observed < high, f"observed order {observed:.2f}, expected {low} to {high}"


@pytest.mark.parametrize("steps", range(1, 13))
def test_exact_number_of_evaluations(solver: Solver, steps: int) -> None:
    model = mixture([[-0.6], [0.6]], 0.2)
    counted = count_calls(bind(model))
    states = list(
        trajectory(
            counted,
            solver,
            knots(model.schedule, make_grid("edm", model.schedule, steps)),
            80 * noise([0], (1,), torch.float64),
        )
    )
    assert counted.calls == solver.nfe(steps)
    assert counted.calls == (2 * steps if solver.name == "heun" else steps)
    assert len(states) == steps + 1
    assert all(bool(torch.isfinite(state).all()) for state in states)


def slopes(function: Callable[[Tensor], Tensor], at: Tensor, step: Tensor) -> Tensor:
    """Central differences of fourth order, one coordinate at a time."""
    result = torch.zeros_like(at)
    for i in range(at.numel()):
        shift = torch.zeros_like(at)
        shift.view(-1)[i] = step.view(-1)[i]
        near = function(at + shift) - function(at - shift)
        far = function(at + 2 * shift) - function(at - 2 * shift)
        result.view(-1)[i] = (8 * near - far) / (12 * step.view(-1)[i])
    return result


@pytest.mark.parametrize("path", ["ve", "vp", "flow"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6])
def test_gradients_against_finite_differences(solver: Solver, steps: int, path: str) -> None:
    """In every time, every network time and the noise: relative error below 1e-6."""
    schedule: Schedule = {
        "ve": EDM(0.02, 20.0),
        "vp": VPLinear(t_min=0.01, t_max=0.9),
        "flow": Flow(0.02, 0.95),
    }[path]
    model = mixture([[-0.6, 0.2], [0.5, -0.4], [0.1, 0.7]], 0.3, schedule, prediction="eps")
    times = uneven(schedule, steps).times
    lam = schedule.lam(times)
    net = schedule.time_at(lam + 0.05 * torch.cos(torch.arange(steps + 1, dtype=torch.float64)))
    z = noise([1, 2], model.shape, torch.float64)
    probe = noise([3, 4], model.shape, torch.float64)

    def score(t: Tensor, tc: Tensor, z: Tensor) -> Tensor:
        k = knots(schedule, TimeGrid.of(t, tc))
        return (probe * integrate(bind(model), solver, k, schedule.prior_std * z)).sum()

    leaves = [v.clone().requires_grad_() for v in (times, net, z)]
    found = torch.autograd.grad(score(*leaves), leaves, allow_unused=True)
    with torch.no_grad():
        numeric = [
            slopes(
                lambda v: score(v, net, z), times, 1e-3 * times * (1 - 0.9 * times * (path != "ve"))
            ),
            slopes(
                lambda v: score(times, v, z), net, 1e-3 * net * (1 - 0.9 * net * (path != "ve"))
            ),
            slopes(lambda v: score(times, net, v), z, torch.full_like(z, 1e-3)),
        ]
    scale = max(value.abs().max().item() for value in numeric)
    for name, got, want in zip(("times", "network times", "noise"), found, numeric, strict=True):
        size = max(want.abs().max().item(), 1e-3 * scale)
        assert got is not None, name
        assert (got - want).abs().max().item() < 1e-6 * size, name
    if solver.name != "heun":
        assert found[1] is not None and found[1][-1] == 0  # the end is never asked


@pytest.mark.parametrize(
    ("name", "order", "variant"),
    [
        ("euler", 1, ""), ("heun", 2, ""), ("dpmpp", 3, ""), ("dpm-single", 2, ""),
        ("ipndm", 3, ""), ("unipc", 3, "bh1"), ("deis", 3, "rho"),
    ],
)  # fmt: skip
def test_order_and_variant_by_default(name: str, order: int, variant: str) -> None:
    solver = make_solver(name)
    assert (solver.order, solver.variant) == (order, variant)
    assert (Solver.order, Solver.variant, Solver.variants, Solver.form) == (1, "", (), "x0")


def test_nearly_equal_times_stay_finite(solver: Solver) -> None:
    schedule = EDM()
    model = mixture([[-0.6], [0.6]], 0.2, schedule)
    x = 80 * noise(range(4), (1,), torch.float64)
    for twin in (1, 2, 3, 4):
        times = make_grid("logsnr", schedule, 6).times.clone()
        times[twin + 1] = times[twin] * (1 - 1e-9)
        times.requires_grad_()
        out = integrate(bind(model), solver, knots(schedule, TimeGrid.of(times)), x)
        (slope,) = torch.autograd.grad(out.sum(), times)
        assert bool(torch.isfinite(out).all())
        assert bool(torch.isfinite(slope).all())


def test_table_is_the_solver(solver: Solver) -> None:
    schedule = VPLinear()
    model = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.3, schedule, prediction="v")
    x = noise(range(4), model.shape, torch.float64)
    for steps in (1, 2, 3, 5, 8):
        grid = uneven(schedule, steps)
        lam = schedule.lam(grid.times)
        shifted = torch.cat([lam[:1], lam[1:-1] + 0.1, lam[-1:]])
        k = knots(schedule, TimeGrid.of(grid.times, schedule.time_at(shifted)))
        sample = integrate(bind(model), solver, k, x)
        for table, network in (
            (compile_table(solver, k), bind(model)),
            (compile_table(solver, k, model.prediction), bind_network(model)),
        ):
            assert table.nfe == solver.nfe(steps)
            assert bool((table.weights.triu(1) == 0).all())
            assert table.weights[0, 0] == 1
            counted = count_calls(network)
            assert (table.run(counted, x) - sample).abs().max() < 1e-12
            assert counted.calls == table.nfe


def test_table_is_differentiable_in_the_times(solver: Solver) -> None:
    schedule = EDM(0.02, 20.0)
    times = uneven(schedule, 4).times

    def last_row(t: Tensor) -> Tensor:
        return compile_table(solver, knots(schedule, TimeGrid.of(t))).weights[-1]

    assert torch.autograd.gradcheck(last_row, times.clone().requires_grad_(), eps=1e-7, atol=1e-5)


def test_same_in_ve_and_vp_coordinates(solver: Solver) -> None:
    """x / alpha follows the same trajectory whatever the schedule, as a function of lam."""
    vp = VPLinear()
    grid = uneven(vp, 6)
    lam = vp.lam(grid.times)
    ve = EDM(t_min=math.exp(-lam[-1].item()) * 0.99, t_max=math.exp(-lam[0].item()) * 1.01)
    means = [[-0.6, 0.2], [0.5, -0.4]]
    z = noise(range(4), (2,), torch.float64)
    results = []
    for schedule in (vp, ve):
        model = mixture(means, 0.3, schedule)
        k = knots(schedule, TimeGrid.of(schedule.time_at(lam)))
        states = trajectory(bind(model), solver, k, z * k.sigma[0])
        results.append([x / a for x, a in zip(states, k.alpha, strict=True)])
    for a, b in zip(*results, strict=True):
        assert (a - b).abs().max() < 1e-9 * a.abs().max()


@pytest.mark.parametrize("path", SCHEDULES)
@pytest.mark.parametrize("twin", [("dpmpp", 1), ("ipndm", 1), ("deis", 1)])
def test_first_order_methods_are_ddim(path: str, twin: tuple[str, int]) -> None:
    schedule = SCHEDULES[path]
    model = mixture([[-0.6], [0.6]], 0.2, schedule)
    k = knots(schedule, uneven(schedule, 6))
    x = schedule.prior_std * noise(range(4), (1,), torch.float64)
    ddim = integrate(bind(model), make_solver("euler"), k, x)
    assert (integrate(bind(model), make_solver(*twin), k, x) - ddim).abs().max() < 1e-10


@pytest.mark.parametrize("path", SCHEDULES)
def test_unipc_1_predicts_as_ddim(path: str) -> None:
    schedule = SCHEDULES[path]
    model = mixture([[-0.6], [0.6]], 0.2, schedule)
    k = knots(schedule, uneven(schedule, 6))
    x = schedule.prior_std * noise(range(4), (1,), torch.float64)
    first = [
        list(trajectory(bind(model), make_solver(name, 1), k, x))[1] for name in ("unipc", "euler")
    ]
    assert (first[0] - first[1]).abs().max() < 1e-12 * first[0].abs().max()


@pytest.mark.parametrize("variant", ["bh1", "bh2"])
def test_a_step_of_unipc_2_written_out(variant: str) -> None:
    """B(h) = h or 1 - e^-h; half of B is the weight of a difference, in corrector and predictor."""
    k = knots(VPLinear(), uneven(VPLinear(), 3))
    start, m_0, m_1 = noise(range(3), (2,), torch.float64)
    e_0, e_1 = (-torch.expm1(-h) for h in k.h[:2])  # h phi_1
    b_0, b_1 = k.h[:2] if variant == "bh1" else (e_0, e_1)
    x = k.sigma[1] / k.sigma[0] * start + k.alpha[1] * (e_0 * m_0 + b_0 / 2 * (m_1 - m_0))
    slope = (m_1 - m_0) * k.h[1] / k.h[0]
    wanted = k.sigma[2] / k.sigma[1] * x + k.alpha[2] * (e_1 * m_1 + b_1 / 2 * slope)
    solver = make_solver("unipc", 2, variant)
    found, history = solver.step(lambda x, t: m_1, k, 1, 0 * start, (start, m_0))
    assert (found - wanted).abs().max() < 1e-12
    assert (history[0] - x).abs().max() < 1e-12


@pytest.mark.parametrize("degree", [2, 3])
def test_unipc_3_is_exact_for_polynomials(degree: int) -> None:
    """x0 = lam^2 in the predictor, x0 = lam^3 in the corrector, against Gauss-Legendre."""
    k = knots(VPLinear(), uneven(VPLinear(), 6))
    nodes, weights = map(torch.tensor, np.polynomial.legendre.leggauss(20))

    def exact(x: Tensor, i: int) -> Tensor:
        u = (nodes + 1) / 2
        inside = k.h[i] * torch.exp(-k.h[i] * (1 - u)) * (k.lam[i] + k.h[i] * u) ** degree
        return k.sigma[i + 1] / k.sigma[i] * x + k.alpha[i + 1] * (weights * inside).sum() / 2

    start = torch.tensor([0.3, -0.7], dtype=torch.float64)
    answers = [(k.lam[i] ** degree).expand(2) for i in (3, 2, 1, 0)]
    solver = make_solver("unipc", 3)
    found, (corrected, *_) = solver.step(
        lambda x, t: answers[0], k, 3, start, (start, *answers[1:])
    )
    assert (corrected - exact(start, 2)).abs().max() < 1e-10 * exact(start, 2).abs().max()
    if degree == 2:
        assert (found - exact(corrected, 3)).abs().max() < 1e-10 * found.abs().max()


@pytest.mark.parametrize("path", SCHEDULES)
def test_constant_answers_are_integrated_exactly(solver: Solver, path: str) -> None:
    """A network that always says the same x0, or the same eps: one of the two is exact.

    Euler in log sigma moves by -s h eps instead of (s_+ - s) eps, and is exact for neither.
    """
    schedule = SCHEDULES[path]
    k = knots(schedule, uneven(schedule, 7))
    x = schedule.prior_std * noise(range(4), (3,), torch.float64)
    answer = noise(range(4, 8), (3,), torch.float64)
    eps = (x - k.alpha[0] * answer) / k.sigma[0]

    def same_x0(x: Tensor, t: Tensor) -> Tensor:
        return answer

    def same_eps(x: Tensor, t: Tensor) -> Tensor:
        alpha, sigma = schedule.log_alpha(t).exp(), schedule.log_sigma(t).exp()
        return (x - sigma * eps) / alpha

    exact = k.alpha[-1] * answer + k.sigma[-1] * eps  # both networks describe this straight line
    if solver.name == "euler-log":
        steps = sum(s * h for s, h in zip(k.ratio, k.h, strict=False))
        exact = k.alpha[-1] * (x / k.alpha[0] - steps * eps)
    x0_form = solver.name in {"dpmpp", "dpm-single", "unipc"}
    found = integrate(same_x0 if x0_form else same_eps, solver, k, x)
    assert (found - exact).abs().max() < 1e-9


def test_dpmpp_2m_on_a_constant_answer_is_ddim() -> None:
    schedule = EDM()
    k = knots(schedule, make_grid("logsnr", schedule, 8))
    x = 80 * noise(range(4), (3,), torch.float64)
    answer = noise(range(4, 8), (3,), torch.float64)
    both = [integrate(lambda x, t: answer, make_solver("dpmpp", order), k, x) for order in (1, 2)]
    assert (both[0] - both[1]).abs().max() < 1e-12


# Closed forms on Gaussian data


def centred(std: float) -> tuple[Gaussian, Tensor]:
    return gaussian([0.0], [std]), 80 * noise(range(4), (1,), torch.float64)


def test_tangent_law() -> None:
    """Euler on Gaussian data keeps prod cos(da) of the exact solution; equal angles are best."""
    model, x = centred(0.5)
    grid = tangent_law(model.schedule, 6, 0.5)
    printed = [80, 1.83269, 0.860386, 0.498876, 0.289064, 0.135203, 0.002]
    assert grid.times.tolist() == pytest.approx(printed, rel=1e-5)
    kept = {}
    for name, g in {
        "tangent": grid,
        **{n: make_grid(n, model.schedule, 6) for n in ("logsnr", "edm", "uniform")},
    }.items():
        exact = model.solve(x, g.times[0], g.times[-1])
        found = integrate(bind(model), make_solver("euler"), knots(model.schedule, g), x)
        angles = torch.atan(g.times / 0.5)
        assert (found / exact).mean().item() == pytest.approx(
            torch.cos(angles[:-1] - angles[1:]).prod().item(), rel=1e-10
        )
        kept[name] = (found / exact).mean().item()
    assert kept["tangent"] == pytest.approx(0.814426, abs=1e-6)
    assert kept["logsnr"] == pytest.approx(0.6498, abs=1e-4)
    assert kept["edm"] == pytest.approx(0.6367, abs=1e-4)
    assert kept["uniform"] == pytest.approx(0.0415, abs=1e-4)


def test_exact_network_times_make_euler_exact() -> None:
    """t^c / (c^2 + t^c^2) = (exact growth - 1)/(t_+ - t) has a root, on either side of c."""
    c = 0.5
    model, x = centred(c)
    t = make_grid("logsnr", model.schedule, 6).times
    growth = torch.sqrt((c**2 + t[1:] ** 2) / (c**2 + t[:-1] ** 2))
    rate = (growth - 1) / (t[1:] - t[:-1])
    root = torch.sqrt(1 - 4 * (rate * c) ** 2)
    net = torch.where(t[:-1] > c, 1 + root, 1 - root) / (2 * rate)
    printed = [80.0076, 13.7237, 2.55001, 0.180551, 0.0397382, 0.00684648]
    assert net.tolist() == pytest.approx(printed, rel=1e-5)
    grid = TimeGrid.of(t, torch.cat([net, t[-1:]]))
    found = integrate(bind(model), make_solver("euler"), knots(model.schedule, grid), x)
    assert (found / model.solve(x, t[0], t[-1]) - 1).abs().max() < 1e-12
    # most of it inside a window of half the gap in lam
    gap = torch.log(t[:-1] / t[1:])
    shifts = torch.log(t[:-1] / net) / gap
    assert (-shifts[1:]).tolist() == pytest.approx([0.002, 0.05, -0.45, -0.31, -0.30], abs=0.006)


def test_observed_errors_on_two_modes() -> None:
    """A 1-D mixture, where every method has been measured independently (RMS, 64 samples)."""
    model = mixture([[-0.6], [0.6]], 0.2)
    generator = torch.Generator().manual_seed(0)
    x = 80 * torch.randn(64, 1, generator=generator, dtype=torch.float64)
    fine = knots(model.schedule, make_grid("logsnr", model.schedule, 400))
    exact = integrate(bind(model), make_solver("deis", 4, "log-rho"), fine, x)
    for solver, wanted in (
        (make_solver("euler"), (0.218, 0.104)),
        (make_solver("ipndm", 3), (0.045, 0.020)),
        (make_solver("dpmpp", 3), (0.114, 0.036)),
        (make_solver("unipc", 3, "bh2"), (0.133, 0.0091)),
    ):
        for steps, error in zip((5, 10), wanted, strict=True):
            k = knots(model.schedule, make_grid("logsnr", model.schedule, steps))
            assert rms(integrate(bind(model), solver, k, x) - exact) == pytest.approx(
                error, rel=0.5
            )
