r"""DDPM++ (Song et al. 2021, arXiv 2011.13456) as EDM trains it, any size, for training.

Names and shapes of the weights are those of the EDM checkpoints, so that whatever reads these reads
a network trained here. Configurations: positional embedding, resampling by averages of 2x2 pixels,
one head of attention, no augmentation labels.

A block of width W with embedding e, r its resampling (or nothing), S its skip (1x1 or nothing):

    h = conv1(drop(silu(norm1(conv0(r(silu(norm0(x)))) + A e))))
    x = (h + S r(x)) / sqrt 2,      then, with attention,  x = (P attend(norm2(x)) + x) / sqrt 2.

The time features cos, sin of u w_i, u = log(sigma) / 4, w_i from 1 down to 1/10000, are slow: the
fastest has a period of 25 in log sigma.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HALF = math.sqrt(0.5)


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, width // 4), width, eps=1e-6)


def _start(layer: nn.Module, scale: float = 1.0) -> None:
    """Xavier's uniform numbers times ``scale``, no bias."""
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    with torch.no_grad():
        layer.weight.mul_(scale)


class Conv(nn.Conv2d):
    """A convolution after resampling: "down" averages 2x2 pixels, "up" repeats them, "" neither."""

    resample_filter: Tensor

    def __init__(
        self, before: int, after: int, kernel: int, way: str = "", start: float = 1.0
    ) -> None:
        super().__init__(before, after, kernel, padding=kernel // 2)
        self.way = way
        if way:
            self.register_buffer("resample_filter", torch.full((1, 1, 2, 2), 0.25))
        _start(self, start)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "down":
            x = F.avg_pool2d(x, 2)
        elif self.way == "up" and self.kernel_size == (1, 1):
            return F.interpolate(super().forward(x), scale_factor=2.0)  # the same, for less
        elif self.way == "up":
            x = F.interpolate(x, scale_factor=2.0)
        return super().forward(x)


class Block(nn.Module):
    """The residual block of the formula above."""

    def __init__(
        self, before: int, after: int, embedding: int, attention: bool, dropout: float, way: str
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm0 = _norm(before)
        self.conv0 = Conv(before, after, 3, way)
        self.affine = nn.Linear(embedding, after)
        self.norm1 = _norm(after)
        self.conv1 = Conv(after, after, 3, start=1e-5)
        self.skip = Conv(before, after, 1, way) if way or before != after else None
        self.attention = attention
        _start(self.affine)
        if attention:
            self.norm2 = _norm(after)
            self.qkv = Conv(after, 3 * after, 1, start=math.sqrt(0.2))
            self.proj = Conv(after, after, 1, start=1e-5)

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        h = self.conv0(F.silu(self.norm0(x))) + self.affine(e)[:, :, None, None]
        h = self.conv1(F.dropout(F.silu(self.norm1(h)), self.dropout, self.training))
        x = (h + (x if self.skip is None else self.skip(x))) * HALF
        if self.attention:
            x = (self.proj(self._attend(self.norm2(x))) + x) * HALF
        return x

    def _attend(self, x: Tensor) -> Tensor:
        b, c, height, width = x.shape
        q, k, v = self.qkv(x).reshape(b, c, 3, height * width).unbind(2)  # (B,C,HW) each
        weight = (q.transpose(1, 2) @ k / math.sqrt(c)).softmax(-1)  # (B,HW,HW)
        mixed: Tensor = v @ weight.transpose(1, 2)
        return mixed.reshape(b, c, height, width)


class SongUNet(nn.Module):
    """F(x, u, labels), labels (B,label_dim): one-hot rows, zero rows for "no label", or None."""

    def __init__(
        self,
        img_resolution: int,
        img_channels: int = 3,
        label_dim: int = 0,
        model_channels: int = 128,
        channel_mult: Sequence[int] = (2, 2, 2),
        num_blocks: int = 4,
        attn_resolutions: Sequence[int] = (16,),
        dropout: float = 0.13,
    ) -> None:
        super().__init__()
        self.waves = model_channels
        self.label_dim = label_dim
        width = 4 * model_channels
        if label_dim:
            self.map_label = nn.Linear(label_dim, model_channels)
            _start(self.map_label)
        self.map_layer0 = nn.Linear(model_channels, width)
        self.map_layer1 = nn.Linear(width, width)
        _start(self.map_layer0)
        _start(self.map_layer1)

        def block(before: int, after: int, attention: bool = False, way: str = "") -> Block:
            return Block(before, after, width, attention, dropout, way)

        self.enc, self.dec = nn.ModuleDict(), nn.ModuleDict()
        now, skips = model_channels, []
        for level, mult in enumerate(channel_mult):
            side = img_resolution >> level
            name, listed = f"{side}x{side}", side in attn_resolutions
            if level == 0:
                self.enc[f"{name}_conv"] = Conv(img_channels, now, 3)
            else:
                self.enc[f"{name}_down"] = block(now, now, way="down")
            skips.append(now)
            for n in range(num_blocks):
                self.enc[f"{name}_block{n}"] = block(now, mult * model_channels, listed)
                now = mult * model_channels
                skips.append(now)
        for level, mult in reversed(list(enumerate(channel_mult))):
            side = img_resolution >> level
            name, listed = f"{side}x{side}", side in attn_resolutions
            if level == len(channel_mult) - 1:
                self.dec[f"{name}_in0"] = block(now, now, True)
                self.dec[f"{name}_in1"] = block(now, now)
            else:
                self.dec[f"{name}_up"] = block(now, now, way="up")
            for n in range(num_blocks + 1):
                last = listed and n == num_blocks
                self.dec[f"{name}_block{n}"] = block(now + skips.pop(), mult * model_channels, last)
                now = mult * model_channels
        side = img_resolution
        self.dec[f"{side}x{side}_aux_norm"] = _norm(now)
        self.dec[f"{side}x{side}_aux_conv"] = Conv(now, img_channels, 3, start=1e-5)

    def embed(self, u: Tensor, labels: Tensor | None) -> Tensor:
        """Time and class as one vector, (B,4 model_channels)."""
        half = self.waves // 2
        steps = torch.arange(half, device=u.device, dtype=u.dtype) / (half - 1)
        angle = u[:, None] * 10_000**-steps  # (B,W/2)
        e = torch.cat([angle.sin(), angle.cos()], dim=1)
        if self.label_dim:
            none = e.new_zeros(len(e), self.label_dim)
            one_hot = none if labels is None else labels.to(e.dtype)
            e = e + self.map_label(one_hot * math.sqrt(self.label_dim))
        return F.silu(self.map_layer1(F.silu(self.map_layer0(e))))

    def forward(self, x: Tensor, u: Tensor, labels: Tensor | None = None) -> Tensor:
        e = self.embed(u, labels)
        skips: list[Tensor] = []
        for layer in self.enc.values():
            x = layer(x, e) if isinstance(layer, Block) else layer(x)
            skips.append(x)
        for name, layer in self.dec.items():
            if "block" in name:
                x = torch.cat([x, skips.pop()], dim=1)
            if isinstance(layer, Block):
                x = layer(x, e)
            else:
                x = F.silu(layer(x)) if name.endswith("norm") else layer(x)
        return x
