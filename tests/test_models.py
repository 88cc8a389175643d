"""Models: binding, guidance, predictions, rematerialisation, counting, and refusals at the door."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from ld3 import (
    EDM,
    ClampedModel,
    Flow,
    FunctionModel,
    TimeGrid,
    VPLinear,
    bind,
    check_model,
    count_calls,
    integrate,
    knots,
    make_grid,
    make_solver,
    noise,
    prior,
)
from ld3.errors import ModelError
from ld3.models import Cond
from ld3.predictions import Prediction, from_x0, to_eps, to_x0
from ld3.zoo.toy import gaussian, image_mixture, mixture


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    """A small convolutional network with time and class inputs; any smooth function would do."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(2, 8, 3, padding=1)
            self.time = nn.Linear(1, 8)
            self.label = nn.Embedding(4, 8)
            self.last = nn.Conv2d(8, 2, 3, padding=1)

        def forward(self, x: Tensor, t: Tensor, label: Tensor) -> Tensor:
            inner: Tensor = self.first(x)
            embedding = self.time(torch.log(t).to(x.dtype).reshape(1, 1)) + self.label(label)
            out: Tensor = self.last(torch.tanh(inner + embedding[:, :, None, None]))
            return out

    torch.manual_seed(0)
    return Net().to(dtype).requires_grad_(False)


