"""Distances: values, gradients, per-sample independence, and the loading of LPIPS weights."""

import importlib.util
import math
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import ld3
from ld3.distances import DISTANCES, FeatureDistance, l1, l2, pseudo_huber
from ld3.distances.clouds import chamfer
from ld3.errors import ModelError, SpecError
from ld3.zoo.lpips import LpipsFeatures, load_lpips

WEIGHTS = Path(__file__).resolve().parents[2] / "shared" / "weights"
FILES = {"vgg": WEIGHTS / "lpips_vgg16.safetensors", "alex": WEIGHTS / "lpips_alexnet.safetensors"}
needs_weights = pytest.mark.skipif(
    not all(file.is_file() for file in FILES.values()), reason="no ../shared/weights folder"
)
NETS = pytest.mark.parametrize("net", ["alex", "vgg"])


def g(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=g(seed), dtype=dtype) * 2 - 1


class TinyNet(nn.Module):
    """Two smooth random feature maps in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, padding=1, dtype=torch.float64)
        self.b = nn.Conv2d(4, 5, 3, stride=2, dtype=torch.float64)
        for i, parameter in enumerate(self.parameters()):
            parameter.data = torch.randn(parameter.shape, generator=g(i), dtype=torch.float64)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        a = self.a(x).tanh()
        return [a, self.b(a)]


def chamfer_of_rows(x: Tensor, y: Tensor) -> Tensor:
    """Images as clouds, so that point clouds keep the same contract."""
    return chamfer(x.flatten(1, 2), y.flatten(1, 2))


VALUES = {name: distance for name, distance in DISTANCES.items() if name != "chamfer"}
HEADS = [torch.rand(n, generator=g(n), dtype=torch.float64) for n in (4, 5)]
TINY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **VALUES,
    "chamfer": chamfer_of_rows,
    "features": FeatureDistance(TinyNet()),
    "features+heads": FeatureDistance(TinyNet(), HEADS),
}
ALL = pytest.mark.parametrize("distance", TINY.values(), ids=TINY.keys())
PLAIN = pytest.mark.parametrize("distance", VALUES.values(), ids=VALUES.keys())
CACHING = pytest.mark.parametrize("heads", [None, HEADS], ids=["uniform", "heads"])
Metric = Callable[[Tensor, Tensor], Tensor]


def pair(batch: int = 3) -> tuple[Tensor, Tensor]:
    shape = (batch, 3, 6, 5)
    return images(*shape, dtype=torch.float64), images(*shape, seed=1, dtype=torch.float64)


# ---- the notion of a distance


@ALL
def test_one_value_per_sample_zero_at_identity_and_symmetric(distance: Metric) -> None:
    x, y = pair()
    d = distance(x, y)
    assert d.shape == (3,) and (d > 0).all()
    assert torch.equal(distance(x, x), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(distance(y, x), d)


@ALL
def test_samples_do_not_see_each_other(distance: Metric) -> None:
    x, y = pair()
    alone = torch.cat([distance(x[i : i + 1], y[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(distance(x, y), alone)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(distance(x, y)[1], x)
    assert grad[1].any() and not grad[0].any() and not grad[2].any()


@ALL
def test_gradient_matches_finite_differences_in_both_arguments(distance: Metric) -> None:
    x, y = (t[..., :4, :4].contiguous().requires_grad_() for t in pair(2))
    assert torch.autograd.gradcheck(distance, (x, y))


@ALL
def test_gradient_is_finite_at_identity(distance: Metric) -> None:
    x, _ = pair()
    y = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(distance(y, x).sum(), y)
    assert grad.isfinite().all()


# ---- distances of values


def test_values() -> None:
    x, y = torch.tensor([[0.0, 1.0], [2.0, 2.0]]), torch.tensor([[3.0, -3.0], [2.0, 2.0]])
    assert l1(x, y).tolist() == [3.5, 0.0]
    assert l2(x, y).tolist() == [12.5, 0.0]
    paper = math.sqrt(25.0 + 0.5**2 * 2) - 0.5 * math.sqrt(2)
    expected = torch.tensor([paper / math.sqrt(2), 0.0])
    torch.testing.assert_close(pseudo_huber(x, y, 0.5), expected)


def test_pseudo_huber_limits_and_size() -> None:
    x = torch.zeros(1, 100)
    small, large = x + 1e-7, x + 10.0
    torch.testing.assert_close(pseudo_huber(x, small), l2(x, small) / (2 * 0.00054))
    torch.testing.assert_close(pseudo_huber(x, large), torch.tensor([10.0 - 0.00054]))
    same_level = pseudo_huber(torch.zeros(1, 7, 9), torch.full((1, 7, 9), 10.0))
    torch.testing.assert_close(same_level, pseudo_huber(x, large))
    with pytest.raises(SpecError, match="expected c > 0"):
        pseudo_huber(x, large, 0.0)


@PLAIN
def test_any_sample_shape_and_narrow_types(distance: Metric) -> None:
    assert distance(torch.zeros(4), torch.ones(4)).shape == (4,)
    assert distance(torch.zeros(0, 3), torch.ones(0, 3)).shape == (0,)
    half = distance(torch.zeros(2, 3).half(), torch.full((2, 3), 300.0).half())
    assert half.dtype == torch.float32 and half.isfinite().all()
    bytes_ = distance(torch.zeros(2, 3).byte(), torch.ones(2, 3).byte())
    torch.testing.assert_close(bytes_, distance(torch.zeros(2, 3), torch.ones(2, 3)))


@ALL
def test_shapes_must_agree(distance: Metric) -> None:
    x, y = pair()
    with pytest.raises(ModelError, match=r"got .*shapes \(3, .*\) and \(1, .*\)"):
        distance(x, y[:1])


# ---- point clouds


def test_chamfer_is_its_formula_whatever_the_order_of_points() -> None:
    x, y = images(4, 20, 3, dtype=torch.float64), images(4, 20, 3, seed=1, dtype=torch.float64)
    apart = (x[:, :, None] - y[:, None]).square().sum(-1)  # (B, P, P)
    wanted = apart.amin(1).mean(1) + apart.amin(2).mean(1)
    torch.testing.assert_close(chamfer(x, y), wanted)
    torch.testing.assert_close(chamfer(x[:, torch.randperm(20, generator=g(2))], y), wanted)
    assert torch.equal(chamfer(x, x.flip(1)), torch.zeros(4, dtype=torch.float64))


def test_chamfer_a_few_clouds_at_a_time_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = images(5, 20, 3), images(5, 20, 3, seed=1)
    whole = chamfer(x, y)
    monkeypatch.setattr("ld3.distances.clouds.PAIRS", 800)  # two clouds
    assert torch.equal(chamfer(x, y), whole)


def test_chamfer_refuses_what_is_no_cloud() -> None:
    for x, y in ((torch.zeros(2, 5, 3), torch.zeros(2, 6, 3)), (torch.zeros(2, 1, 4, 4),) * 2):
        with pytest.raises(ModelError, match=r"chamfer: got samples of shapes .* expected twice"):
            chamfer(x, y)


# ---- distances of features


def test_feature_distance_is_its_formula() -> None:
    x, y = pair()
    net = TinyNet()
    uniform = weighted = torch.zeros(3, dtype=torch.float64)
    for fx, fy, w in zip(net(x), net(y), HEADS, strict=True):
        ux, uy = (f / f.square().sum(1, keepdim=True).sqrt() for f in (fx, fy))
        uniform = uniform + (ux - uy).square().mean((1, 2, 3))
        weighted = weighted + torch.einsum("bchw,c->bhw", (ux - uy) ** 2, w).mean((1, 2))
    torch.testing.assert_close(TINY["features"](x, y), uniform)
    torch.testing.assert_close(TINY["features+heads"](x, y), weighted)


@CACHING
def test_cached_targets_equal_the_direct_call(heads: list[Tensor] | None) -> None:
    x, y = pair()
    distance = FeatureDistance(TinyNet(), heads)
    target = distance.target(y.requires_grad_())
    assert not any(f.requires_grad for f in target)
    x.requires_grad_()
    cached, direct = distance.distance_to(x, target), distance(x, y.detach())
    assert torch.equal(cached, direct)
    grads = [torch.autograd.grad(d.sum(), x)[0] for d in (cached, direct)]
    assert torch.equal(*grads)
    chosen = tuple(f[[2, 0]] for f in target)
    torch.testing.assert_close(distance.distance_to(x[[2, 0]], chosen), direct[[2, 0]])


def test_feature_vectors_without_space() -> None:
    x, y = torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0]])
    torch.testing.assert_close(FeatureDistance(lambda t: [t])(x, y), torch.tensor([0.04]))


def test_zero_features_have_finite_gradients() -> None:
    distance = FeatureDistance(lambda t: [t.relu()])
    x = torch.full((1, 2, 2, 2), -1.0, requires_grad=True)
    d = distance(x, torch.ones(1, 2, 2, 2))
    torch.testing.assert_close(d, torch.tensor([0.5]))
    (grad,) = torch.autograd.grad(d.sum(), x)
    assert torch.equal(grad, torch.zeros_like(grad))
    x = torch.zeros(1, 2, requires_grad=True)  # no ReLU to hide the gradient of the norm at zero
    (grad,) = torch.autograd.grad(FeatureDistance(lambda t: [t])(x, torch.ones(1, 2)).sum(), x)
    assert grad.isfinite().all()


def test_feature_distance_errors() -> None:
    x, y = pair()
    distance = FeatureDistance(TinyNet(), HEADS)
    with pytest.raises(ModelError, match="expected those of the target"):
        distance.distance_to(x, distance.target(y[:1]))
    with pytest.raises(ModelError, match=r"got feature maps with \[4, 5\] channels"):
        FeatureDistance(TinyNet(), HEADS[:1])(x, y)
    with pytest.raises(ModelError, match="at least one map"):
        FeatureDistance(lambda t: [])(x, y)


# ---- LPIPS with the real weights


@pytest.fixture(scope="module")
def real() -> dict[str, FeatureDistance]:
    return {"vgg": load_lpips("vgg", FILES["vgg"]), "alex": load_lpips("alex", FILES["alex"])}


@needs_weights
@NETS
def test_known_values(net: str, real: dict[str, FeatureDistance]) -> None:
    a = torch.rand(2, 3, 64, 64, generator=g(0)) * 2 - 1
    b = (a + 0.2 * torch.randn(2, 3, 64, 64, generator=g(1))).clamp(-1, 1)
    c = torch.rand(2, 3, 32, 32, generator=g(2)) * 2 - 1
    noisy = {"alex": [0.017308, 0.013954], "vgg": [0.047311, 0.046663]}[net]
    mirrored = {"alex": [0.048545, 0.051554], "vgg": [0.245485, 0.268415]}[net]
    for x, y, known in ((a, b, noisy), (c, c.flip(3), mirrored)):
        torch.testing.assert_close(real[net](x, y), torch.tensor(known), atol=1e-4, rtol=0.0)
        cached = real[net].distance_to(x, real[net].target(y))
        torch.testing.assert_close(cached, real[net](x, y))


@needs_weights
@NETS
def test_lpips_is_frozen_and_differentiable(net: str, real: dict[str, FeatureDistance]) -> None:
    distance = real[net]
    assert not distance.training and not any(p.requires_grad for p in distance.parameters())
    assert {p.dtype for p in distance.parameters()} == {torch.float32}
    x, y = images(2, 3, 32, 32), images(2, 3, 32, 32, seed=1)
    x = (x + 3 * y) / 4  # near y
    x.requires_grad_()
    before = distance(x, y)
    (grad,) = torch.autograd.grad(before.sum(), x)
    assert grad.isfinite().all() and grad.any()
    assert (distance(x - 1e-3 * grad / grad.abs().max(), y) < before).all()


@needs_weights
@NETS
@pytest.mark.parametrize("level", [-1.0, 0.0, 1.0, 30.0])
def test_lpips_of_flat_images(net: str, level: float, real: dict[str, FeatureDistance]) -> None:
    x = torch.full((1, 3, 32, 32), level, requires_grad=True)
    (grad,) = torch.autograd.grad(real[net](x, images(1, 3, 32, 32)).sum(), x)
    assert grad.isfinite().all()


@needs_weights
@NETS
def test_lpips_of_grey_and_small_images(net: str, real: dict[str, FeatureDistance]) -> None:
    distance = real[net]
    x, y = images(2, 1, 32, 32), images(2, 1, 32, 32, seed=1)
    colour = distance(x.expand(-1, 3, -1, -1), y.expand(-1, 3, -1, -1))
    torch.testing.assert_close(distance(x, y), colour)
    x, y = images(2, 3, 8, 40), images(2, 3, 8, 40, seed=1)
    limit = {"alex": 31, "vgg": 16}[net]
    big = [nn.functional.interpolate(t, (limit, 40), mode="bilinear") for t in (x, y)]
    torch.testing.assert_close(distance(x, y), distance(*big))
    x, y = images(2, 1, 1, 1), images(2, 1, 1, 1, seed=1)
    assert distance(x.requires_grad_(), y).isfinite().all()


@needs_weights
@NETS
def test_lpips_limit_is_the_real_one(net: str, real: dict[str, FeatureDistance]) -> None:
    features = real[net].features
    assert isinstance(features, LpipsFeatures)
    limit = features.spec.min_side
    features.features(torch.zeros(1, 3, limit, limit))
    with pytest.raises(RuntimeError):
        features.features(torch.zeros(1, 3, limit - 1, limit))


@needs_weights
def test_lpips_dtypes(real: dict[str, FeatureDistance]) -> None:
    x, y = images(1, 3, 32, 32), images(1, 3, 32, 32, seed=1)
    narrow = real["alex"](x.double(), y.double())
    assert narrow.dtype == torch.float32
    wide = load_lpips("alex", FILES["alex"]).double()(x.double(), y.double())
    assert wide.dtype == torch.float64
    torch.testing.assert_close(narrow.double(), wide, atol=1e-6, rtol=1e-5)
    half = load_lpips("alex", FILES["alex"]).bfloat16()(x, y)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, narrow, atol=0.0, rtol=0.05)


# ---- LPIPS with synthetic weights


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    """A full AlexNet state dict with random values."""
    shapes = {key: value.shape for key, value in LpipsFeatures("alex").state_dict().items()}
    widths = enumerate((64, 192, 384, 256, 256))
    shapes |= {f"lin{k}.model.1.weight": torch.Size((1, c, 1, 1)) for k, c in widths}
    return {key: torch.rand(shape, generator=g(0)) / 100 for key, shape in shapes.items()}


def split(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    heads = {key: value for key, value in state.items() if key.startswith("lin")}
    return {key: value for key, value in state.items() if key not in heads}, heads


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty torch hub cache."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    return tmp_path / "hub" / "checkpoints"


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Tensor]) -> Path:
    """An installed `lpips` that fails when imported; its head file."""
    file = tmp_path / "site" / "lpips" / "weights" / "v0.1" / "alex.pth"
    file.parent.mkdir(parents=True)
    (tmp_path / "site" / "lpips" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    torch.save(split(state)[1], file)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return file


def values(distance: FeatureDistance) -> Tensor:
    return distance.distance_to(images(2, 3, 32, 32), distance.target(images(2, 3, 32, 32, seed=1)))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_explicit_file(suffix: str, tmp_path: Path, state: dict[str, Tensor]) -> None:
    file = tmp_path / f"w{suffix}"
    extra = {**state, "classifier.1.weight": torch.zeros(2)}
    save_file(extra, file) if suffix == ".safetensors" else torch.save(extra, file)
    distance = load_lpips("alex", str(file))
    assert values(distance).shape == (2,)
    loaded = distance.state_dict()["features.features.0.weight"]
    assert torch.equal(loaded, state["features.0.weight"])


def test_half_weights_are_widened(tmp_path: Path, state: dict[str, Tensor]) -> None:
    save_file({key: value.half() for key, value in state.items()}, tmp_path / "w.safetensors")
    distance = load_lpips("alex", tmp_path / "w.safetensors")
    assert {t.dtype for t in distance.state_dict().values()} == {torch.float32}


def test_loading_leaves_seeds_and_default_device(tmp_path: Path, state: dict[str, Tensor]) -> None:
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pth")
    seeds, x, y = torch.get_rng_state(), images(1, 3, 8, 8), images(1, 3, 8, 8, seed=1)
    for name in ("w.safetensors", "w.pth"):
        with torch.device("meta"):
            d = load_lpips("alex", tmp_path / name)(x, y)
            plain = [distance(x[0], y[0]) for distance in DISTANCES.values()]
        assert {t.device.type for t in (d, *plain)} == {"cpu"}
    assert torch.equal(torch.get_rng_state(), seeds)


def test_hub_cache_with_packaged_heads(
    cache: Path, package: Path, tmp_path: Path, state: dict[str, Tensor]
) -> None:
    torch.save(split(state)[0], cache / "alexnet-owt-7be5be79.pth")
    found = values(load_lpips("alex"))
    torch.save(state, tmp_path / "w.pth")
    assert torch.equal(found, values(load_lpips("alex", tmp_path / "w.pth")))
    backbone = load_lpips("alex", cache / "alexnet-owt-7be5be79.pth")
    assert torch.equal(found, values(backbone))
    assert "lpips" not in sys.modules


def test_torchvision_backbone(
    cache: Path, package: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, Tensor]
) -> None:
    def get_weight(name: str) -> SimpleNamespace:
        assert name == "AlexNet_Weights.IMAGENET1K_V1"

        def get_state_dict(**options: object) -> dict[str, Tensor]:
            assert options["weights_only"] and options["check_hash"]
            return split(state)[0]

        return SimpleNamespace(get_state_dict=get_state_dict)

    fake = SimpleNamespace(get_weight=get_weight)
    monkeypatch.setitem(sys.modules, "torchvision.models", fake)
    assert values(load_lpips("alex")).shape == (2,)


def one_line(error: pytest.ExceptionInfo[ModelError]) -> str:
    text = str(error.value)
    assert "\n" not in text and "fix: " in text
    return text


@NETS
def test_missing_weights_tell_the_steps(net: str, cache: Path, no_package: None) -> None:
    with pytest.raises(ModelError) as error:
        load_lpips(net)  # type: ignore[arg-type]
    text = one_line(error)
    name = {"vgg": "vgg16-397923af.pth", "alex": "alexnet-owt-7be5be79.pth"}[net]
    assert "pip install --no-deps lpips" in text and "--distance lpips-" in text
    assert f"https://download.pytorch.org/models/{name} as {cache / name}" in text


def test_missing_backbone_only(cache: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(ModelError) as error:
        load_lpips("alex")
    text = one_line(error)
    assert "alexnet-owt-7be5be79.pth" in text and "expected an installed" not in text


def test_unknown_net_missing_file_and_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="unknown LPIPS net 'squeeze': known: alex, vgg"):
        load_lpips("squeeze")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="no file"):
        load_lpips("alex", tmp_path / "absent.pth")
    (tmp_path / "w.ckpt").touch()
    with pytest.raises(ModelError, match=r"expected a \.safetensors"):
        load_lpips("alex", tmp_path / "w.ckpt")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_damaged_files(suffix: str, tmp_path: Path, state: dict[str, Tensor]) -> None:
    file = tmp_path / f"w{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    whole = file.read_bytes()
    for damaged in (b"", b"\x00" * 64, b"<!DOCTYPE html>", whole[:7], whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(ModelError, match="cannot be read") as error:
            load_lpips("alex", file)
        one_line(error)


def test_wrong_content(tmp_path: Path, state: dict[str, Tensor], no_package: None) -> None:
    file = tmp_path / "w.pth"
    weight, head = "features.0.weight", "lin0.model.1.weight"
    wrong: list[tuple[object, str]] = [
        ([1, 2], "holds a list"),
        ({}, "15 of 15 keys absent"),
        ({f"net.{key}": value for key, value in state.items()}, "15 of 15 keys absent"),
        (split(state)[0], r"without lin0.model.1.weight \(5 of 15"),
        ({**state, weight: state[weight][:1]}, r"\(1, 3, 11, 11\), expected floats of shape"),
        ({**state, weight: state[weight].int()}, "torch.int32"),
        ({**state, weight: 3}, "expected floats of shape"),
        ({**state, weight: state[weight] * math.nan}, "not finite"),
        ({**state, head: -state[head]}, "negative"),
    ]
    for content, message in wrong:
        torch.save(content, file)
        with pytest.raises(ModelError, match=message) as error:
            load_lpips("alex", file)
        one_line(error)
    torch.save(state, file)
    with pytest.raises(ModelError, match="net='vgg'"):
        load_lpips("vgg", file)


class Attack:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("torch_format", [True, False], ids=["torch", "plain"])
def test_code_in_a_pickle_is_not_run(
    torch_format: bool, tmp_path: Path, state: dict[str, Tensor]
) -> None:
    file, marker = tmp_path / "w.pth", tmp_path / "marker"
    content = {**state, "x": Attack(marker)}
    if torch_format:
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ModelError, match="cannot be read") as error:
        load_lpips("alex", file)
    one_line(error)
    assert not marker.exists()
    pickle.loads(pickle.dumps(Attack(marker)))  # the attack works when it is not refused
    assert marker.exists()


def test_images_only(tmp_path: Path, state: dict[str, Tensor]) -> None:
    save_file(state, tmp_path / "w.safetensors")
    distance = load_lpips("alex", tmp_path / "w.safetensors")
    for shape in ((2, 4, 32, 32), (2, 2, 32, 32), (3, 32, 32), (2, 32)):
        with pytest.raises(ModelError, match="expected images") as error:
            distance(torch.zeros(shape), torch.zeros(shape))
        one_line(error)
    x = torch.zeros(1, 3, 32, 32, device="meta")
    with pytest.raises(ModelError, match="got images on meta, expected cpu"):
        distance(x, x)


def test_the_distance_that_auto_stands_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Perceptual where it can be, and the reason is said; a file of weights by its path."""
    from ld3.zoo.loading import make_measure, of_model

    def own(*shape: int) -> ld3.FunctionModel:
        return ld3.FunctionModel(lambda x, t, c: x / (1 + t**2), ld3.EDM(), "x0", shape)

    image, vector = (of_model(own(*shape), "own") for shape in ((3, 32, 32), (7,)))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert make_measure("auto", vector).title == "l2 (samples are no images)"
    found = make_measure("auto", image)
    assert found.name == "l2" and "--distance lpips-vgg:FILE" in found.reason
    weights = LpipsFeatures("alex").to_empty(device="cpu").state_dict()
    heads = {
        f"lin{i}.model.1.weight": torch.ones(1, c, 1, 1)
        for i, c in enumerate((64, 192, 384, 256, 256))
    }
    torch.save({**{k: torch.ones_like(v) for k, v in weights.items()}, **heads}, tmp_path / "w.pth")
    named = make_measure(f"lpips-alex:{tmp_path / 'w.pth'}", image)
    assert named.title == "lpips-alex" and isinstance(named.distance, FeatureDistance)
    with pytest.raises(ModelError, match="which is no file"):
        make_measure("lpips-vgg:absent.pth", image)
    monkeypatch.setattr("ld3.zoo.loading.lpips_is_here", lambda net: True)
    monkeypatch.setattr("ld3.zoo.loading.load_lpips", lambda net, path: named.distance)
    assert make_measure("auto", image).title.startswith("lpips-vgg (samples are images")
