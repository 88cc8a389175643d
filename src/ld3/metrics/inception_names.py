"""Names of the FID network's weights in TensorFlow's graph, and in detectors that kept them.

A convolution of the graph has `weight`, and `beta`, `mean`, `var` of its norm, whose scale is one:

    layers.mixed_4.tower_1.conv_2.beta   ->   Mixed_6b.branch7x7dbl_3.bn.bias

NVIDIA's TorchScript detectors (`inception-2015-12-05.pt`) and copies of them are named so. With
:func:`port_names` their weights become those of :class:`ld3.metrics.inception.Inception`, to the
bit: the same network has the same digest, whichever file it came from.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

STEM = ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Conv2d_3b_1x1", "Conv2d_4a_3x3")
BLOCKS = ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")
PARTS = {
    "weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean", "var": "bn.running_var",
}  # fmt: skip


def _chain(tower: str, branch: str, count: int) -> dict[str, str]:
    """tower_conv, tower_conv_1, ... -> branch_1, branch_2, ..."""
    return {f"{tower}_conv" + f"_{n}" * (n > 0): f"{branch}_{n + 1}" for n in range(count)}


def _fork(tower: str, branch: str) -> dict[str, str]:
    return {f"{tower}_mixed_conv": f"{branch}a", f"{tower}_mixed_conv_1": f"{branch}b"}


_FIRST, _POOL = {"conv": "branch1x1"}, {"tower_2_conv": "branch_pool"}
_FINE = _FIRST | _chain("tower", "branch5x5", 2) | _chain("tower_1", "branch3x3dbl", 3) | _POOL
_TO_17 = {"conv": "branch3x3"} | _chain("tower", "branch3x3dbl", 3)
_MIDDLE = _FIRST | _chain("tower", "branch7x7", 3) | _chain("tower_1", "branch7x7dbl", 5) | _POOL
_TO_8 = _chain("tower", "branch3x3", 2) | _chain("tower_1", "branch7x7x3", 4)
_COARSE = (
    _FIRST | _chain("tower", "branch3x3", 1) | _fork("tower", "branch3x3_2")
    | _chain("tower_1", "branch3x3dbl", 2) | _fork("tower_1", "branch3x3dbl_3") | _POOL
)  # fmt: skip
_LAYOUTS = (*[_FINE] * 3, _TO_17, *[_MIDDLE] * 4, _TO_8, *[_COARSE] * 2)


def port_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under the names of the PyTorch port; what has no such name is left out."""
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        match = re.fullmatch(r"(?:\w+\.)*layers\.(.+)\.(weight|beta|mean|var)", name)
        layer = None if match is None else _layer(match[1])
        if match is None or layer is None:
            continue
        found[f"{layer}.{PARTS[match[2]]}"] = value
        if match[2] == "beta":
            found[f"{layer}.bn.weight"] = torch.ones_like(value)
    return found


def _layer(path: str) -> str | None:
    """`conv_1` -> Conv2d_2a_3x3, `mixed_4.tower.conv` -> Mixed_6b.branch7x7_1."""
    stem = re.fullmatch(r"conv(?:_(\d))?", path)
    if stem is not None:
        number = int(stem[1] or 0)
        return STEM[number] if number < len(STEM) else None
    block = re.fullmatch(r"mixed(?:_(\d+))?\.(.+)", path)
    if block is None or int(block[1] or 0) >= len(BLOCKS):
        return None
    number = int(block[1] or 0)
    inner = _LAYOUTS[number].get(block[2].replace(".", "_"))
    return None if inner is None else f"Mixed_{BLOCKS[number]}.{inner}"
