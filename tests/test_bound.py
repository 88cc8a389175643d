"""Theorem 1: it holds where its assumptions do, and its terms are what they should be."""

import math

import pytest
import torch
from torch import Tensor

import ld3
from ld3 import zoo
from ld3.errors import ModelError, SpecError
from ld3.metrics import log_det, log_det_estimate, preimage, random_bounds, true_bound
from ld3.metrics.bound import Map, in_ball, jacobian
from ld3.zoo.toy import Gaussian, gaussian, image_mixture, mixture


def matched(count: int, d: int, seed: int = 0) -> Tensor:
    """Noise whose sample mean is 0 and covariance 1: means of quadratics are then exact."""
    z = torch.randn(count, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    z = z - z.mean(0)
    return torch.linalg.qr(z).Q * math.sqrt(count)


def student(model: ld3.Model, solver: str, grid: str, steps: int) -> Map:
    k = ld3.knots(model.schedule, ld3.make_grid(grid, model.schedule, steps))
    table = ld3.compile_table(ld3.make_solver(solver), k, model.prediction)
    network = ld3.bind_network(model)
    return lambda z: table.run(network, model.schedule.prior_std * z)


def exact(model: Gaussian) -> Map:
    ends = torch.tensor([model.schedule.t_max, model.schedule.t_min], dtype=torch.float64)
    return lambda z: model.solve(model.schedule.prior_std * z, *ends)


# ---- affine Gaussian student and teacher


def test_a_shifted_student_has_the_radius_of_its_shift() -> None:
    """All assumptions hold: |a - b| = r everywhere. Then KL = r^2 / 2 and no gap."""
    teacher = exact(gaussian([0.3] * 5, [0.5] * 5))
    shift = torch.tensor([0.3, -0.4, 0.0, 1.2, 0.0], dtype=torch.float64)  # length 1.3
    found = true_bound(teacher, lambda z: teacher(z - shift), matched(200, 5))
    assert found.found == 1
    assert found.bound.radius == pytest.approx(1.3, rel=1e-9)
    assert float(found.distances.min()) == pytest.approx(1.3, rel=1e-9)
    assert found.kl == pytest.approx(1.3**2 / 2, rel=1e-9)
    assert found.bound.gap == pytest.approx(0, abs=1e-9)
    assert found.bound.ball == pytest.approx(found.kl, rel=1e-9)
    assert found.bound.total == pytest.approx(1.3**2 / 2 + 1.3 * math.sqrt(6), rel=1e-9)


@pytest.mark.parametrize("grid", ["logsnr", "edm"])
def test_euler_on_a_gaussian_in_closed_form(grid: str) -> None:
    """student = rho x teacher, rho = prod cos(dtheta), theta = arctan(t / c):

    KL = d/2 (1/rho^2 - 1 + 2 log rho), gap = -d log rho, |a - b| = (1/rho - 1) |b|."""
    d, c = 6, 0.5
    model = gaussian([0.0] * d, [c] * d)
    times = ld3.make_grid(grid, model.schedule, 6).times
    rho = float(torch.cos(torch.arctan(times / c).diff()).prod())
    b = matched(400, d)
    found = true_bound(exact(model), student(model, "euler", grid, 6), b)
    assert 0.6 < rho < 0.7
    assert found.kl == pytest.approx(d / 2 * (1 / rho**2 - 1 + 2 * math.log(rho)), rel=1e-7)
    assert found.bound.gap == pytest.approx(-d * math.log(rho), rel=1e-7)
    wanted = (1 / rho - 1) * torch.linalg.vector_norm(b, dim=1)
    assert (found.distances - wanted).abs().max() < 1e-6
    assert found.kl < found.bound.total


@pytest.mark.parametrize(
    ("name", "grid", "steps"),
    [
        ("euler", "logsnr", 10),
        ("dpmpp", "logsnr", 6),
        ("unipc", "logsnr", 5),
        ("ipndm", "edm", 8),
        ("heun", "edm", 6),
    ],
)
def test_the_theorem_on_gaussians(name: str, grid: str, steps: int) -> None:
    """The divergence is that of two Gaussians, and it is below the bound."""
    model = gaussian([0.3, -1.0, 0.2, 2.0], [0.5, 0.1, 1.0, 0.3])
    teacher, learner = exact(model), student(model, name, grid, steps)
    found = true_bound(teacher, learner, matched(300, 4))
    assert found.found == 1

    zero = torch.zeros(1, 4, dtype=torch.float64)
    (m_q, m_p), (j_q, j_p) = (
        [f(zero)[0] for f in (teacher, learner)],
        [jacobian(f, zero)[0] for f in (teacher, learner)],
    )
    ratio = torch.linalg.solve(j_p, j_q)
    apart = torch.linalg.solve(j_p, m_q - m_p)
    kl = (ratio.square().sum() + apart.square().sum() - 4) / 2 - torch.linalg.slogdet(ratio)[1]
    assert found.kl == pytest.approx(float(kl), rel=1e-6)
    assert found.bound.gap == pytest.approx(float(torch.linalg.slogdet(ratio)[1].abs()), rel=1e-6)
    assert 0 <= found.kl <= found.bound.total


def test_the_radius_is_needed() -> None:
    """Where a and b are far apart the gap alone is below the divergence: r = 0 would be wrong."""
    teacher = exact(gaussian([0.0] * 4, [0.5] * 4))
    found = true_bound(teacher, lambda z: 0.5 * teacher(z), matched(300, 4))
    assert found.kl == pytest.approx(2 * 3 - 4 * math.log(2), rel=1e-6)
    assert found.bound.gap == pytest.approx(4 * math.log(2), rel=1e-6)
    assert found.bound.gap < found.kl < found.bound.total


def test_the_theorem_on_a_mixture() -> None:
    model = mixture([[-1.0, 0.0], [1.0, 0.5]], std=0.4)
    b = ld3.noise(range(200), (2,), torch.float64)
    teacher = student(model, "unipc", "logsnr", 30)
    coarse, fine = (true_bound(teacher, student(model, "dpmpp", "logsnr", n), b) for n in (10, 20))
    for found in (coarse, fine):
        assert found.found == 1
        assert found.kl < found.bound.total
        assert found.kl > -3 * found.kl_error
    assert fine.bound.total < 0.7 * coarse.bound.total


# ---- the paper's random preimages


def test_points_are_uniform_in_the_ball() -> None:
    centre = ld3.noise(range(4000), (3,), torch.float64)
    step = in_ball(centre, 2.0, seed=1) - centre
    share = (torch.linalg.vector_norm(step, dim=1) / 2) ** 3  # uniform in [0, 1]
    assert share.max() <= 1
    assert (share.sort().values - torch.linspace(0, 1, 4000)).abs().max() < 0.03
    assert (step.mean(0)).abs().max() < 0.06
    assert torch.equal(in_ball(centre, 0.0), centre)
    with pytest.raises(SpecError, match="got radius -1"):
        in_ball(centre, -1.0)


def test_random_bounds() -> None:
    """At r = 0 the gap is that of both maps at b; affine maps have the same at every r."""
    model = mixture([[-1.0, 0.0], [1.0, 0.5]], std=0.4)
    b = ld3.noise(range(20), (2,), torch.float64)
    teacher, learner = (student(model, "unipc", "logsnr", n) for n in (20, 5))
    far, near = random_bounds(teacher, learner, b, [10.0, 0.0])
    wanted = (log_det(teacher, b) - log_det(learner, b)).abs().mean()
    assert near.gap == near.total == pytest.approx(float(wanted), rel=1e-12)
    assert (far.ball, far.shift) == (50.0, pytest.approx(10 * math.sqrt(3)))
    assert far.gap != near.gap

    model_2 = gaussian([0.0, 1.0], [0.5, 0.2])
    teacher, learner = (student(model_2, "unipc", "logsnr", n) for n in (20, 5))
    far, near = random_bounds(teacher, learner, b, [10.0, 0.0])
    assert far.gap == pytest.approx(near.gap, rel=1e-9)


# ---- determinants and preimages


def bend(d: int, seed: int = 0) -> Map:
    """0.2 (z + 0.8 tanh(W z)): smooth, not affine."""
    w = ld3.noise([seed], (d, d), torch.float64)[0] / math.sqrt(d)
    return lambda z: 0.2 * (z + 0.8 * torch.tanh(z @ w.T))


def test_log_det_of_a_linear_map() -> None:
    scale = torch.linspace(0.1, 3, 64, dtype=torch.float64)
    z = ld3.noise(range(3), (1, 8, 8), torch.float64)
    found = log_det(lambda x: x * scale.view(1, 1, 8, 8), z)
    assert (found - scale.log().sum()).abs().max() < 1e-10


def test_jacobian_against_finite_differences() -> None:
    f, z = bend(5), ld3.noise(range(3), (5,), torch.float64)
    step = 1e-6 * torch.eye(5, dtype=torch.float64)
    wanted = torch.stack([(f(z + e) - f(z - e)) / 2e-6 for e in step], 2)
    assert (jacobian(f, z) - wanted).abs().max() < 1e-8


def test_estimated_log_det_against_the_exact_one() -> None:
    """All steps: only the probes are random, with variance 2 sum_{i != j} L_ij^2 each,
    L = log (J^T J)^{1/2}. Fewer steps: the quadrature is close, too."""
    f, z = bend(24), ld3.noise(range(6), (24,), torch.float64)
    probes = 40
    wanted = log_det(f, z)
    _, scale, right = torch.linalg.svd(jacobian(f, z))
    log = right.mT @ torch.diag_embed(scale.log()) @ right
    off = log.square().sum((1, 2)) - torch.diagonal(log, dim1=1, dim2=2).square().sum(1)
    error = (2 * off / probes).sqrt()
    full = log_det_estimate(f, z, probes, steps=24)
    assert ((full - wanted).abs() / error).max() < 4
    assert error.max() < 0.02 * wanted.abs().min()
    few, rough = (log_det_estimate(f, z, probes, steps=n) for n in (10, 2))
    assert (few - full).abs().max() < 0.1
    assert (rough - full).abs().max() > 0.2


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_the_quadrature_of_a_linear_map(steps: int) -> None:
    """One step takes log |J v| for all of v; d steps or more are exact for each probe."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 4, generator=generator, dtype=torch.float64) + 2 * torch.eye(4)
    chance = torch.Generator().manual_seed(5)
    v = (2 * torch.randint(2, (3, 4), generator=chance).double() - 1) / 2  # of length 1
    values, vectors = torch.linalg.eigh(matrix.T @ matrix)
    exact = ((v @ vectors).square() * values.log() / 2).sum(1)
    wanted = 4 * (exact if steps > 1 else (v @ matrix.T).norm(dim=1).log()).mean()
    z = torch.ones(2, 4, dtype=torch.float64)
    found = log_det_estimate(lambda z: z @ matrix.T, z, probes=3, steps=steps, seed=5)
    assert found.tolist() == pytest.approx([float(wanted)] * 2, rel=1e-9)


def test_estimated_log_det_where_the_space_is_exhausted_early() -> None:
    """A multiple of the identity: one step says all, at any dimension and in float32."""
    for dtype in (torch.float32, torch.float64):
        z = ld3.noise(range(2), (100,), dtype)
        found = log_det_estimate(lambda x: 0.25 * x, z, probes=1, steps=20)
        assert (found - 100 * math.log(0.25)).abs().max() < 1e-3
    two = torch.where(torch.arange(100) < 30, 2.0, 0.5).double()
    found = log_det_estimate(lambda x: two * x, z, probes=1, steps=20)
    assert (found - two.log().sum()).abs().max() < 1e-9


def test_estimated_log_det_of_a_shipped_network() -> None:
    """Products with J by differentiating twice, through a real network, against differences."""
    model = zoo.load("fashion-latent", dtype=torch.float64)
    z = ld3.noise([0], model.shape, torch.float64)
    network = ld3.bind_network(model, model.conditions([0]))
    t = torch.tensor(0.3, dtype=torch.float64)
    few, more = (
        log_det_estimate(lambda x: x - 0.1 * network(x, t), z, probes=2, steps=n) for n in (12, 24)
    )
    assert bool(few.isfinite().all())
    assert (few - more).abs().max() < 0.1


def test_the_estimate_is_taken_above_64_dimensions() -> None:
    z = ld3.noise(range(3), (65,), torch.float64)
    (found,) = random_bounds(lambda x: 2 * x, lambda x: 0.5 * x, z, [0.0])
    assert found.gap == pytest.approx(65 * math.log(4), rel=1e-9)
    for refused in (lambda: log_det(bend(65), z), lambda: preimage(bend(65), z, z)):
        with pytest.raises(SpecError, match="got 65 dimensions, expected at most 64"):
            refused()


def test_a_map_that_cannot_be_differentiated_twice() -> None:
    model = image_mixture(2, 2, (1, 9, 9))
    z = ld3.noise(range(2), model.shape, torch.float64)
    with pytest.raises(ModelError, match="differentiate twice"):
        log_det_estimate(student(model, "euler", "logsnr", 2), z)


def test_preimages() -> None:
    f, z = bend(7), ld3.noise(range(20), (7,), torch.float64)
    start = z + 0.3 * ld3.noise(range(20, 40), (7,), torch.float64)
    back, found = preimage(f, f(z), start)
    assert bool(found.all())
    assert (f(back) - f(z)).abs().max() < 1e-7


def test_a_preimage_that_is_not_there_is_not_found() -> None:
    x = torch.tensor([[4.0], [-1.0]], dtype=torch.float64)
    back, found = preimage(torch.square, x, torch.full_like(x, 1.5))
    assert found.tolist() == [True, False]
    assert back[0].item() == pytest.approx(2)
    with pytest.raises(SpecError, match="got 0 of 2 preimages, expected at least 2"):
        true_bound(lambda z: -1 - z.square(), torch.square, x)