def conditional(dtype: torch.dtype = torch.float64) -> FunctionModel:
    net = network(dtype)

    def forward(x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        assert isinstance(cond, Tensor)
        out: Tensor = net(x, t, cond)
        return out

    return FunctionModel(
        forward,
        VPLinear(),
        "eps",
        (2, 6, 6),
        dtype,
        make_conditions=lambda seeds: torch.tensor([seed % 3 for seed in seeds]),
        make_null=lambda cond: torch.full_like(cond, 3) if isinstance(cond, Tensor) else None,
    )


@pytest.mark.parametrize("prediction", get_args(Prediction))
@pytest.mark.parametrize("path", [EDM(), VPLinear(), Flow()])
def test_predictions_are_inverse_to_each_other(
    prediction: Prediction, path: EDM | VPLinear | Flow
) -> None:
    x0, eps = noise([0], (5,), torch.float64), noise([1], (5,), torch.float64)
    for t in make_grid("logsnr", path, 6).times:
        alpha, sigma = path.log_alpha(t).exp(), path.log_sigma(t).exp()
        x = alpha * x0 + sigma * eps
        v, u = alpha * eps - sigma * x0, eps - x0
        out = {"x0": x0, "eps": eps, "v": v, "flow": u, "reverse-flow": -u}[prediction]
        back = to_x0(prediction, out, x, alpha, sigma)
        assert (back - x0).abs().max() < 1e-9 * sigma / alpha + 1e-12
        assert (to_eps(x0, x, alpha, sigma) - eps).abs().max() < 1e-9 * alpha / sigma + 1e-12
        assert (from_x0(prediction, x0, x, alpha, sigma) - out).abs().max() < 1e-9


@pytest.mark.parametrize("prediction", get_args(Prediction))
def test_the_prediction_does_not_matter(prediction: Prediction) -> None:
    """The same data through networks that predict different things give the same sample."""
    means = [[-0.6, 0.2], [0.5, -0.4]]
    path = VPLinear()
    k = knots(path, make_grid("logsnr", path, 6))
    x = noise(range(4), (2,), torch.float64)
    samples = [
        integrate(bind(mixture(means, 0.3, path, prediction=p)), make_solver("unipc"), k, x)
        for p in (prediction, "x0")
    ]
    assert (samples[0] - samples[1]).abs().max() < 1e-10  # type: ignore[operator]


def test_guidance_by_batch_or_by_calls_is_one_evaluation() -> None:
    model = conditional()
    x, t = noise(range(4), model.shape, torch.float64), torch.tensor(0.4, dtype=torch.float64)
    cond = model.conditions(range(4))
    with_cond, without = bind(model, cond)(x, t), bind(model, model.null(cond))(x, t)
    for guidance in (0.0, 0.5, 1.0, 2.0, 7.5):
        wanted = without + guidance * (with_cond - without)
        by_batch = count_calls(bind(model, cond, guidance=guidance))
        by_calls = count_calls(bind(model, cond, guidance=guidance, guide_by="calls"))
        assert (by_batch(x, t) - wanted).abs().max() < 1e-9
        assert (by_calls(x, t) - wanted).abs().max() < 1e-9
        assert by_batch.calls == by_calls.calls == 1


def test_guidance_takes_mappings_of_tensors() -> None:
    net = network()

    def forward(x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        assert isinstance(cond, dict)
        out: Tensor = net(x, t, cond["label"])
        return out

    plain = conditional()
    model = FunctionModel(
        forward,
        plain.schedule,
        "eps",
        plain.shape,
        torch.float64,
        make_conditions=lambda seeds: {"label": torch.tensor([seed % 3 for seed in seeds])},
        make_null=lambda cond: {"label": torch.full((4,), 3)},
    )
    x, t = noise(range(4), model.shape, torch.float64), torch.tensor(0.4, dtype=torch.float64)
    wanted = bind(plain, plain.conditions(range(4)), guidance=3.0)(x, t)
    assert torch.equal(bind(model, model.conditions(range(4)), guidance=3.0)(x, t), wanted)


def test_guidance_without_a_null_condition_is_refused() -> None:
    model = FunctionModel(lambda x, t, cond: x * t, EDM(), "x0", (3,), None)
    with pytest.raises(ModelError, match="expected guidance 1"):
        bind(model, guidance=2.0)
    with pytest.raises(ModelError, match="expected guidance 1"):
        bind(gaussian([0.0], [1.0]), guidance=2.0)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_rematerialisation_gives_equal_gradients(guidance: float) -> None:
    model = conditional()
    times = make_grid("logsnr", model.schedule, 5).times
    z = noise(range(3), model.shape, torch.float64)
    results = []
    for checkpoint in (False, True):
        t, x = times.clone().requires_grad_(), z.clone().requires_grad_()
        denoise = count_calls(
            bind(model, model.conditions(range(3)), guidance=guidance, checkpoint=checkpoint)
        )
        k = knots(model.schedule, TimeGrid.of(t))
        loss = integrate(denoise, make_solver("unipc"), k, x).square().sum()
        results.append((loss, *torch.autograd.grad(loss, (t, x))))
        assert denoise.calls == 5  # running again for the gradient is not another evaluation
    for plain, again in zip(*results, strict=True):
        assert (plain - again).abs().max() <= 1e-12 * plain.abs().max()


def test_a_seed_is_the_same_sample_in_any_batch() -> None:
    together = noise(range(10), (3, 4))
    assert torch.equal(torch.cat([noise([seed], (3, 4)) for seed in range(10)]), together)
    assert torch.equal(noise([7, 3], (3, 4)), together[[7, 3]])
    model = image_mixture()
    k = knots(model.schedule, make_grid("edm", model.schedule, 4))
    x = prior(model, range(4)).double()
    assert torch.equal(x[2:3], prior(model, [2]).double())
    whole = integrate(bind(model), make_solver("dpmpp"), k, x)
    parts = [integrate(bind(model), make_solver("dpmpp"), k, row) for row in x.split(1)]
    assert (whole - torch.cat(parts)).abs().max() < 1e-9
    assert prior(model, [0]).std().item() == pytest.approx(80, rel=0.05)


def test_image_mixture_denoises_its_own_samples() -> None:
    """The perfect denoiser's error at s cannot exceed the noise, and falls with it."""
    model = image_mixture()
    k = knots(model.schedule, make_grid("edm", model.schedule, 30))
    clean = integrate(bind(model), make_solver("unipc"), k, prior(model, range(8)))
    assert 0.2 < clean.std().item() < 1.0
    errors = []
    for s in (10.0, 1.0, 0.1):
        t = torch.tensor(s, dtype=torch.float64)
        noisy = clean + s * noise(range(8, 16), model.shape)
        errors.append((bind(model)(noisy, t) - clean).square().mean().sqrt().item())
        assert errors[-1] < s
    assert errors == sorted(errors, reverse=True)


def test_low_rank_mixture_equals_full_covariances() -> None:
    """Against the textbook formula with dense matrices."""
    model = image_mixture(count=3, rank=2, shape=(1, 4, 4))
    xbar, s = noise(range(5), model.shape, torch.float64), torch.tensor(0.7, dtype=torch.float64)
    flat = xbar.flatten(1)
    parts, logits = [], []
    for mean, basis, scales in zip(model.means, model.basis, model.scales, strict=True):
        cov = model.floor**2 * torch.eye(16, dtype=torch.float64)
        cov = cov + basis.T @ torch.diag(scales**2 - model.floor**2) @ basis
        noisy = torch.distributions.MultivariateNormal(mean, cov + s**2 * torch.eye(16))
        logits.append(noisy.log_prob(flat))
        gain = cov @ torch.linalg.inv(noisy.covariance_matrix)
        parts.append(mean + (flat - mean) @ gain.T)
    p = torch.softmax(torch.stack(logits, dim=1), dim=1)
    wanted = (p.unsqueeze(-1) * torch.stack(parts, dim=1)).sum(1)
    assert (model.denoise(xbar, s).flatten(1) - wanted).abs().max() < 1e-9


# At the door

Forward = Callable[[Tensor, Tensor, Cond], Tensor]


def brought(forward: Forward, prediction: str = "eps") -> FunctionModel:
    return FunctionModel(forward, VPLinear(), prediction, (2, 6, 6))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda x, t, c: torch.cat([x, x], dim=1) * t, "keep the first half"),
        (lambda x, t, c: (x * t).sum(), "shape ()"),
        (lambda x, t, c: (x * t).long(), "floating point"),
        (lambda x, t, c: x * t * float("nan"), "finite"),
        (lambda x, t, c: x / (t - t), "finite"),
        (lambda x, t, c: x * 2, "no gradient"),
        (lambda x, t, c: x * torch.round(1000 * t), "no gradient"),
        (lambda x, t, c: x * t.detach(), "no gradient"),
        (lambda x, t, c: x * t.long(), "no gradient"),
        (lambda x, t, c: x + torch.sqrt((t - t).abs()) * x, "not finite"),
    ],
)
def test_models_that_do_not_fit_are_refused_with_one_line(forward: Forward, reason: str) -> None:
    with pytest.raises(ModelError) as error:
        check_model(brought(forward))
    assert reason in str(error.value)
    assert "expected" in str(error.value)
    assert "\n" not in str(error.value)


