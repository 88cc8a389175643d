"""What the networks of checkpoints share: attention, resampling, time features, sizes in bounds."""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ld3.errors import ModelError


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k / sqrt d) v over pixels, (B, heads, d, HW) each."""
    mixed = F.scaled_dot_product_attention(
        q.transpose(-1, -2), k.transpose(-1, -2), v.transpose(-1, -2)
    )
    return mixed.transpose(-1, -2)


def halve(x: Tensor) -> Tensor:
    """The mean of each 2x2 pixels."""
    return F.avg_pool2d(x, 2)


def double(x: Tensor) -> Tensor:
    """Each pixel four times."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


def angles(time: Tensor, count: int, last: float) -> Tensor:
    """time * 10000^(-i / last), i = 0 .. count - 1: (B,) -> (B, count), in at least float32."""
    wide = time.to(torch.promote_types(time.dtype, torch.float32))
    steps = torch.arange(count, dtype=wide.dtype, device=wide.device)
    return wide[:, None] * torch.exp(steps * (-math.log(10000) / last))


def check_counts(source: str, counts: Mapping[str, tuple[object, int, int]]) -> None:
    """Whole numbers within their ends, by name: what was got, the lowest and the highest."""
    for name, (got, low, high) in counts.items():
        if type(got) is not int or not low <= got <= high:
            raise ModelError(
                f"{source}: got {name} {got!r}, expected a whole number from {low} to {high}"
            )
