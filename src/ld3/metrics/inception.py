"""Inception v3 as the Fréchet Inception distance uses it: images -> 2048 pooled features.

The network of Szegedy et al. 2015 (arXiv 1512.00567) in the form of 2015-12-05 that FID was
defined with. It differs from the usual one in two ways: averages in pooling branches leave the
border's zeros out, and the pooling branch of the last block takes the maximum. Names of weights are
those of the usual PyTorch port (`Mixed_5b.branch1x1.conv.weight`, ...).

Images in [-1, 1] are rounded to 8 bits first, as the EDM protocol does; grey ones become three
equal channels. Two *resize rules* lead to 299 x 299, both bilinear and without antialiasing:

    tensorflow   output pixel i is at i H / 299 of the input; values (v - 128) / 128
    pytorch      pixel centres are aligned, at (i + 1/2) H / 299 - 1/2; values 2 v / 255 - 1

The first is that of the original network, of NVIDIA's detectors and of torch-fidelity: published
reference statistics were made with it. The second is that of the package pytorch-fid.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ld3.errors import ModelError

Resize = Literal["tensorflow", "pytorch"]
RESIZE: tuple[Resize, ...] = get_args(Resize)
SIDE = 299


def to_uint8(images: Tensor) -> Tensor:
    """clip(127.5 x + 128, 0, 255), cut to 8 bits: x from [-1, 1]."""
    return (images.float() * 127.5 + 128).clip(0, 255).to(torch.uint8)


def in_colour(images: Tensor) -> Tensor:
    """(B, 1 or 3, H, W) -> (B, 3, H, W)."""
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ModelError(
            f"features: got images of shape {tuple(images.shape)}, expected (B, 1, H, W) or "
            "(B, 3, H, W)"
        )
    return images.expand(-1, 3, -1, -1)


def resized(pixels: Tensor, rule: Resize) -> Tensor:
    """Pixels (B, 3, H, W) of 0 to 255 as the network takes them, (B, 3, 299, 299): see above."""
    x = pixels.float()
    if rule == "pytorch":
        x = F.interpolate(x / 255, (SIDE, SIDE), mode="bilinear", align_corners=False)
        return 2 * x - 1
    return (_from_corner(_from_corner(x, 2), 3) - 128) / 128


def _from_corner(x: Tensor, axis: int) -> Tensor:
    """Along one axis: out_i = (1 - w) x_k + w x_{k+1} with k + w = i H / 299."""
    size = x.shape[axis]
    place = torch.arange(SIDE, device=x.device, dtype=torch.float32) * (size / SIDE)
    low = place.floor().long().clamp_max(size - 1)
    high = (low + 1).clamp_max(size - 1)
    weight = (place - low).view([-1 if d == axis else 1 for d in range(4)])
    return torch.lerp(x.index_select(axis, low), x.index_select(axis, high), weight)


class Unit(nn.Module):
    """relu(norm(conv(x)))"""

    def __init__(
        self,
        before: int,
        after: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(after, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


@dataclass(frozen=True)
class Chain:
    """Convolutions one after the other: (width, kernel) each, all of one size but where it says.

    The last may halve the size, or fork into 1x3 and 3x1 side by side.
    """

    name: str
    convs: tuple[tuple[int, int | tuple[int, int]], ...]
    halve: bool = False
    fork: bool = False


class Block(nn.Module):
    """Chains and a pooling branch on one input, their outputs joined."""

    def __init__(
        self, before: int, chains: tuple[Chain, ...], pool: Callable[[Tensor], Tensor], pooled: int
    ) -> None:
        super().__init__()
        self.chains: list[list[list[str]]] = []  # chain -> steps -> names that run side by side
        self.pool = pool
        for chain in chains:
            steps, width = [], before
            for number, (after, kernel) in enumerate(chain.convs, 1):
                name = chain.name if len(chain.convs) == 1 else f"{chain.name}_{number}"
                last = number == len(chain.convs)
                if last and chain.fork:
                    steps.append([f"{name}a", f"{name}b"])
                    self.add_module(f"{name}a", Unit(width, after, (1, 3), padding=(0, 1)))
                    self.add_module(f"{name}b", Unit(width, after, (3, 1), padding=(1, 0)))
                    continue
                halve = last and chain.halve
                sides = (kernel, kernel) if isinstance(kernel, int) else kernel
                padding = (0, 0) if halve else (sides[0] // 2, sides[1] // 2)
                self.add_module(name, Unit(width, after, kernel, 2 if halve else 1, padding))
                steps.append([name])
                width = after
            self.chains.append(steps)
        self.branch_pool: nn.Module = Unit(before, pooled, 1) if pooled else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for steps in self.chains:
            h = x
            for names in steps:
                h = torch.cat([self.get_submodule(name)(h) for name in names], 1)
            outputs.append(h)
        return torch.cat([*outputs, self.branch_pool(self.pool(x))], 1)


def _mean(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)


def _largest(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=1, padding=1)


def _halve(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=2)


def _fine(before: int, pooled: int) -> Block:  # 35 x 35
    chains = (
        Chain("branch1x1", ((64, 1),)),
        Chain("branch5x5", ((48, 1), (64, 5))),
        Chain("branch3x3dbl", ((64, 1), (96, 3), (96, 3))),
    )
    return Block(before, chains, _mean, pooled)


def _middle(width: int) -> Block:  # 17 x 17
    row, column = (1, 7), (7, 1)
    w = width
    chains = (
        Chain("branch1x1", ((192, 1),)),
        Chain("branch7x7", ((w, 1), (w, row), (192, column))),
        Chain("branch7x7dbl", ((w, 1), (w, column), (w, row), (w, column), (192, row))),
    )
    return Block(768, chains, _mean, 192)


def _coarse(before: int, pool: Callable[[Tensor], Tensor]) -> Block:  # 8 x 8
    chains = (
        Chain("branch1x1", ((320, 1),)),
        Chain("branch3x3", ((384, 1), (384, 3)), fork=True),
        Chain("branch3x3dbl", ((448, 1), (384, 3), (384, 3)), fork=True),
    )
    return Block(before, chains, pool, 192)


class Inception(nn.Module):
    """Images (B, 1 or 3, H, W) in [-1, 1] -> features (B, 2048)."""

    def __init__(self, resize: Resize = "tensorflow") -> None:
        super().__init__()
        self.resize = resize
        self.Conv2d_1a_3x3 = Unit(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = Unit(32, 32, 3)
        self.Conv2d_2b_3x3 = Unit(32, 64, 3, padding=1)
        self.Conv2d_3b_1x1 = Unit(64, 80, 1)
        self.Conv2d_4a_3x3 = Unit(80, 192, 3)
        self.Mixed_5b = _fine(192, 32)
        self.Mixed_5c = _fine(256, 64)
        self.Mixed_5d = _fine(288, 64)
        to_17 = (
            Chain("branch3x3", ((384, 3),), halve=True),
            Chain("branch3x3dbl", ((64, 1), (96, 3), (96, 3)), halve=True),
        )
        self.Mixed_6a = Block(288, to_17, _halve, 0)
        self.Mixed_6b = _middle(128)
        self.Mixed_6c = _middle(160)
        self.Mixed_6d = _middle(160)
        self.Mixed_6e = _middle(192)
        to_8 = (
            Chain("branch3x3", ((192, 1), (320, 3)), halve=True),
            Chain("branch7x7x3", ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)), halve=True),
        )
        self.Mixed_7a = Block(768, to_8, _halve, 0)
        self.Mixed_7b = _coarse(1280, _mean)
        self.Mixed_7c = _coarse(2048, _largest)

    def forward(self, images: Tensor) -> Tensor:
        x = resized(in_colour(to_uint8(images)), self.resize)
        for name, part in self.named_children():
            if name in ("Conv2d_3b_1x1", "Mixed_5b"):  # 147 -> 73 and 71 -> 35
                x = _halve(x)
            x = part(x)
        return x.mean((2, 3))


def make_inception(
    weights: Mapping[str, Tensor], source: str = "weights", resize: Resize = "tensorflow"
) -> Inception:
    """The network with these weights, frozen. Keys it does not need, as `fc.weight`, are left."""
    with torch.random.fork_rng(devices=[]):  # building draws random weights
        net = Inception(resize)
    wanted = {k: v for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    absent = [key for key in wanted if key not in weights]
    if absent:
        raise ModelError(
            f"Inception: got {source} without {absent[0]} ({len(absent)} of {len(wanted)} keys "
            "absent), expected the names of the PyTorch port of the FID network"
        )
    for key, value in wanted.items():
        if weights[key].shape != value.shape:
            raise ModelError(
                f"Inception: got {source} where {key} has shape {tuple(weights[key].shape)}, "
                f"expected {tuple(value.shape)}"
            )
    net.load_state_dict({key: weights[key].float() for key in wanted}, strict=False)
    return net.eval().requires_grad_(False)
