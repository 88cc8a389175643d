"""The example with a network from elsewhere: it keeps the contract and says what it lacks."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ld3 import bind_network, check_model, compile_table, knots, make_grid, make_solver, prior
from ld3.errors import ModelError

SOURCE = Path(__file__).resolve().parents[1] / "examples" / "spectra.py"
MISSING = [name for name in ("psdenoiser", "einops") if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="module")
def spectra() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spectra", SOURCE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_seed_means_one_condition(spectra: ModuleType) -> None:
    """In any batch, apart from the noise of the same seed, and centred on its mean."""
    constants = {
        "kperp": torch.logspace(-1.7, 0.2, 32),
        "kpar": torch.logspace(-1.6, 0.1, 16),
        "Nmodes": torch.full((32, 16), 100.0),
    }
    mean, seen = spectra.boxes(range(64), constants)
    again = spectra.boxes([63, 5], constants)
    assert mean.shape == seen.shape == (64, 1, 32, 16)
    for whole, part in zip((mean, seen), again, strict=True):
        torch.testing.assert_close(part, whole[[63, 5]])
    scatter = seen - mean
    assert scatter.mean().abs() < 0.001
    assert scatter.std().item() == pytest.approx((0.1 / 100 + 0.015**2) ** 0.5, rel=0.02)
    assert len(mean[:, 0, 0, 0].unique()) == 64


def test_what_is_missing_is_named(spectra: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps 21cmpsdenoiser==1\.0\.2 einops"):
        spectra.model()


def test_weights_are_scaled_once(spectra: ModuleType) -> None:
    """Once before is as good as in every call."""

    class Scaling(torch.nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            var, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True, correction=0)
            weight = (self.weight - mean) * (var + 1e-5).sqrt()
            return torch.nn.functional.conv2d(x, weight, self.bias, padding=self.padding)

    network = torch.nn.Sequential(Scaling(3, 4, 3, padding=1), torch.nn.Conv2d(4, 2, 1))
    network.double().requires_grad_(False)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = network(x)
    spectra.standardise(network, Scaling)
    torch.testing.assert_close(network(x), before, rtol=1e-12, atol=1e-12)
    assert not any(isinstance(module, Scaling) for module in network.modules())


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_the_network_keeps_the_contract(spectra: ModuleType) -> None:
    state = torch.get_rng_state()
    model = spectra.model()
    assert torch.equal(torch.get_rng_state(), state)
    assert model.digest == "6dd1962bfeb53582"
    check_model(model)

    seeds = [3, 0]
    cond = model.conditions(seeds)
    torch.testing.assert_close(cond, model.conditions([0, 1, 2, 3])[seeds])
    assert cond.abs().max() < 1.2

    k = knots(model.schedule, make_grid("quadratic", model.schedule, 5))
    table = compile_table(make_solver("dpmpp"), k, model.prediction)
    with torch.inference_mode():
        sample = model.decode(table.run(bind_network(model, cond), prior(model, seeds)))
    mean = spectra.boxes(seeds, spectra.load_constants(spectra.package()))[0]
    assert bool(torch.isfinite(sample).all())
    assert (sample - mean).abs().mean() < 0.3  # it draws the mean that was hidden, in log10 P
