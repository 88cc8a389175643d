"""Metrics against independent implementations and closed forms."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

import ld3
from ld3 import zoo
from ld3.distances import l2
from ld3.errors import Ld3Error, ModelError, SpecError, StoreError
from ld3.metrics import (
    Inception,
    Moments,
    PrecisionRecall,
    Spread,
    agreement,
    balanced_labels,
    cmmd,
    fidelity,
    frechet_distance,
    kernel,
    kid,
    make_inception,
    per_sample,
    polynomial_mmd,
    precision_recall,
    to_uint8,
)
from ld3.metrics.frechet import Gaussian
from ld3.store import write_tensors
from ld3.zoo.features import load_features


def features(count: int, seed: int, d: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=generator, dtype=torch.float64)
    return torch.randn(count, d, generator=generator, dtype=torch.float64) @ mix + seed


def test_frechet_of_gaussians_in_closed_form() -> None:
    """Commuting covariances: |dm|^2 + sum (s_1 - s_2)^2."""
    mean = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5]], dtype=torch.float64)
    std = torch.tensor([[1.0, 2.0, 3.0], [0.5, 2.5, 0.0]], dtype=torch.float64)
    a, b = (Moments.known(m, torch.diag(s**2), 100) for m, s in zip(mean, std, strict=True))
    wanted = (mean[0] - mean[1]).square().sum() + (std[0] - std[1]).square().sum()
    assert frechet_distance(a, b) == pytest.approx(wanted.item(), rel=1e-9)
    assert frechet_distance(b, a) == pytest.approx(wanted.item(), rel=1e-9)
    assert 0 <= frechet_distance(a, a) < 1e-6


@pytest.mark.parametrize(("first", "second"), [(20, 90), (90, 20), (20, 31)])
def test_frechet_of_fewer_samples_than_features(
    first: int, second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same number as from whole covariances, without an eigenproblem of their size."""
    g = torch.Generator().manual_seed(5)
    sets = [torch.randn(n, 64, generator=g).double() for n in (first, second)]
    sets[1] = 2 * sets[1] + 1
    dense = [Gaussian(f.mean(0), torch.cov(f.T)) for f in sets]
    wanted = frechet_distance(*dense)
    few = dense[first > second]
    assert frechet_distance(few, few) == 0  # and not -1e-6 by rounding
    sizes: list[int] = []
    for name in ("eigh", "eigvalsh"):
        own = getattr(torch.linalg, name)
        monkeypatch.setattr(torch.linalg, name, lambda m, own=own: sizes.append(len(m)) or own(m))
    a, b = (Moments.of(f.split(7)) for f in sets)
    assert frechet_distance(a, b) == pytest.approx(wanted, rel=1e-6)
    assert sizes == [20]
    torch.testing.assert_close(a.cov, dense[0].cov)
    torch.testing.assert_close((a + b).cov, torch.cov(torch.cat(sets).T))


def test_frechet_against_torchmetrics() -> None:
    class Flat(nn.Module):
        num_features = 12

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).double()

    a, b = features(500, 0), features(400, 1)
    theirs = FrechetInceptionDistance(feature=Flat(), normalize=True, input_img_size=(3, 2, 2))
    theirs.set_dtype(torch.float64)
    for batch, real in ((a, True), (b, False)):
        theirs.update(batch.view(-1, 3, 2, 2), real=real)
    ours = frechet_distance(Moments.of(a.split(70)), Moments.of(b.split(33)))
    assert ours == pytest.approx(theirs.compute().item(), rel=1e-4)


def test_moments_do_not_depend_on_the_batches() -> None:
    f = features(300, 3)
    whole, parts = Moments.of([f]), Moments.of(f[:100].split(7)) + Moments.of(f[100:].split(50))
    assert (whole.mean - f.mean(0)).abs().max() < 1e-12
    assert (whole.cov - f.T.cov()).abs().max() < 1e-9
    assert (parts.cov - whole.cov).abs().max() < 1e-9
    again = Moments.known(whole.mean, whole.cov, 300)
    assert (again.cov - whole.cov).abs().max() < 1e-9


def test_too_few_samples() -> None:
    with pytest.raises(SpecError, match="got 1 samples, expected at least 2"):
        Moments.of([torch.zeros(1, 3)])
    with pytest.raises(SpecError, match="got 0 samples"):
        Moments.of([])


