"""The models inside the package: they work, are what they claim, and refuse damaged weights."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ld3 import (
    TimeGrid,
    bind,
    bind_network,
    check_model,
    compile_table,
    integrate,
    knots,
    make_grid,
    make_solver,
    prior,
    zoo,
)
from ld3.errors import ModelError, SpecError
from ld3.known_grids import HANDMADE
from ld3.zoo import shipped
from ld3.zoo.loading import _choose_distance, load_model, make_measure
from ld3.zoo.networks import FineUNet, UNet

NAMES = sorted(name for name in shipped.SHIPPED if zoo.has_features(name))  # of clothes


def draw(
    name: str,
    seeds: range,
    steps: int,
    grid: str = "logsnr",
    solver: str = "unipc",
    scale: float = 1,
) -> Tensor:
    model = zoo.load(name)
    k = knots(model.schedule, make_grid(grid, model.schedule, steps))
    table = compile_table(make_solver(solver), k, model.prediction)
    with torch.inference_mode():
        network = bind_network(model, model.conditions(seeds), guidance=scale)
        return model.decode(table.run(network, prior(model, seeds)))


@pytest.mark.parametrize("name", NAMES)
def test_models_keep_the_contract(name: str) -> None:
    model = zoo.load(name)
    check_model(model)
    assert model.shape == shipped.SHIPPED[name].shape
    assert model.prediction == shipped.SHIPPED[name].prediction
    labels = model.conditions([0, 7, 12])
    assert labels.tolist() == [0, 7, 2]
    assert model.null(labels).tolist() == [10, 10, 10]
    x = prior(model, range(3))
    t = torch.tensor(0.5, dtype=torch.float64)
    assert torch.equal(bind(model)(x, t), bind(model, model.null(labels))(x, t))
    assert not torch.equal(bind(model)(x, t), bind(model, labels)(x, t))
    assert model.decode(x).shape == (3, 1, 28, 28)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_the_times_through_the_decoder(name: str) -> None:
    model = zoo.load(name)
    times = make_grid("logsnr", model.schedule, 3).times.clone().requires_grad_()
    k = knots(model.schedule, TimeGrid.of(times))
    denoise = bind(model, model.conditions(range(2)), guidance=1.5, checkpoint=True)
    sample = model.decode(integrate(denoise, make_solver("dpmpp"), k, prior(model, range(2))))
    loss = zoo.perceptual()(sample, torch.zeros_like(sample)).sum()
    (slope,) = torch.autograd.grad(loss, times)
    assert bool(torch.isfinite(slope).all())
    assert bool((slope != 0).all())


@pytest.mark.parametrize("name", NAMES)
def test_the_judge_recognises_the_classes(name: str) -> None:
    """On 100 samples; the card in docs/models has the figure on 1,000."""
    sample = draw(name, range(100), 20, scale=2.0)
    right = zoo.judge().logits(sample.clamp(-1, 1)).argmax(1) == torch.arange(100) % 10
    assert right.float().mean() > 0.85


@pytest.mark.parametrize("method", ["unipc", "ipndm", "dpmpp"])
def test_the_grid_matters(method: str) -> None:
    """With 5 evaluations the worst hand-made grid errs more than twice as much as the best."""
    seeds = range(16)
    exact = draw("fashion", seeds, 60)
    errors = [
        (draw("fashion", seeds, 5, grid, method) - exact).square().mean().sqrt().item()
        for grid in HANDMADE
        if not grid.startswith("paper-")
    ]
    assert max(errors) > 2 * min(errors)


@pytest.mark.parametrize("name", [*NAMES, "road"])
def test_networks_are_smooth_in_time(name: str) -> None:
    """The slope of the error in a time is the same at a distance of 0.002 and of 0.1 in lam."""
    model, seeds = zoo.load(name), range(8)
    exact = draw(name, seeds, 40)
    lam = model.schedule.lam(make_grid("logsnr", model.schedule, 4).times)
    denoise, x = bind(model, model.conditions(seeds)), prior(model, seeds)

    def error(i: int, shift: float) -> Tensor:
        moved = lam.clone()
        moved[i] += shift
        k = knots(model.schedule, TimeGrid.of(model.schedule.time_at(moved)))
        with torch.inference_mode():
            sample = model.decode(integrate(denoise, make_solver("dpmpp"), k, x))
        return (sample - exact).flatten(1).square().mean(1).sqrt()

    near, far = (
        torch.stack([(error(i, h) - error(i, -h)) / (2 * h) for i in range(1, 4)])
        for h in (0.002, 0.1)
    )
    told = far.abs() > 0.05 * far.abs().max()
    assert ((near * far) > 0)[told].float().mean() > 0.95
    assert (near / far)[told].median() == pytest.approx(1, abs=0.2)


def test_the_colour_model_is_a_checkpoint_of_edm() -> None:
    """`road` is read as the paper's files are: the same model by name and as a file."""
    model = zoo.load("road")
    check_model(model)
    assert model.shape == shipped.SHIPPED["road"].shape
    labels = model.conditions([0, 7, 12])
    assert labels.tolist() == [0, 1, 0]
    x, t = prior(model, range(3)), torch.tensor(1.5, dtype=torch.float64)
    out = bind(model, labels)(x, t)
    assert not torch.equal(out, bind(model, 1 - labels)(x, t))
    file = load_model(str(shipped.WEIGHTS / "road.safetensors")).model
    assert torch.equal(out, bind(file, labels)(x, t))
    assert torch.equal(model.decode(x), x)
    with pytest.raises(ModelError, match="expected 1; it has no empty label"):
        bind(model, labels, guidance=2.0)(x, t)


