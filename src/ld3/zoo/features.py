"""Networks that turn pictures into features, for the metrics between sets of samples.

The shipped judge is there without any file. Others come from a file of your own:

    *.safetensors               weights of the FID Inception network, see ld3.metrics.inception
    *.pt, *.pth, *.ts, *.jit    a TorchScript module: uint8 pictures (B, 3, H, W) -> features (B, D)

A TorchScript file holds code, and that code runs. Nothing loads one unless you name it: name only
files you trust. A module whose forward has an argument `return_features` is called with it set.
"""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3 import zoo
from ld3.errors import ModelError
from ld3.metrics.inception import in_colour, make_inception, to_uint8
from ld3.store import read_bytes, read_tensors

SCRIPTS = (".pt", ".pth", ".ts", ".jit")


@dataclass(frozen=True)
class FeatureNet:
    """Pictures (B, C, H, W) in [-1, 1] -> features (B, D); for the judge, class scores too."""

    name: str
    digest: str  # of the weights: features are comparable only where it is the same
    features: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor] | None = None  # pictures -> (B, classes)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        found = self.features(images)
        if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != len(images):
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ModelError(
                f"features: got {got} from {self.name} for {len(images)} pictures, wanted one "
                f"tensor ({len(images)}, D)"
            )
        return found


def load_features(path: str | Path | None = None, device: str = "cpu") -> FeatureNet:
    """The shipped judge (for 1x28x28 pictures), or a network from a file: see the module."""
    if path is None:
        return _judge(device)
    file = Path(path).expanduser()
    if file.suffix not in (".safetensors", *SCRIPTS):
        raise ModelError(
            f"features: got {file}, wanted .safetensors with Inception weights or TorchScript: "
            f"{', '.join(SCRIPTS)}"
        )
    digest = hashlib.sha256(read_bytes(file)).hexdigest()[:16]
    if file.suffix in SCRIPTS:
        return FeatureNet(file.name, digest, _script(file, device))
    net = make_inception(read_tensors(file), str(file)).to(device)
    return FeatureNet(file.name, digest, lambda images: net(images.to(device)))


def _judge(device: str) -> FeatureNet:
    net = zoo.judge(device)

    def ready(images: Tensor) -> Tensor:
        if images.shape[1:] != (1, 28, 28):
            raise ModelError(
                f"features: got pictures of shape {tuple(images.shape[1:])}, but the shipped judge "
                "takes (1, 28, 28); name a file of another network"
            )
        return images.to(device).float().clamp(-1, 1)

    @torch.no_grad()
    def logits(images: Tensor) -> Tensor:
        return net.logits(ready(images))

    return FeatureNet(
        "judge", zoo.checksum("judge"), lambda images: net.features(ready(images)), logits
    )


def _script(file: Path, device: str) -> Callable[[Tensor], Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is in maintenance
            net: Any = torch.jit.load(file, map_location=device).eval()  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:100]
        raise ModelError(f"features: {file} is no TorchScript file ({reason})") from None
    takes = {argument.name for argument in net.forward.schema.arguments}
    more = {"return_features": True} if "return_features" in takes else {}

    def features(images: Tensor) -> Tensor:
        found: Tensor = net(in_colour(to_uint8(images)).to(device), **more)
        return found

    return features