# ---- fidelity


def test_fidelity_in_closed_form() -> None:
    reference = torch.zeros(4, 2, 3)
    samples = torch.tensor([1.0, 3.0, 2.0, 2.5]).view(4, 1, 1).expand(4, 2, 3)
    found = fidelity(samples, reference, l2, batch=3)
    assert found.rmse == Spread(mean=2.125, median=2.25, worst=3.0, worst_index=1)
    assert found.perceptual == Spread(
        mean=pytest.approx(20.25 / 4), median=pytest.approx(5.125), worst=9.0, worst_index=1
    )
    assert fidelity(samples, reference).perceptual is None
    assert torch.equal(per_sample(l2, samples, reference, batch=3), l2(samples, reference))


def test_fidelity_to_teacher_and_accurate() -> None:
    """More steps are closer to an accurate run, by the shipped perceptual distance too."""
    model = zoo.load("fashion")
    x, cond = ld3.prior(model, range(8)), model.conditions(range(8))

    def run(steps: int) -> Tensor:
        k = ld3.knots(model.schedule, ld3.make_grid("edm", model.schedule, steps))
        with torch.no_grad():
            return ld3.integrate(ld3.bind(model, cond), ld3.make_solver("dpmpp"), k, x)

    accurate, distance = run(20), zoo.perceptual()
    coarse, fine = (fidelity(run(n), accurate, distance) for n in (4, 8))
    assert fine.rmse.mean < 0.7 * coarse.rmse.mean
    assert fine.perceptual and coarse.perceptual
    assert fine.perceptual.mean < 0.7 * coarse.perceptual.mean
    net = load_features()
    assert net.logits is not None
    assert agreement(net.logits(accurate), cond) >= 6 / 8
    assert agreement(net.logits(accurate), (cond + 1) % 10) <= 2 / 8


def test_fidelity_refuses_other_shapes() -> None:
    with pytest.raises(SpecError, match=r"got samples of shape \(2, 3\) .* \(3, 3\)"):
        fidelity(torch.zeros(2, 3), torch.zeros(3, 3))
    with pytest.raises(SpecError, match=r"got values of shape \(0,\)"):
        Spread.of(torch.zeros(0))