def test_the_colour_model_draws_colours_of_the_data() -> None:
    """CIFAR-10's cars and trucks have pixels of mean -0.06 and deviation 0.54, neighbouring
    pixels differ by 0.07 of what independent ones do, channels by 0.22."""
    x = draw("road", range(32), 20)
    assert x.mean().item() == pytest.approx(-0.06, abs=0.15)
    assert x.std().item() == pytest.approx(0.54, abs=0.1)
    assert (x[..., 1:] - x[..., :-1]).square().mean() < 0.15 * 2 * x.var()
    assert (x.amax(1) - x.amin(1)).mean() == pytest.approx(0.22, abs=0.08)


def test_the_colour_model_is_learned_and_measured_as_any_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By LPIPS where its weights are, else l2; the package's features are for clothes."""
    loaded = load_model("road")
    assert not zoo.has_features("road")
    for here, wanted in ((False, "l2"), (True, "lpips-vgg")):
        monkeypatch.setattr("ld3.zoo.loading.lpips_is_here", lambda net, here=here: here)
        assert _choose_distance(loaded, "cpu")[0] == wanted
    with pytest.raises(SpecError, match="perceptual for road of shape"):
        make_measure("perceptual", loaded)


def test_the_decoder_is_close_to_the_autoencoder_inverse() -> None:
    """Encoding a decoded sample gives back its latent, roughly: the latent space is well used."""
    model = zoo.load("fashion-latent")
    assert model.coder is not None
    k = knots(model.schedule, make_grid("logsnr", model.schedule, 20))
    with torch.inference_mode():
        denoise = bind(model, model.conditions(range(10)))
        z = integrate(denoise, make_solver("unipc"), k, prior(model, range(10)))
        again = model.coder.encode(model.decode(z))
    assert (again - z).square().mean() < 0.25 * z.square().mean()


def test_perceptual_distance_sees_what_pixels_do_not() -> None:
    sample = draw("fashion", range(10), 20)
    distance = zoo.perceptual()
    assert distance(sample, sample).abs().max() == 0
    noisy = distance(sample + 0.05 * torch.randn(sample.shape, generator=_seed()), sample).mean()
    other = distance(sample.roll(1, 0), sample).mean()
    assert 0 < noisy < 0.5 * other