def test_no_grad_inside_the_network_is_noticed() -> None:
    @torch.no_grad()
    def forward(x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        return x * t

    with pytest.raises(ModelError, match="no gradient"):
        check_model(brought(forward))
    check_model(brought(forward), learn=False)


def test_unknown_prediction_is_refused() -> None:
    with pytest.raises(ModelError, match="expected one of x0, eps, v, flow"):
        check_model(brought(lambda x, t, c: x * t, prediction="epsilon"))


def test_a_network_that_answers_at_random_is_refused() -> None:
    """Dropout that is left on, though not the rounding of half precision on a GPU."""
    drop = nn.Dropout(0.1)
    with pytest.raises(ModelError, match=r"two different answers to the same input.*eval\(\)"):
        check_model(brought(lambda x, t, c: drop(x) * t))
    drop.eval()
    check_model(brought(lambda x, t, c: drop(x) * t))
    check_model(brought(lambda x, t, c: x * t * (1 + 1e-3 * torch.randn_like(x))))


def test_wrong_shape_is_also_refused_while_sampling() -> None:
    model = brought(lambda x, t, c: x[:, :1] * t)
    k = knots(model.schedule, make_grid("logsnr", model.schedule, 3))
    with pytest.raises(ModelError, match="expected the same"):
        integrate(bind(model), make_solver("dpmpp"), k, prior(model, [0]))


def test_good_models_pass() -> None:
    seeds: Sequence[int] = range(2)
    assert conditional().conditions(seeds) is not None
    for model in (conditional(), gaussian([0.0, 1.0], [0.5, 0.2]), image_mixture()):
        check_model(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_networks_in_their_own_dtype(dtype: torch.dtype) -> None:
    """The state stays in the caller's dtype; the network sees its own."""
    model = conditional(dtype)
    reference = conditional(torch.float64)
    x = prior(model, range(2))
    assert x.dtype == torch.float32
    k = knots(model.schedule, make_grid("logsnr", model.schedule, 6))
    check_model(model)
    for state in (x, x.double()):
        out = integrate(bind(model, model.conditions(range(2))), make_solver("unipc"), k, state)
        assert out.dtype == state.dtype
        exact = integrate(
            bind(reference, model.conditions(range(2))), make_solver("unipc"), k, x.double()
        )
        scale = exact.abs().max()
        assert (out - exact).abs().max() < {torch.float32: 1e-4}.get(dtype, 0.15) * scale


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states_in_half_precision(dtype: torch.dtype) -> None:
    model = conditional(dtype)
    k = knots(model.schedule, make_grid("logsnr", model.schedule, 4))
    x = prior(model, range(2)).to(dtype)
    for name in ("euler", "dpmpp", "unipc", "ipndm", "deis"):
        out = integrate(bind(model, model.conditions(range(2))), make_solver(name), k, x)
        assert out.dtype == dtype
        assert bool(torch.isfinite(out).all())


def clamped_ddim(model: FunctionModel, times: Tensor, x: Tensor, clamp: bool) -> Tensor:
    """DDIM as OpenAI's repositories write it: eps, x0, clamp, eps again, step."""
    for now, then in pairwise(times):
        (a, s), (a_then, s_then) = (
            (model.schedule.log_alpha(t).exp(), model.schedule.log_sigma(t).exp())
            for t in (now, then)
        )
        x0 = (x - s * model.function(x, now, None)) / a
        x0 = x0.clamp(-1, 1) if clamp else x0
        x = a_then * x0 + s_then * (x - a * x0) / s
    return x


def wide() -> FunctionModel:
    """Noise predictions whose data estimates leave [-1, 1] here and there."""
    net = network()

    def forward(x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        out: Tensor = net(x, t, torch.zeros(len(x), dtype=torch.int64))
        return out

    return FunctionModel(forward, VPLinear(), "eps", (2, 6, 6), torch.float64)


@pytest.mark.parametrize("clamp", [True, False])
def test_ddim_with_and_without_the_clamp(clamp: bool) -> None:
    plain = wide()
    model = ClampedModel(plain) if clamp else plain
    x = prior(plain, [0, 1]).double()
    grid = make_grid("uniform", plain.schedule, 5)
    ours = integrate(bind(model), make_solver("euler"), knots(plain.schedule, grid), x)
    theirs = clamped_ddim(plain, grid.times, x, clamp)
    assert (ours - theirs).abs().max() < 1e-12
    assert (ours - clamped_ddim(plain, grid.times, x, not clamp)).abs().max() > 0.01


def test_a_clamp_has_no_gradient_where_it_acts() -> None:
    """Elsewhere it is that of the model; a check against finite differences."""
    plain = wide()
    model = ClampedModel(plain)
    check_model(model)
    x, t = prior(plain, [0]).double(), torch.tensor(0.6, dtype=torch.float64)
    free, held = bind(plain), bind(model)
    x0 = free(x, t)
    inside = x0.abs() < 1
    assert 0.05 < inside.double().mean() < 0.95
    assert torch.equal(held(x, t), x0.clamp(-1, 1))

    def slopes(denoise: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return torch.func.jacrev(lambda time: denoise(x, time))(t)

    assert torch.equal(slopes(held), torch.where(inside, slopes(free), 0.0))
    step = 1e-6
    near = (held(x, t + step) - held(x, t - step)) / (2 * step)
    assert (near - slopes(held))[(x0.abs() - 1).abs() > 0.01].abs().max() < 1e-6


def test_a_clamped_model_is_another_model() -> None:
    model = ClampedModel(image_mixture(count=2, rank=2, shape=(1, 4, 4)))
    assert model.prediction == "x0" and model.shape == (1, 4, 4)
    assert model.digest is None or model.digest != model.model.digest
    with pytest.raises(ModelError, match="got a model with clamped x0, expected guidance 1"):
        bind(ClampedModel(conditional()), torch.tensor([0]), guidance=2.0)
    with pytest.raises(ModelError, match="expected low below high"):
        ClampedModel(model, 1.0, -1.0)