# ---- kernels


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance`:UserWarning")
def test_kid_against_torchmetrics() -> None:
    """One subset of all samples leaves nothing to chance."""

    class Flat(nn.Module):
        num_features = 12

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    a, b = features(300, 0).float(), features(300, 1).float()
    theirs = KernelInceptionDistance(feature=Flat(), subsets=1, subset_size=300, normalize=True)
    theirs.set_dtype(torch.float64)
    for batch, real in ((a, True), (b, False)):
        theirs.update(batch.view(-1, 3, 2, 2), real=real)
    mean, _ = theirs.compute()
    assert polynomial_mmd(a, b) == pytest.approx(mean.item(), rel=1e-5)
    ours = kid(a, b, subsets=3)
    assert ours.mean == pytest.approx(mean.item(), rel=1e-5)
    assert ours.std == pytest.approx(0, abs=1e-9 * ours.mean)


def test_kernels_against_all_pairs_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of 7, against the formulas with explicit pairs."""
    monkeypatch.setattr(kernel, "BLOCK", 7)
    a, b = features(23, 0, d=3), features(17, 1, d=3)

    def cubic(x: Tensor, y: Tensor) -> float:
        return float((x @ y / 3 + 1) ** 3)

    def pairs(x: Tensor, y: Tensor, k: object, same: bool) -> list[float]:
        assert callable(k)
        rows = ((p, q) for i, p in enumerate(x) for j, q in enumerate(y) if same or i != j)
        return [k(p, q) for p, q in rows]

    terms = [pairs(a, a, cubic, False), pairs(b, b, cubic, False), pairs(a, b, cubic, True)]
    own_a, own_b, across = (sum(t) / len(t) for t in terms)
    assert polynomial_mmd(a, b) == pytest.approx(own_a + own_b - 2 * across, rel=1e-12)

    u, v = a / a.norm(dim=1, keepdim=True), b / b.norm(dim=1, keepdim=True)

    def gaussian(x: Tensor, y: Tensor) -> float:
        return float(torch.exp(-(x - y).square().sum() / 8))

    terms = [pairs(*two, gaussian, True) for two in ((u, u), (v, v), (u, v))]
    own_a, own_b, across = (sum(t) / len(t) for t in terms)
    wanted = 1000 * (own_a + own_b - 2 * across)
    assert cmmd(a, b, sigma=2.0) == pytest.approx(wanted, rel=1e-9)
    assert cmmd(5 * a, b, sigma=2.0) == pytest.approx(wanted, rel=1e-9)
    assert cmmd(a, b, sigma=2.0, scale=1.0) == pytest.approx(wanted / 1000, rel=1e-9)
    assert cmmd(a, a) == pytest.approx(0, abs=1e-9)
    means = (u.mean(0) - v.mean(0)).square().sum()
    assert cmmd(a, b) == pytest.approx(10 * float(means), rel=0.02)  # a wide kernel


def test_kid_is_unbiased() -> None:
    """Of one law it is zero on average, at any number of samples; the Fréchet distance is not."""
    f = features(6000, 0, d=4) / 4
    parts = f.view(60, 2, 50, 4)
    values = torch.tensor([polynomial_mmd(x, y) for x, y in parts])
    assert values.mean().abs() < 3 * values.std() / 60**0.5
    assert (values < 0).any()
    frechet = torch.tensor([frechet_distance(*(Moments.of([p]) for p in pair)) for pair in parts])
    assert frechet.mean() > 10 * frechet.std() / 60**0.5


def test_kid_of_sets_from_the_same_noise() -> None:
    """Nearly equal rows: the estimate for independent sets is far too small, the other is not."""
    f = features(6000, 0, d=4) / 4
    twins = f + 0.01 * features(6000, 1, d=4) - 0.01
    parts = list(zip(f.view(60, 100, 4), twins.view(60, 100, 4), strict=True))
    apart, paired = (
        torch.tensor([polynomial_mmd(x, y, paired=p) for x, y in parts]) for p in (False, True)
    )
    wanted = polynomial_mmd(f, twins, paired=True)
    assert (paired.mean() - wanted).abs() < 4 * paired.std() / 60**0.5
    assert apart.mean() < wanted - 20 * apart.std() / 60**0.5
    one, two = (kid(*parts[0], subsets=20, size=n, paired=True) for n in (50, 100))
    assert abs(one.mean - two.mean) < 4 * one.std / 20**0.5
    assert two.mean == pytest.approx(float(paired[0]), rel=1e-9)
    with pytest.raises(SpecError, match="got 6000 and 100 samples, expected as many of both"):
        polynomial_mmd(f, f[:100], paired=True)


def test_kid_over_subsets() -> None:
    a, b = features(400, 0), features(300, 1)
    found = kid(a, b, subsets=50, size=100, seed=4)
    assert found == kid(a, b, subsets=50, size=100, seed=4)
    assert found != kid(a, b, subsets=50, size=100, seed=5)
    assert abs(found.mean - polynomial_mmd(a, b)) < 4 * found.std / 50**0.5
    with pytest.raises(SpecError, match="got 100 subsets of 301, expected at least 1 of 2 to 300"):
        kid(a, b, size=301)


# ---- precision and recall


def test_kid_takes_100_subsets_by_default() -> None:
    a, b = features(20, 0), features(20, 1)
    assert kid(a, b, size=5) == kid(a, b, paired=False, subsets=100, size=5, seed=0)
    assert kid(a, b, size=5) != kid(a, b, subsets=99, size=5)


def test_precision_and_recall_where_they_are_known() -> None:
    left = features(200, 0, d=5)
    right = left + 1000
    both = torch.cat([left, right])
    assert precision_recall(left, left) == PrecisionRecall(1.0, 1.0)
    assert precision_recall(left, right) == PrecisionRecall(0.0, 0.0)
    assert precision_recall(real=both, fake=left) == PrecisionRecall(1.0, 0.5)  # a mode is lost
    assert precision_recall(real=left, fake=both) == PrecisionRecall(0.5, 1.0)  # one is invented


def test_a_point_on_the_edge_of_a_ball_is_inside() -> None:
    real, fake = torch.arange(4.0)[:, None], torch.tensor([[4.0], [9.0]])
    assert precision_recall(real, fake, k=1) == PrecisionRecall(0.5, 1.0)


def test_precision_and_recall_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 7)
    real, fake = features(40, 0, d=3), 0.7 * features(30, 0, d=3) + 0.5

    def inside(points: Tensor, others: Tensor, k: int) -> float:
        reach = [sorted(float((o - p).norm()) for p in others)[k] for o in others]
        hits = (
            any(float((x - o).norm()) <= r for o, r in zip(others, reach, strict=True))
            for x in points
        )
        return sum(hits) / len(points)

    for k in (1, 3):
        found = precision_recall(real, fake, k)
        assert found == PrecisionRecall(inside(fake, real, k), inside(real, fake, k))
    assert 0 < found.precision < 1


@pytest.mark.parametrize("metric", [kid, polynomial_mmd, cmmd, precision_recall])
def test_features_of_other_shapes_are_refused(metric: Callable[..., object]) -> None:
    for a, b in (((5, 3), (5, 4)), ((5,), (5,)), ((1, 3), (5, 3))):
        with pytest.raises(SpecError, match="got features of shapes"):
            metric(torch.zeros(a), torch.zeros(b))


def test_other_settings_are_refused() -> None:
    f = features(10, 0)
    with pytest.raises(SpecError, match="got k = 10 with 10 and 10 points"):
        precision_recall(f, f, k=10)
    with pytest.raises(SpecError, match="got sigma 0"):
        cmmd(f, f, sigma=0)
    with pytest.raises(SpecError, match=r"got scores of shape \(2, 3\) and labels of shape \(3,\)"):
        agreement(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(SpecError, match="got 0 classes"):
        balanced_labels([1], 0)
    assert balanced_labels([4, 5], 1).tolist() == [0, 0]


# ---- classes


def test_agreement_and_labels() -> None:
    logits = torch.eye(4)[[0, 1, 3, 3]]
    assert agreement(logits, torch.tensor([0, 1, 2, 3])) == 0.75
    labels = balanced_labels(range(7, 57), 10)
    assert torch.equal(labels, zoo.load("fashion").conditions(range(7, 57)))
    assert labels.bincount().tolist() == [5] * 10


# ---- feature networks


def test_the_judge_is_the_default() -> None:
    net, images = load_features(), 1.5 * torch.randn(3, 1, 28, 28).clamp(-1, 1)
    judge = zoo.judge()
    assert (net.name, net.digest) == ("package", zoo.checksum("judge"))
    assert torch.equal(net(images), judge.features(images.clamp(-1, 1)))
    assert net.logits is not None and torch.equal(
        net.logits(images), judge.logits(images.clamp(-1, 1))
    )
    with pytest.raises(ModelError, match=r"got images of shape \(3, 32, 32\)"):
        net(torch.zeros(2, 3, 32, 32))


def test_8_bits_as_the_edm_protocol_has_them() -> None:
    x = torch.tensor([-1.2, -1.0, -0.5, 0.0, 0.003, 0.004, 1.0, 1.2])
    assert to_uint8(x).tolist() == [0, 0, 64, 128, 128, 128, 255, 255]
    every = torch.arange(256)
    assert torch.equal(to_uint8(every / 127.5 - 1), every.to(torch.uint8))  # it rounds


@pytest.fixture(scope="module")
def inception_weights() -> dict[str, Tensor]:
    """Random ones, of a size that keeps signals alive."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for key, value in Inception().state_dict().items():
        if key.endswith("num_batches_tracked"):
            continue
        noise = torch.randn(value.shape, generator=generator)
        if key.endswith("conv.weight"):
            weights[key] = noise * (2 / value[0].numel()) ** 0.5
        else:
            weights[key] = (0.0 if key.endswith(("bias", "mean")) else 1.0) + 0.1 * noise.clamp(
                -3, 3
            )
    return weights


def test_inception_has_the_layers_it_is_known_for(inception_weights: dict[str, Tensor]) -> None:
    """94 convolutions, 21.8 million parameters; names and shapes of the usual port."""
    convs = {k: tuple(v.shape) for k, v in inception_weights.items() if k.endswith("conv.weight")}
    assert len(convs) == 94
    assert len(inception_weights) == 94 * 5
    parameters = [v for k, v in inception_weights.items() if "running" not in k]
    assert sum(v.numel() for v in parameters) == 21_785_568
    for name, shape in {
        "Conv2d_1a_3x3": (32, 3, 3, 3),
        "Conv2d_4a_3x3": (192, 80, 3, 3),
        "Mixed_5b.branch5x5_2": (64, 48, 5, 5),
        "Mixed_5d.branch_pool": (64, 288, 1, 1),
        "Mixed_6a.branch3x3": (384, 288, 3, 3),
        "Mixed_6c.branch7x7dbl_4": (160, 160, 7, 1),
        "Mixed_6e.branch7x7_2": (192, 192, 1, 7),
        "Mixed_7a.branch7x7x3_4": (192, 192, 3, 3),
        "Mixed_7b.branch3x3dbl_3a": (384, 384, 1, 3),
        "Mixed_7c.branch3x3_2b": (384, 384, 3, 1),
    }.items():
        assert convs[f"{name}.conv.weight"] == shape


def test_inception_from_a_file(inception_weights: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "inception.safetensors"
    write_tensors(file, {**inception_weights, "fc.weight": torch.zeros(1008, 2048)})
    net = load_features(file)
    grey = 2 * torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(1)) - 1
    found = net(grey)
    assert found.shape == (2, 2048)
    assert bool(found.isfinite().all()) and float(found.std()) > 0.1
    assert torch.equal(found, load_features(file)(grey.expand(-1, 3, -1, -1)))
    assert torch.equal(found, net(grey + 1e-4 * (to_uint8(grey + 1e-4) == to_uint8(grey))))
    assert (found[:1] - net(grey[:1])).abs().max() < 1e-3 * found.abs().max()
    assert len(net.digest) == 16 and net.logits is None
    with pytest.raises(ModelError, match=r"got images of shape \(2, 4, 8, 8\)"):
        net(torch.zeros(2, 4, 8, 8))


def test_pooling_of_the_fid_variant(inception_weights: dict[str, Tensor]) -> None:
    """Means leave the border's zeros out; the last block takes the maximum."""
    net = make_inception(inception_weights)
    flat = torch.full((1, 1, 5, 5), 3.0)
    for block in (net.Mixed_5b, net.Mixed_6e, net.Mixed_7b):
        assert torch.allclose(block.pool(flat), flat)
    x = torch.randn(1, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    assert net.Mixed_7c.pool(x)[0, 0, 2, 2] == x[0, 0, 1:4, 1:4].max()
    assert net.Mixed_7b.pool(x)[0, 0, 2, 2] == pytest.approx(x[0, 0, 1:4, 1:4].mean().item())


def test_weights_that_do_not_fit(inception_weights: dict[str, Tensor], tmp_path: Path) -> None:
    key = "Mixed_7c.branch_pool.conv.weight"
    short = {k: v for k, v in inception_weights.items() if k != key}
    with pytest.raises(ModelError, match=rf"without {key} \(1 of 470 keys absent\)"):
        make_inception(short)
    with pytest.raises(ModelError, match=rf"{key} has shape \(2,\), expected \(192, 2048, 1, 1\)"):
        make_inception({**short, key: torch.zeros(2)})
    with pytest.raises(ModelError, match=r"expected weights of the FID Inception"):
        load_features(tmp_path / "inception.bin")
    with pytest.raises(StoreError, match="cannot read"):
        load_features(tmp_path / "no.safetensors")
    for name in ("bad.safetensors", "bad.pt"):
        (tmp_path / name).write_bytes(b"nothing of this kind")
        with pytest.raises(Ld3Error, match="bad") as caught:
            load_features(tmp_path / name)
        assert "\n" not in str(caught.value)


class Mean(nn.Module):
    """Per channel; with `return_features`, as the detectors of the EDM protocol have it."""

    def forward(self, x: Tensor, return_features: bool = False) -> Tensor:
        mean = x.to(torch.float32).mean((2, 3))
        return mean if return_features else mean.softmax(1)


class Whole(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float32)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_by_path(tmp_path: Path) -> None:
    file = tmp_path / "mean.pt"
    torch.jit.script(Mean()).save(str(file))
    net, x = load_features(file), torch.tensor([[[[0.0]]], [[[1.0]]]])
    assert net(x).tolist() == [[128.0] * 3, [255.0] * 3]
    torch.jit.script(Whole()).save(str(file))
    with pytest.raises(ModelError, match=r"got \(2, 3, 1, 1\) from mean.pt for 2 images"):
        load_features(file)(x)
