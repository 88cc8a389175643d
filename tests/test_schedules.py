"""Noise schedules: published constants, exact inverses, gradients, the ends."""

import math

import pytest
import torch
from torch import Tensor

from ld3 import EDM, Discrete, Flow, Schedule, VPCosine, VPLinear, make_schedule
from ld3.errors import SpecError
from ld3.schedules import SCHEDULES

NAMES = sorted(SCHEDULES)


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def inside(schedule: Schedule, count: int = 401) -> Tensor:
    """Times evenly spread in lam over the whole range, ends included."""
    ends = torch.tensor([schedule.t_max, schedule.t_min], dtype=torch.float64)
    lam = schedule.lam(ends)
    return schedule.time_at(torch.linspace(lam[0].item(), lam[1].item(), count, dtype=ends.dtype))


@pytest.mark.parametrize(
    ("schedule", "t", "lam", "tolerance"),
    [
        (VPLinear(), 1.0, -5.02498, 1e-5),
        (VPLinear(), 1e-3, 4.55771, 1e-5),
        (VPLinear(), 1e-4, 5.7515, 1e-4),
        (VPLinear(), 1e-5, 6.9073, 1e-4),
        (VPCosine(), 0.9946, -4.7776, 1e-4),
        (VPCosine(), 1e-3, 5.0475, 1e-4),
        (make_schedule("ldm"), 1e-3, 3.2504, 1e-4),
        (make_schedule("ldm"), 1.0, -4.4287, 1e-4),
        (make_schedule("sd"), 1e-3, 3.5347, 1e-4),
        (make_schedule("sd"), 1.0, -2.6820, 1e-4),
        (make_schedule("ddpm"), 1e-3, 4.605, 1e-3),
        (make_schedule("ddpm"), 1.0, -5.059, 1e-3),
        (make_schedule("iddpm"), 1e-3, 5.047, 1e-3),
        (make_schedule("point-cloud"), 1.0, -0.28, 5e-3),
        (EDM(), 80.0, -math.log(80), 1e-12),
        (Flow(), 0.5, 0.0, 1e-12),
    ],
)
def test_published_lam(schedule: Schedule, t: float, lam: float, tolerance: float) -> None:
    assert schedule.lam(scalar(t)).item() == pytest.approx(lam, abs=tolerance)


def test_published_alphas() -> None:
    ldm, sd = make_schedule("ldm"), make_schedule("sd")
    square = {
        (schedule, t): schedule.log_alpha(scalar(t)).mul(2).exp().item()
        for schedule in (ldm, sd)
        for t in (1e-3, 1.0)
    }
    assert square[ldm, 1e-3] == pytest.approx(0.9985, abs=1e-9)
    assert square[ldm, 1.0] == pytest.approx(1.4230e-4, rel=1e-4)
    assert square[sd, 1e-3] == pytest.approx(0.99915, abs=1e-9)
    assert square[sd, 1.0] == pytest.approx(4.6601e-3, rel=1e-4)
    assert VPLinear().log_alpha(scalar(1.0)).exp().item() == pytest.approx(0.0065716, rel=1e-4)
    assert math.exp(2 * Discrete.linear(steps=100).log_alphas[-1]) == pytest.approx(
        0.3636, abs=1e-4
    )


def test_cosine_tail_is_dropped_and_the_range_ends_there() -> None:
    for steps, dropped, first, last in ((1000, 4, 5.047, -9.918), (4000, 16, 5.763, -11.30)):
        full, kept = Discrete.cosine(steps, lam_min=-math.inf), Discrete.cosine(steps)
        assert len(full.log_alphas) - len(kept.log_alphas) == dropped
        assert kept.t_max == (steps - dropped) / steps
        assert full.lam(scalar(full.t_min)).item() == pytest.approx(first, abs=1e-3)
        assert full.lam(scalar(full.t_max)).item() == pytest.approx(last, abs=5e-3)
        assert kept.lam(scalar(kept.t_max)).item() >= -5.1