def _seed() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_loading_leaves_no_trace_and_names_its_device() -> None:
    before = torch.random.get_rng_state()
    with torch.device("meta"):
        model = zoo.load("fashion")
        bind(model, model.conditions(range(2)))(
            prior(model, range(2)), torch.ones((), device="cpu")
        )
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_fine_path_starts_as_nothing_and_sees_single_pixels() -> None:
    """It adds zero at first. Moving the input by one pixel moves what it adds by one, which layers
    on squares of 2x2 pixels cannot do."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"channels": 1, "widths": [16, 16], "blocks": 1, "embedding": 16}
    net = FineUNet(8, 1, **sizes).eval()
    plain = UNet(**sizes).eval()
    plain.load_state_dict({k: v for k, v in net.state_dict().items() if "fine" not in k})
    x, u, label = torch.zeros(2, 1, 28, 28), torch.rand(2), torch.tensor([3, 10])
    x[..., 10:18, 10:18] = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(net(x, u, label), plain(x, u, label))
        net.fine_exit.weight.normal_()
        net.fine_merge.weight[:, 8:] = 0  # without the coarse features

        def added(x: Tensor) -> Tensor:
            return net(x, u, label) - plain(x, u, label)

        still, moved = added(x), added(x.roll(1, -1))
    assert still.abs().max() > 0.1
    assert torch.allclose(moved[..., 6:-6, 7:-5], still[..., 6:-6, 6:-6], atol=1e-4)


def test_weights_are_small_half_precision_files() -> None:
    files = sorted(shipped.WEIGHTS.glob("*.safetensors"))
    assert sum(file.stat().st_size for file in files) <= 30e6
    manifest = json.loads((shipped.WEIGHTS / "manifest.json").read_text())["files"]
    assert {file.name for file in files} == set(manifest)
    for file in files:
        if file.stem == "judge_stats":
            continue
        tensors = load_file(file).values()
        types = {tensor.dtype for tensor in tensors if tensor.is_floating_point() and tensor.ndim}
        assert types == {torch.float16}


def test_unknown_names() -> None:
    with pytest.raises(SpecError, match="did you mean 'fashion-flow'"):
        zoo.load("fashion-flwo")
    with pytest.raises(SpecError, match="known: test, train"):
        zoo.judge_moments("validation")


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The weights in a folder where they may be damaged."""
    folder = tmp_path / "weights"
    shutil.copytree(shipped.WEIGHTS, folder)
    monkeypatch.setattr(shipped, "WEIGHTS", folder)
    shipped._manifest.cache_clear()
    yield folder
    shipped._manifest.cache_clear()


def refused(name: str = "fashion") -> str:
    with pytest.raises(ModelError) as error:
        zoo.load(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_damaged_weights_are_refused_with_one_line(copied: Path) -> None:
    file = copied / "fashion.safetensors"
    good = file.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for bad in (bytes(flipped), good[:-100], good + b"x", b"", b"PK\x03\x04"):
        file.write_bytes(bad)
        assert "damaged" in refused()
    shutil.copy(copied / "fashion-flow.safetensors", file)  # swapped
    assert "damaged" in refused()
    file.unlink()
    assert "No such file" in refused()
    file.write_bytes(good)
    assert zoo.load("fashion").shape == (1, 28, 28)
    road = copied / "road.safetensors"
    flipped = bytearray(road.read_bytes())
    flipped[len(flipped) // 2] ^= 1  # which only the checksum notices
    road.write_bytes(flipped)
    assert "expected" in refused("road") and "reinstall" in refused("road")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"files": {}}'])
def test_damaged_manifest_is_refused_with_one_line(copied: Path, content: str) -> None:
    (copied / "manifest.json").write_text(content)
    assert "reinstall" in refused()


def test_models_command() -> None:
    words = [sys.executable, "-m", "ld3.cli", "models"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    names = [line.split()[0] for line in lines[1:] if line[0] != " "]
    assert names == [*shipped.SHIPPED, "Licence:", "Licence:"]
    rows = json.loads(
        subprocess.run([*words, "--json"], capture_output=True, text=True, check=True).stdout
    )
    assert all(row["parameters"] > 1e5 and row["licence"] for row in rows)
