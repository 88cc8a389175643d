"""Time grids: hand-made ones over the registry, the phi functions, and every way to be wrong."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ld3 import EDM, METHODS, Flow, TimeGrid, VPLinear, grids, knots, make_grid, make_schedule
from ld3.errors import PlanError, SpecError
from ld3.grids import phi_functions
from ld3.schedules import SCHEDULES


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_on_every_schedule(method: str, schedule: str) -> None:
    """Ends exact, strictly decreasing, deterministic, any number of steps."""
    path = make_schedule(schedule)
    for steps in (1, 2, 3, 5, 20, 100):
        grid = make_grid(method, path, steps).checked(path, steps)
        assert grid.times[0] == path.t_max
        assert grid.times[-1] == path.t_min
        assert torch.equal(grid.times, grid.net_times)
        assert torch.equal(grid.times, make_grid(method, path, steps).times)
        assert grid.times.dtype == torch.float64


def test_edm_grid_is_the_published_one() -> None:
    sigma = [(80 ** (1 / 7) + i / 5 * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7 for i in range(6)]
    assert make_grid("edm", EDM(), 5).times.tolist() == pytest.approx(sigma, rel=1e-12)


def test_published_tables() -> None:
    """Exact where table, number of steps and range agree; log-linear in between."""
    grid = make_grid("gits-cifar10", EDM(), 5).times
    assert grid.tolist() == pytest.approx([80, 5.8389, 2.1632, 0.8119, 0.2107, 0.002], rel=1e-9)
    sd = make_schedule("sd")
    s = torch.exp(-sd.lam(make_grid("ays-sd15", sd, 10).times))
    wanted = [14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029]
    assert s.tolist() == pytest.approx(wanted, rel=0.01)
    twice = torch.exp(-sd.lam(make_grid("ays-sd15", sd, 20).times))
    assert torch.allclose(twice[::2], s, rtol=1e-9)
    assert torch.allclose(twice[1::2], (s[1:] * s[:-1]).sqrt(), rtol=1e-9)


def test_each_method_is_even_in_its_variable() -> None:
    path = VPLinear()
    for method, variable in {
        "uniform": lambda t: t,
        "quadratic": torch.sqrt,
        "logsnr": path.lam,
        "edm": lambda t: torch.exp(-path.lam(t) / 7),
        "cosine": lambda t: torch.atan(torch.exp(-path.lam(t))),
        "paper-quadratic": lambda t: torch.sqrt(t - path.t_min),
        "paper-edm": lambda t: t ** (1 / 7),
    }.items():
        gaps = variable(make_grid(method, path, 9).times).diff()
        assert (gaps / gaps.mean() - 1).abs().max() < 1e-9, method


def test_vp_uniform_is_even_on_the_fitted_curve() -> None:
    """On EDM's range the curve has beta_d = 17.538 and beta_0 = -0.00477 (published fit)."""
    sigma = make_grid("vp-uniform", EDM(), 8).times
    square = torch.log1p(sigma**2)
    beta_d, beta_0 = 17.538, -0.00477
    v = (-beta_0 + torch.sqrt(beta_0**2 + 2 * beta_d * square)) / beta_d
    gaps = v.diff()
    assert (gaps / gaps.mean() - 1).abs().max() < 1e-3
    own = make_grid("vp-uniform", VPLinear(), 8).times  # on the VP path itself: nearly even in t
    assert (own.diff() / own.diff().mean() - 1).abs().max() < 2e-2


@pytest.mark.parametrize(
    ("times", "net", "reason"),
    [
        ([80, 1, 2, 0.002], None, "strictly decreasing"),
        ([80, 1, 1, 0.002], None, "strictly decreasing"),
        ([0.002, 1, 80], None, "strictly decreasing"),
        ([80, float("nan"), 0.002], None, "not finite"),
        ([80, float("inf"), 0.002], None, "not finite"),
        ([81, 1, 0.002], None, "range"),
        ([80, 1, 0.0], None, "range"),
        ([80, 1, 0.002], [80, 1], "one per time"),
        ([80, 1, 0.002], [80, 90, 0.002], "range"),
        ([80, 1, 0.002], [80, float("nan"), 0.002], "not finite"),
        ([80], None, "(N+1,)"),
        ([], None, "(N+1,)"),
        ([[80, 1], [1, 0.5]], None, "(N+1,)"),
    ],
)
def test_bad_grids_are_one_line(times: list[float], net: list[float] | None, reason: str) -> None:
    with pytest.raises(PlanError) as error:
        TimeGrid.of(times, net).checked(EDM())
    assert reason in str(error.value)
    assert "got" in str(error.value)
    assert "\n" not in str(error.value)


def test_wrong_number_of_steps() -> None:
    with pytest.raises(PlanError, match="4 values for 5 steps, expected 6"):
        TimeGrid.of([80.0, 2.0, 1.0, 0.002]).checked(EDM(), steps=5)
    with pytest.raises(SpecError, match="at least 1"):
        make_grid("edm", EDM(), 0)
    with pytest.raises(SpecError, match="did you mean 'logsnr'"):
        make_grid("logsrn", EDM(), 4)


def test_a_long_bad_grid_is_not_printed_whole() -> None:
    with pytest.raises(PlanError) as error:
        TimeGrid.of(torch.linspace(0.1, 79, 900, dtype=torch.float64)).checked(EDM())
    assert len(str(error.value)) < 300


def test_gradients_pass_through_a_grid() -> None:
    times = make_grid("edm", Flow(), 4).times.clone().requires_grad_()
    k = knots(Flow(), TimeGrid.of(times))
    (slope,) = torch.autograd.grad(torch.stack(k.h).sum(), times)
    assert bool((slope[[0, -1]] != 0).all())
    assert slope[1:-1].abs().max() < 1e-9  # the sum of all gaps depends on the ends alone


def exact_phi(k: int, z: float) -> float:
    """By the series in exact rational arithmetic, up to terms below 1e-40."""
    from fractions import Fraction

    total, term, n = Fraction(0), Fraction(1, math.factorial(k)), 0
    while n < 20 or abs(term) > Fraction(1, 10**40):
        total, n = total + term, n + 1
        term = term * Fraction(z) / (n + k)
    return float(total)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.floats(-12, 12))
def test_phi_functions(z: float) -> None:
    got = phi_functions(torch.tensor(z, dtype=torch.float64), 4)
    for k in range(1, 5):
        assert got[k - 1].item() == pytest.approx(exact_phi(k, z), rel=3e-12)


def test_phi_gradients_are_smooth_through_zero_and_where_the_branches_meet() -> None:
    z = torch.tensor([-1e-12, 0.0, 1e-9, 0.01, 0.7499999, 0.7500001, -0.75], dtype=torch.float64)
    for k in range(4):
        leaf = z.clone().requires_grad_()
        (slope,) = torch.autograd.grad(phi_functions(leaf, 4)[:, k].sum(), leaf)
        wide = (phi_functions(z + 1e-4, 4) - phi_functions(z - 1e-4, 4))[:, k] / 2e-4
        assert (slope - wide).abs().max() < 1e-8


def test_sampling_in_inference_mode_first_leaves_gradients_possible() -> None:
    """Constants that are made once must not belong to inference mode."""
    grids._series.cache_clear()
    with torch.inference_mode():
        grids.phi_functions(torch.tensor([-0.01], dtype=torch.float64), 4)
    z = torch.tensor([-0.01], dtype=torch.float64, requires_grad=True)
    grids.phi_functions(z, 4).sum().backward()
    assert torch.isfinite(z.grad).all()
