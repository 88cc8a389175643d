"""Metrics against independent implementations and closed forms."""

import pytest
import torch
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance

from ld3.errors import SpecError
from ld3.metrics import Moments, frechet_distance


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
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-6)


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
    with pytest.raises(SpecError, match="got 1 samples, wanted at least 2"):
        Moments.of([torch.zeros(1, 3)])
    with pytest.raises(SpecError, match="got 0 samples"):
        Moments.of([])