@pytest.mark.parametrize("name", NAMES)
def test_inverse_is_exact_and_falling(name: str) -> None:
    schedule = make_schedule(name)
    t = inside(schedule)
    lam = schedule.lam(t)
    assert bool((t[1:] < t[:-1]).all())
    assert bool((lam[1:] > lam[:-1]).all())
    assert (schedule.lam(schedule.time_at(lam)) - lam).abs().max() < 1e-11
    assert ((schedule.time_at(lam) - t) / t).abs().max() < 1e-11
    assert t[0].item() == pytest.approx(schedule.t_max, rel=1e-12)
    assert t[-1].item() == pytest.approx(schedule.t_min, rel=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_float32_inverse_stays_close(name: str) -> None:
    schedule = make_schedule(name)
    lam = schedule.lam(inside(schedule))
    back = schedule.lam(schedule.time_at(lam.float()).double())
    assert (back - lam).abs().max() < 2e-3


@pytest.mark.parametrize("name", NAMES)
def test_alpha_and_sigma_agree_with_lam_and_the_path(name: str) -> None:
    schedule = make_schedule(name)
    t = inside(schedule)
    alpha, sigma = schedule.log_alpha(t).exp(), schedule.log_sigma(t).exp()
    assert ((alpha / sigma).log() - schedule.lam(t)).abs().max() < 1e-11
    whole = {EDM: alpha, Flow: alpha + sigma}.get(type(schedule), alpha**2 + sigma**2)
    assert (whole - 1).abs().max() < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_gradients_against_finite_differences(name: str) -> None:
    """At both ends and off the knots of tables, for the forward functions and the inverse."""
    schedule = make_schedule(name)
    middle = inside(schedule, 24)
    if isinstance(schedule, Discrete):  # a quarter of the way between two trained steps
        middle = (middle * schedule.steps).floor().clamp_max(schedule.t_max * schedule.steps - 1)
        middle = (middle + 0.25) / schedule.steps
    t = torch.cat([middle, inside(schedule, 2) * torch.tensor([1 - 1e-4, 1 + 1e-4])])
    lam = schedule.lam(t)
    for function, at, step in (
        (schedule.lam, t, 1e-6 * t),
        (schedule.log_alpha, t, 1e-6 * t),
        (schedule.log_sigma, t, 1e-6 * t),
        (schedule.time_at, lam, torch.full_like(lam, 1e-6)),
    ):
        leaf = at.clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(leaf).sum(), leaf)
        numeric = (function(at + step) - function(at - step)) / (2 * step)
        assert ((slope - numeric).abs() / (numeric.abs() + 1e-6)).max() < 1e-5, function
    leaf = t.clone().requires_grad_()
    (forward,) = torch.autograd.grad(schedule.lam(leaf).sum(), leaf)
    leaf = lam.clone().requires_grad_()
    (backward,) = torch.autograd.grad(schedule.time_at(leaf).sum(), leaf)
    assert (forward * backward - 1).abs().max() < 1e-9


def test_table_is_linear_beyond_its_ends() -> None:
    schedule = Discrete.linear()
    for edge, step in ((schedule.t_min, -1e-4), (schedule.t_max, 1e-4)):
        values = schedule.log_alpha(scalar(edge) + step * torch.arange(-3, 3, dtype=torch.float64))
        beyond = values[3:].diff()
        assert beyond[0].item() == pytest.approx(beyond[1].item(), rel=1e-6)


def test_index_is_the_trained_step() -> None:
    schedule = Discrete.linear()
    trained = torch.tensor([1, 2, 500, 1000], dtype=torch.float64) / 1000
    assert schedule.index(trained).tolist() == pytest.approx([0, 1, 499, 999])


@pytest.mark.parametrize(
    "build",
    [
        lambda: EDM(t_min=0.0),
        lambda: EDM(t_min=2.0, t_max=1.0),
        lambda: Flow(t_max=1.0),
        lambda: VPCosine(t_max=1.2),
        lambda: VPLinear(beta_min=3, beta_max=2),
        lambda: Discrete.from_betas([0.1, 0.0]),
        lambda: Discrete.from_betas([0.1]),
        lambda: Discrete.from_alphas_cumprod([0.9, 0.5, 0.0]),
        lambda: Discrete.from_alphas_cumprod([0.9, float("nan")]),
        lambda: make_schedule("emd"),
    ],
)
def test_bad_constants_are_one_line(build: object) -> None:
    with pytest.raises(SpecError) as error:
        build()  # type: ignore[operator]
    message = str(error.value)
    assert "\n" not in message
    assert any(
        hint in message
        for hint in ("expected", "expected", "did you mean 'edm'", "drop the last step")
    )
