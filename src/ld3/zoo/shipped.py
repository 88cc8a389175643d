"""The models inside the package: small, real, at home on a laptop.

Four are trained on Fashion-MNIST. `fashion` denoises (EDM), `fashion-flow` is a rectified flow,
`fashion-latent` denoises in the latent space of an autoencoder. These take the class 0-9 as a
condition, seed s being of class s mod 10, and guidance by dropping it. `fashion-points` draws shoes
as point clouds, with a shape from its prior as the condition. There are two classifiers: the
feature maps of one give a perceptual distance to learn with, the features of the other, `judge`, a
Fréchet distance, so that what is optimised is not what is measured.

`road` draws cars and trucks of CIFAR-10 in colour. Its file has the form of an EDM checkpoint after
`ld3 convert`: it is read, learned from and measured as the paper's own files are.

How all were trained is in `training/`.

Weights are float16 safetensors whose checksums are in `weights/manifest.json`.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors.torch import load as read_safetensors
from torch import Tensor, nn

from ld3.distances import FeatureDistance
from ld3.errors import ModelError, unknown
from ld3.metrics import Moments
from ld3.models import Cond
from ld3.predictions import Prediction
from ld3.schedules import EDM, Discrete, Flow, Schedule
from ld3.zoo.checkpoints.load import load_checkpoint
from ld3.zoo.checkpoints.model import CheckpointModel
from ld3.zoo.networks import (
    NO_LABEL,
    Autoencoder,
    FineUNet,
    Judge,
    Perceptual,
    UNet,
    denoise_edm,
)
from ld3.zoo.points import PointConfig, PointModel, PointNetwork

WEIGHTS = Path(__file__).parent / "weights"
CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip
UNETS: dict[str, type[UNet]] = {"UNet": UNet, "FineUNet": FineUNet}
Net = TypeVar("Net", bound=nn.Module)
LICENCE = "Apache-2.0 (trained on Fashion-MNIST, MIT)"


@dataclass(frozen=True)
class Shipped:
    """What `ld3 models` shows of a model."""

    summary: str
    shape: tuple[int, ...]  # of x; for a latent model, of the latent
    prediction: str
    files: tuple[str, ...]
    conditions: str = "class 0-9, or none"
    distance: str | None = "perceptual"  # to learn with by default; None: as for any model
    licence: str = LICENCE

    @property
    def parameters(self) -> int:
        return sum(int(_entry(file)["parameters"]) for file in self.files)

    @property
    def digest(self) -> str:
        """A short name for these very weights."""
        sums = "".join(str(_entry(file)["sha256"]) for file in self.files)
        return hashlib.sha256(sums.encode()).hexdigest()[:16]


SHIPPED = {
    "fashion": Shipped("clothes, pixels, EDM denoiser", (1, 28, 28), "x0", ("fashion",)),
    "fashion-flow": Shipped(
        "clothes, pixels, rectified flow", (1, 28, 28), "flow", ("fashion-flow",)
    ),
    "fashion-latent": Shipped(
        "clothes, latent diffusion (LDM schedule)", (4, 7, 7), "v",
        ("fashion-latent", "autoencoder"),
    ),
    "fashion-points": Shipped(
        "shoes as point clouds (DMPG's network and schedule)", (512, 3), "eps",
        ("fashion-points",), "a shape from the prior", "l2",
    ),
    "road": Shipped(
        "cars and trucks, colour pixels, EDM denoiser", (3, 32, 32), "x0", ("road",),
        "class 0 (car) or 1 (truck)", None, "Apache-2.0 (trained on CIFAR-10, Krizhevsky 2009)",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ClassModel:
    """A network with ten classes: `raw(x, t, label)` gives its output, t and label (B,)."""

    raw: Callable[[Tensor, Tensor, Tensor], Tensor]
    schedule: Schedule
    prediction: Prediction
    shape: tuple[int, ...]
    device: torch.device
    coder: Autoencoder | None = None
    dtype: torch.dtype = torch.float32
    digest: str | None = None
    exact_time: ClassVar[bool] = False

    @property
    def identity(self) -> str | None:
        """Weights of network and decoder; the classes are those of the seeds."""
        return self.digest

    def forward(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        label = (
            cond if isinstance(cond, Tensor) else self.null(torch.empty(len(x), device=x.device))
        )
        return self.raw(x, t.expand(len(x)), label)

    def conditions(self, seeds: Sequence[int]) -> Tensor:
        return torch.tensor([seed % len(CLASSES) for seed in seeds], device=self.device)

    def null(self, cond: Cond) -> Tensor:
        assert isinstance(cond, Tensor)
        return torch.full_like(cond, NO_LABEL, dtype=torch.int64)

    def decode(self, x: Tensor) -> Tensor:
        return x if self.coder is None else self.coder.decode(x.to(self.dtype)).to(x.dtype)


def load(
    name: str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> ClassModel | PointModel | CheckpointModel:
    """A shipped model, frozen."""
    if name not in SHIPPED:
        raise unknown("model", name, SHIPPED)
    if name == "road":
        _read(name)  # compares the checksum
        found = load_checkpoint(WEIGHTS / f"{name}.safetensors", device, dtype)
        assert isinstance(found, CheckpointModel)
        return replace(found, digest=SHIPPED[name].digest)
    if name == "fashion-points":
        points = network(name, lambda **sizes: PointNetwork(_point_config()), device).to(dtype)
        return PointModel(points, _point_config(), SHIPPED[name].shape[0], SHIPPED[name].digest)
    net, coder = unet(name, device).to(dtype), None
    if "autoencoder" in SHIPPED[name].files:
        coder = network("autoencoder", Autoencoder, device).to(dtype)
    return replace(of_network(name, net, coder), digest=SHIPPED[name].digest)


def unet(name: str, device: torch.device | str) -> UNet:
    """The network of a shipped image model, frozen."""
    return network(name, UNETS[_entry(name)["class"]], device)


def of_network(name: str, net: UNet, coder: Autoencoder | None = None) -> ClassModel:
    """A shipped model around its network, wherever that is."""
    place, dtype = net.entry.weight.device, net.entry.weight.dtype
    if name == "fashion":
        sigma_data = float(_entry("fashion")["sigma_data"])

        def denoise(x: Tensor, t: Tensor, label: Tensor) -> Tensor:
            return denoise_edm(net, x, t, label, sigma_data)

        return ClassModel(denoise, EDM(), "x0", (1, 28, 28), place, dtype=dtype)
    if name == "fashion-flow":
        return ClassModel(net, Flow(), "flow", (1, 28, 28), place, dtype=dtype)
    schedule = Discrete.scaled_linear(0.0015, 0.0195)

    def velocity(x: Tensor, t: Tensor, label: Tensor) -> Tensor:
        out: Tensor = net(x, -0.25 * schedule.lam(t.double()), label)  # log(sigma/alpha) / 4
        return out

    return ClassModel(velocity, schedule, "v", (4, 7, 7), place, coder, dtype)


def _point_config() -> PointConfig:
    sizes = _entry("fashion-points")["arguments"]
    return PointConfig(**{**sizes, "widths": tuple(sizes["widths"])})


def real_clouds() -> Tensor:
    """Real clouds to compare those of `fashion-points` with, (100, 512, 3), from test images."""
    return _read("fashion-points-test")["clouds"].float()


def perceptual(device: torch.device | str = "cpu") -> FeatureDistance:
    """The perceptual distance for 1x28x28 images: feature maps of a small classifier."""
    return FeatureDistance(network("perceptual", Perceptual, device).features)


def judge(device: torch.device | str = "cpu") -> Judge:
    """The classifier whose features give the Fréchet distance."""
    return network("judge", Judge, device)


def judge_moments(part: str = "test") -> Moments:
    """Mean and covariance of the features of the 10,000 test (or 60,000 `train`) images."""
    count = {"test": 10_000, "train": 60_000}
    if part not in count:
        raise unknown("part of the data", part, count)
    stats = _read("judge_stats")
    return Moments.known(stats[f"{part}_mean"], stats[f"{part}_cov"], count[part])


def checksum(name: str) -> str:
    """The first digits of the sha256 of a shipped file."""
    return str(_entry(name)["sha256"])[:16]


def has_features(name: str) -> bool:
    """Whether the package has a feature network for the samples of a model: grey clothes."""
    return name in SHIPPED and SHIPPED[name].distance == "perceptual"


def weights_behind(name: str) -> str:
    """The weights that a result of a shipped model was measured with; of other models nothing."""
    if name not in SHIPPED:
        return ""
    parts = {name: SHIPPED[name].digest}
    if has_features(name):
        parts |= {"feature network": checksum("judge")}
    return ", ".join(f"{part} {digest[:8]}" for part, digest in parts.items())


@cache
def _manifest() -> dict[str, dict[str, Any]]:
    try:
        files: dict[str, dict[str, Any]] = json.loads(
            (WEIGHTS / "manifest.json").read_text("utf-8")
        )["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"weights: got {type(error).__name__} from manifest.json, expected the list of shipped "
            "weights; reinstall ld3"
        ) from None
    return files


def _entry(name: str) -> dict[str, Any]:
    """What the manifest says of a shipped file."""
    file = f"{name}.safetensors"
    if file not in _manifest():
        raise ModelError(f"weights: {file} is not in manifest.json; reinstall ld3")
    return _manifest()[file]


def _read(name: str) -> dict[str, Tensor]:
    """The tensors of a shipped file, after its checksum was compared."""
    file = f"{name}.safetensors"
    try:
        content = (WEIGHTS / file).read_bytes()
    except OSError as error:
        raise ModelError(f"weights: cannot read {file}: {error.strerror}; reinstall ld3") from None
    entry = _entry(name)
    got = hashlib.sha256(content).hexdigest()
    if got != entry["sha256"]:
        raise ModelError(
            f"weights: got {file} with sha256 {got[:12]} and {len(content)} bytes, expected "
            f"{entry['sha256'][:12]} and {entry['bytes']}; the file is damaged: reinstall ld3"
        )
    return read_safetensors(content)


def network(name: str, kind: Callable[..., Net], device: torch.device | str) -> Net:
    """A network with its shipped weights: float32, frozen, ready to run."""
    weights = {
        key: value.float() if value.is_floating_point() else value
        for key, value in _read(name).items()
    }
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):  # building draws random weights
        net = kind(**_entry(name)["arguments"])
    net.load_state_dict(weights)
    net.eval().requires_grad_(False)
    return net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
