"""A U-Net with a path at full resolution beside it.

The U-Net of the package folds squares of pixels into channels. A few layers at full resolution see
what it misses at low noise. With h the last features of the U-Net,

    F(x) = U(x) + G(x, unfolded h)

G starts at zero, so that training goes on from a trained U-Net.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ld3.zoo.networks import Residual, UNet


class FineUNet(UNet):
    """Arguments of ``UNet``, and ``fine``: channels at full resolution."""

    def __init__(self, fine: int, **sizes: Any) -> None:
        super().__init__(**sizes)
        channels, embedding = sizes["channels"], sizes["embedding"]
        unfolded = sizes["widths"][0] // self.patch**2
        self.fine_entry = nn.Conv2d(channels, fine, 3, padding=1)
        self.fine_down = Residual(fine, embedding)
        self.fine_merge = nn.Conv2d(fine + unfolded, fine, 1)
        self.fine_up = Residual(fine, embedding)
        self.fine_norm = nn.GroupNorm(8, fine)
        self.fine_exit = nn.Conv2d(fine, channels, 3, padding=1)
        nn.init.zeros_(self.fine_exit.weight)
        nn.init.zeros_(self.fine_exit.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, c_noise: Tensor, label: Tensor) -> Tensor:
        e = self.embedded(c_noise, label)
        h = self.features(x, e)  # (B,W0,H/p,W/p)
        g = self.fine_down(self.fine_entry(x), e)  # (B,K,H,W)
        g = self.fine_merge(torch.cat([g, F.pixel_shuffle(h, self.patch)], dim=1))
        g = self.fine_up(g, e)
        out: Tensor = self.output(h) + self.fine_exit(F.silu(self.fine_norm(g)))
        return out
