"""LPIPS v0.1 (Zhang et al. 2018) in plain torch.

LPIPS is the :class:`~ld3.distances.FeatureDistance` on the feature maps of an ImageNet classifier
with trained linear heads. Images are in [-1, 1] and are standardised per colour channel by
``(x - shift) / scale``; values outside are allowed and not clamped. The maps are the outputs of
five ReLU layers: conv1_2, 2_2, 3_3, 4_3, 5_3 of VGG16 or conv1 .. conv5 of AlexNet.

Grey images (B, 1, H, W) are repeated to three channels. The pooling layers need at least 16
pixels (VGG16) or 31 pixels (AlexNet) a side: a shorter side is stretched bilinearly to that limit.
"""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch
import torch.hub
from safetensors.torch import load_file
from torch import Tensor, nn

from ld3.distances import FeatureDistance
from ld3.errors import ModelError, unknown

LpipsNet: TypeAlias = Literal["vgg", "alex"]

_KEYS = "features.N.weight, features.N.bias and linK.model.1.weight"


@dataclass(frozen=True)
class _Spec:
    stages: tuple[tuple[int, tuple[int, ...]], ...]  # size of the kernels, and widths
    pool: int  # pixels
    taps: tuple[int, ...]  # layers of the backbone whose outputs are compared
    widths: tuple[int, ...]  # channels of these outputs
    min_side: int  # smallest side in pixels with non-empty maps
    cached: str  # file name of the backbone in the torch hub cache
    weights: str  # name of the same weights in torchvision


_SPECS: dict[str, _Spec] = {
    "vgg": _Spec(((3, (64,) * 2), (3, (128,) * 2), (3, (256,) * 3), (3, (512,) * 3),
                  (3, (512,) * 3)), 2, (3, 8, 15, 22, 29), (64, 128, 256, 512, 512), 16,
                 "vgg16-397923af.pth", "VGG16_Weights.IMAGENET1K_V1"),
    "alex": _Spec(((11, (64,)), (5, (192,)), (3, (384, 256, 256))), 3,
                  (1, 4, 7, 9, 11), (64, 192, 384, 256, 256), 31,
                  "alexnet-owt-7be5be79.pth", "AlexNet_Weights.IMAGENET1K_V1"),
}  # fmt: skip


def _spec(net: str) -> _Spec:
    if net not in _SPECS:
        raise unknown("LPIPS net", net, _SPECS)
    return _SPECS[net]


def _backbone(spec: _Spec) -> nn.Sequential:
    """Stages of convolutions and ReLUs, pooled in between; weights without values as yet."""
    layers: list[nn.Module] = []
    before = 3
    for kernel, widths in spec.stages:
        stride, padding = 4 if kernel == 11 else 1, 2 if kernel > 3 else 1
        for width in widths:
            conv = nn.Conv2d(before, width, kernel, stride, padding, device="meta")
            layers += [conv, nn.ReLU(inplace=True)]
            before = width
        layers.append(nn.MaxPool2d(spec.pool, 2))
    return nn.Sequential(*layers[:-1])


class LpipsFeatures(nn.Module):
    """Images (B, 3 or 1, H, W) in [-1, 1] to the five feature maps (B, C_l, H_l, W_l).

    ``features`` has torchvision's layer numbers; its weights have no values until they are
    loaded, see :func:`load_lpips`. Images are cast to the dtype of the weights.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, net: LpipsNet) -> None:
        super().__init__()
        self.spec = _spec(net)
        self.features = _backbone(self.spec)
        for name, rgb in (("shift", (-0.030, -0.088, -0.188)), ("scale", (0.458, 0.448, 0.450))):
            value = torch.tensor(rgb, device="cpu", dtype=torch.float32).view(3, 1, 1)
            self.register_buffer(name, value, persistent=False)

    def _prepare(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise ModelError(
                f"LPIPS got samples of shape {tuple(x.shape)}, expected images (B, 3, H, W) or "
                "(B, 1, H, W) in [-1, 1]; fix: decode latents to images first, or use another "
                "distance such as l2"
            )
        if x.device != self.shift.device:
            raise ModelError(
                f"LPIPS got images on {x.device}, expected {self.shift.device} where its weights "
                f"are; fix: move the distance with .to({str(x.device)!r})"
            )
        x = x.to(self.shift.dtype).expand(-1, 3, -1, -1)
        height, width = (max(side, self.spec.min_side) for side in x.shape[2:])
        if (height, width) != x.shape[2:]:
            x = nn.functional.interpolate(x, (height, width), mode="bilinear", align_corners=False)
        return (x - self.shift) / self.scale

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        h = self._prepare(x)
        for i, layer in enumerate(self.features):
            h = layer(h)
            if i in self.spec.taps:
                maps.append(h)
        return maps


def _read(file: Path) -> dict[str, object]:
    """The tensors of a weights file; code in it is never run."""
    if not file.is_file():
        raise ModelError(f"LPIPS weights got {file}, which is no file; fix: correct the path")
    if file.suffix not in (".safetensors", ".pth", ".pt"):
        raise ModelError(
            f"LPIPS weights got {file}, expected a .safetensors, .pth or .pt file; fix: save the "
            "tensors in one of these formats"
        )
    state: object
    try:
        if file.suffix == ".safetensors":
            state = load_file(file, device="cpu")
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes make the readers fail in any way
        raise ModelError(
            f"LPIPS weights got {file}, which cannot be read ({type(error).__name__}), expected a "
            "whole file that holds tensors only; fix: fetch the file again"
        ) from error
    if not isinstance(state, dict):
        raise ModelError(
            f"LPIPS weights got {file}, which holds a {type(state).__name__}, expected a state "
            f"dict with the keys {_KEYS}; fix: save module.state_dict()"
        )
    return state


def _cache_dir() -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints"


def _packaged_heads(net: str) -> Path | None:
    """The heads inside an installed `lpips` or `torchmetrics`, found without importing these."""
    for name, inside in (
        ("lpips", "weights/v0.1"),
        ("torchmetrics", "functional/image/lpips_models"),
    ):
        try:
            package = importlib.util.find_spec(name)
        except ValueError:  # a module of this name without a spec
            continue
        for folder in (package.submodule_search_locations if package else None) or ():
            file = Path(folder) / inside / f"{net}.pth"
            if file.is_file():
                return file
    return None


def lpips_is_here(net: LpipsNet) -> bool:
    """Whether :func:`load_lpips` finds all weights on this machine."""
    cached = _cache_dir() / _spec(net).cached
    return cached.is_file() and _packaged_heads(net) is not None


def _torchvision_backbone(weights: str) -> dict[str, object] | None:
    """The backbone as torchvision downloads it, or None without torchvision or network."""
    try:
        models = importlib.import_module("torchvision.models")
        state: dict[str, object] = models.get_weight(weights).get_state_dict(
            map_location="cpu", check_hash=True, weights_only=True
        )
    except (ImportError, RuntimeError, OSError):
        return None
    return state


def _steps(net: str) -> str:
    cached = _SPECS[net].cached
    return (
        f"run `pip install --no-deps lpips` and save "
        f"https://download.pytorch.org/models/{cached} as {_cache_dir() / cached}, or give "
        f"a file, --distance lpips-{net}:FILE or path=FILE: .safetensors or .pth with the keys "
        f"{_KEYS}"
    )


def _find(net: str) -> tuple[dict[str, object], str]:
    """State and its origin from the torch hub cache or torchvision, and the package `lpips`."""
    spec, heads = _SPECS[net], _packaged_heads(net)
    cached = _cache_dir() / spec.cached
    state: dict[str, object] | None = None
    if heads:
        state = _read(cached) if cached.is_file() else _torchvision_backbone(spec.weights)
    if heads is None or state is None:
        found = {
            "an installed package lpips or torchmetrics": heads is not None,
            str(cached): cached.is_file(),
        }
        absent = " and ".join(name for name, there in found.items() if not there)
        raise ModelError(
            f"LPIPS got no weights for net={net!r}: expected {absent}; fix: {_steps(net)}"
        )
    return {**state, **_read(heads)}, f"{cached} with {heads}"


def _checked(
    state: dict[str, object], wanted: dict[str, torch.Size], net: str, source: str
) -> dict[str, Tensor]:
    """The wanted tensors in float32, after a check of names, shapes and values."""
    absent = [key for key in wanted if key not in state]
    if absent:
        raise ModelError(
            f"LPIPS weights got {source} without {absent[0]} ({len(absent)} of {len(wanted)} keys "
            f"absent), expected net={net!r} with the keys {_KEYS}; fix: {_steps(net)}"
        )
    tensors = {}
    for key, shape in wanted.items():
        value = state[key]
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.shape != shape:
            got = type(value).__name__
            if isinstance(value, Tensor):
                got = f"{value.dtype} {tuple(value.shape)}"
            raise ModelError(
                f"LPIPS weights got {source} where {key} is {got}, expected floats of shape "
                f"{tuple(shape)} for net={net!r}; fix: pass the file of this net"
            )
        if not value.isfinite().all() or (key.startswith("lin") and (value < 0).any()):
            raise ModelError(
                f"LPIPS weights got {source} where {key} holds values that are not finite or are "
                "negative, expected finite values and heads >= 0; fix: fetch the file again"
            )
        tensors[key] = value.to(torch.float32)
    return tensors


def load_lpips(net: LpipsNet, path: str | Path | None = None) -> FeatureDistance:
    """LPIPS v0.1 with frozen weights in float32 on the CPU; move it with ``.to``.

    The weights come from ``path`` if given, else the backbone from the torch hub cache (or, with
    torchvision installed, downloaded by it) and the heads from an installed package `lpips` or
    `torchmetrics`. ``path`` is a .safetensors, .pth or .pt file with the keys
    ``features.N.weight``, ``features.N.bias`` and ``linK.model.1.weight``; other keys are
    ignored, and heads that are not in it come from these packages. Weights stored in float16 are
    widened.
    """
    spec = _spec(net)
    features = LpipsFeatures(net)
    head_keys = [f"lin{layer}.model.1.weight" for layer in range(len(spec.widths))]
    if path is None:
        state, source = _find(net)
    else:
        file = Path(path).expanduser()
        state, source = _read(file), str(file)
        heads = _packaged_heads(net)
        if heads and not any(key in state for key in head_keys):
            state, source = {**state, **_read(heads)}, f"{file} with {heads}"
    wanted = {key: value.shape for key, value in features.state_dict().items()}
    wanted |= {k: torch.Size((1, c, 1, 1)) for k, c in zip(head_keys, spec.widths, strict=True)}
    tensors = _checked(state, wanted, net, source)
    head_weights = [tensors.pop(key) for key in head_keys]
    features.load_state_dict(tensors, assign=True)
    return FeatureDistance(features, head_weights).requires_grad_(False).eval()
