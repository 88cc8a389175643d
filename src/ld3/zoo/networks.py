"""Networks of the shipped models, and the formulas that turn their output into a prediction.

All of them see images scaled to [-1, 1], shape (B,C,H,W).

* ``UNet``: F(x, u, label), the raw network of a diffusion model, u a slow function of time.
* ``FineUNet``: the same with a path at full resolution beside it.
* ``denoise_edm``: D(x; sigma) = c_skip x + c_out F(c_in x; log(sigma) / 4).
* ``Autoencoder``: 1x28x28 <-> 4x7x7.
* ``Perceptual``: classifier whose feature maps measure how alike two images look.
* ``Judge``: another classifier, whose features give the Fréchet distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NO_LABEL = 10
"""Label that means "no class given" for networks with ten classes."""


class SlowTime(nn.Module):
    """u -> MLP(cos 2 pi f u, sin 2 pi f u), f in geometric steps from ``f_min`` to ``f_max``.

    Only low frequencies: with u = log(sigma) / 4 and f_max = 2 no feature has a period below 2
    in log sigma, so that the network changes slowly from one noise level to the next.
    """

    frequency: Tensor

    def __init__(self, dim: int, count: int = 8, f_min: float = 0.05, f_max: float = 2.0) -> None:
        super().__init__()
        self.register_buffer("frequency", frequencies(count, f_min, f_max), persistent=False)
        self.first = nn.Linear(2 * count, dim)
        self.second = nn.Linear(dim, dim)

    def forward(self, u: Tensor) -> Tensor:
        u = u.to(self.first.weight.dtype)  # (B,)
        out: Tensor = self.second(F.silu(self.first(waves(u, self.frequency))))  # (B,E)
        return out


def frequencies(count: int, f_min: float, f_max: float) -> Tensor:
    """(K,) in geometric steps."""
    steps = torch.linspace(math.log(f_min), math.log(f_max), count, dtype=torch.float64)
    return steps.exp().float()


def waves(u: Tensor, frequency: Tensor) -> Tensor:
    """cos 2 pi f u and sin 2 pi f u: u (B,), f (K,) -> (B,2K)."""
    angle = 2 * math.pi * u[:, None] * frequency.to(u.dtype)
    return torch.cat([angle.cos(), angle.sin()], dim=1)


def _zero(layer: nn.Conv2d) -> None:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)


class Residual(nn.Module):
    """x + conv(silu((1 + s) norm(conv(silu(norm(x)))) + b)), s and b linear in the embedding."""

    def __init__(self, width: int, embedding: int, groups: int = 8) -> None:
        super().__init__()
        self.norm_in = nn.GroupNorm(groups, width)
        self.conv_in = nn.Conv2d(width, width, 3, padding=1)
        self.modulate = nn.Linear(embedding, 2 * width)
        self.norm_out = nn.GroupNorm(groups, width)
        self.conv_out = nn.Conv2d(width, width, 3, padding=1)
        _zero(self.conv_out)

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        h = self.conv_in(F.silu(self.norm_in(x)))  # (B,W,H,W)
        scale, shift = self.modulate(e)[:, :, None, None].chunk(2, dim=1)  # (B,W,1,1) each
        h = self.norm_out(h) * (1 + scale) + shift
        out: Tensor = x + self.conv_out(F.silu(h))
        return out


class SelfAttention(nn.Module):
    """x + P softmax(Q^T K / sqrt d) V over the pixels, several heads of d channels."""

    def __init__(self, width: int, heads: int = 4, groups: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(groups, width)
        self.qkv = nn.Conv2d(width, 3 * width, 1)
        self.project = nn.Conv2d(width, width, 1)
        _zero(self.project)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        tokens = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w)
        q, k, v = tokens.transpose(-1, -2).unbind(1)  # (B,heads,HW,d) each
        weight = (q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)).softmax(-1)
        mixed = (weight @ v).transpose(-1, -2).reshape(b, c, h, w)
        out: Tensor = x + self.project(mixed)
        return out


class UNet(nn.Module):
    """F(x, u, label): U-shaped convolutional network with residual blocks.

    Args:
        channels: Channels of input and output.
        patch: Side of the squares of pixels folded into channels on entry (1 for none).
        widths: Channels of each level; each level after the first halves the image's side.
        blocks: Residual blocks of a level, on the way down and again on the way up.
        middle: Residual blocks at the bottom, between two layers of self-attention.
        classes: Number of classes; label ``classes`` means "no label".
        embedding: Size of the vector that carries time and class.
        f_max: Highest frequency of the time features.
    """

    def __init__(
        self,
        channels: int,
        patch: int = 2,
        widths: Sequence[int] = (64, 128),
        blocks: int = 2,
        middle: int = 1,
        classes: int = 10,
        embedding: int = 192,
        f_max: float = 2.0,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.time = SlowTime(embedding, f_max=f_max)
        self.label = nn.Embedding(classes + 1, embedding)
        folded = channels * patch * patch
        last = len(widths) - 1
        self.entry = nn.Conv2d(folded, widths[0], 3, padding=1)
        self.down = nn.ModuleList(
            nn.ModuleList(Residual(w, embedding) for _ in range(blocks)) for w in widths
        )
        self.shrink = nn.ModuleList(
            nn.Conv2d(widths[i], widths[i + 1], 3, stride=2, padding=1) for i in range(last)
        )
        self.middle = nn.ModuleList(Residual(widths[-1], embedding) for _ in range(middle))
        self.attention = nn.ModuleList(SelfAttention(widths[-1]) for _ in range(2))
        self.merge = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(2 * w, w, 1) for _ in range(blocks)) for w in widths
        )
        self.up = nn.ModuleList(
            nn.ModuleList(Residual(w, embedding) for _ in range(blocks)) for w in widths
        )
        self.grow = nn.ModuleList(
            nn.Conv2d(widths[i + 1], widths[i], 3, padding=1) for i in range(last)
        )
        self.norm = nn.GroupNorm(8, widths[0])
        self.exit = nn.Conv2d(widths[0], folded, 3, padding=1)
        _zero(self.exit)

    def forward(self, x: Tensor, c_noise: Tensor, label: Tensor) -> Tensor:
        """Output of the shape of ``x``; ``c_noise`` (B,) is u, ``label`` (B,) is int64."""
        e = self.embedded(c_noise, label)
        return self.output(self.features(x, e))  # (B,C,H,W)

    def embedded(self, c_noise: Tensor, label: Tensor) -> Tensor:
        """Time and class as one vector, (B,E)."""
        return F.silu(self.time(c_noise) + self.label(label))

    def output(self, h: Tensor) -> Tensor:
        """(B,W0,H/p,W/p) -> (B,C,H,W)."""
        return F.pixel_shuffle(self.exit(F.silu(self.norm(h))), self.patch)

    def features(self, x: Tensor, e: Tensor) -> Tensor:
        """The last features of the finest level, (B,W0,H/p,W/p)."""
        h: Tensor = self.entry(F.pixel_unshuffle(x, self.patch))  # (B,W0,H/p,W/p)
        kept: list[list[Tensor]] = []
        for level, stage in enumerate(stages(self.down)):
            if level:
                h = self.shrink[level - 1](h)
            kept.append([])
            for block in stage:
                h = block(h, e)
                kept[-1].append(h)
        h = self.attention[0](h)
        for block in self.middle:
            h = block(h, e)
        h = self.attention[1](h)
        merges, ups = stages(self.merge), stages(self.up)
        for level in reversed(range(len(kept))):
            if level < len(kept) - 1:
                h = F.interpolate(h, size=kept[level][-1].shape[-2:], mode="nearest")
                h = self.grow[level](h)
            for merge, block in zip(merges[level], ups[level], strict=True):
                h = block(merge(torch.cat([h, kept[level].pop()], dim=1)), e)
        return h


class FineUNet(UNet):
    """A U-Net with a path at full resolution beside it.

    The U-Net folds squares of pixels into channels. At low noise that is too coarse. With h its
    last features, a few layers at full resolution add what they see:

        F(x) = U(x) + G(x, unfolded h)

    G starts at zero.

    Args:
        fine: Channels at full resolution.
        fine_blocks: Residual blocks at full resolution, before h comes in and again after it.
        sizes: Arguments of ``UNet``.
    """

    def __init__(self, fine: int, fine_blocks: int, **sizes: Any) -> None:
        super().__init__(**sizes)
        channels, embedding = sizes["channels"], sizes["embedding"]
        unfolded = sizes["widths"][0] // self.patch**2
        self.fine_entry = nn.Conv2d(channels, fine, 3, padding=1)
        self.fine_down = nn.ModuleList(Residual(fine, embedding) for _ in range(fine_blocks))
        self.fine_merge = nn.Conv2d(fine + unfolded, fine, 1)
        self.fine_up = nn.ModuleList(Residual(fine, embedding) for _ in range(fine_blocks))
        self.fine_norm = nn.GroupNorm(8, fine)
        self.fine_exit = nn.Conv2d(fine, channels, 3, padding=1)
        _zero(self.fine_exit)

    def forward(self, x: Tensor, c_noise: Tensor, label: Tensor) -> Tensor:
        e = self.embedded(c_noise, label)
        h = self.features(x, e)  # (B,W0,H/p,W/p)
        g = self.fine_entry(x)  # (B,K,H,W)
        for block in self.fine_down:
            g = block(g, e)
        g = self.fine_merge(torch.cat([g, F.pixel_shuffle(h, self.patch)], dim=1))
        for block in self.fine_up:
            g = block(g, e)
        out: Tensor = self.output(h) + self.fine_exit(F.silu(self.fine_norm(g)))
        return out


def stages(levels: nn.ModuleList) -> list[list[nn.Module]]:
    return [list(level.children()) for level in levels]


def denoise_edm(net: UNet, x: Tensor, sigma: Tensor, label: Tensor, sigma_data: float) -> Tensor:
    """D(x; sigma) = c_skip x + c_out F(c_in x; c_noise), the estimate of the clean image.

    c_skip = s^2 / (sigma^2 + s^2), c_out = sigma s / sqrt(sigma^2 + s^2),
    c_in = 1 / sqrt(sigma^2 + s^2), c_noise = log(sigma) / 4, with s = ``sigma_data``.
    ``sigma`` has shape (B,).
    """
    total = sigma**2 + sigma_data**2  # (B,)
    c_skip, c_out, c_in = (
        c.to(x.dtype)[:, None, None, None]
        for c in (sigma_data**2 / total, sigma * sigma_data * total.rsqrt(), total.rsqrt())
    )
    raw: Tensor = net(c_in * x, sigma.log() / 4, label)  # (B,C,H,W)
    return c_skip * x + c_out * raw


class Autoencoder(nn.Module):
    """z = (E(x) - m) / s and x = G(s z + m): 1x28x28 <-> 4x7x7.

    The scalars m and s are stored, so that z has about zero mean and unit standard deviation.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self, channels: int = 1, latent: int = 4, widths: Sequence[int] = (32, 64)
    ) -> None:
        super().__init__()
        a, b = widths
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(2),
            nn.Conv2d(4 * channels, a, 3, padding=1),
            Plain(a),
            nn.Conv2d(a, b, 3, stride=2, padding=1),
            Plain(b),
            nn.GroupNorm(8, b),
            nn.SiLU(),
            nn.Conv2d(b, latent, 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(latent, b, 3, padding=1),
            Plain(b),
            Plain(b),
            nn.Conv2d(b, 4 * b, 1),
            nn.PixelShuffle(2),
            Plain(b),
            Plain(b),
            nn.GroupNorm(8, b),
            nn.SiLU(),
            nn.Conv2d(b, 4 * channels, 3, padding=1),
            nn.PixelShuffle(2),
        )
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def encode(self, x: Tensor) -> Tensor:
        """Latent z of an image."""
        out: Tensor = (self.encoder(x) - self.mean) / self.scale  # (B,4,7,7)
        return out

    def decode(self, z: Tensor) -> Tensor:
        """Image of a latent z."""
        out: Tensor = self.decoder(self.scale * z + self.mean)  # (B,1,28,28)
        return out


class Plain(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x)))))): a residual block without embedding."""

    def __init__(self, width: int, groups: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(groups, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(groups, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out


class Perceptual(nn.Module):
    """Chain of 3x3 convolutions and ReLUs, halved by averages; no normalisation layers.

    ``features`` gives one map per stage, at 28x28, 14x14, 7x7 and 3x3 for a 28x28 image.
    """

    def __init__(self, channels: int = 1, widths: Sequence[int] = (24, 48, 80, 96)) -> None:
        super().__init__()
        ends = [channels, *widths]
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(after, after, 3, padding=1),
                nn.ReLU(),
            )
            for before, after in pairwise(ends)
        )
        self.head = nn.Linear(widths[-1], 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def features(self, x: Tensor) -> list[Tensor]:
        """Feature maps, finest first."""
        maps: list[Tensor] = []
        for stage in self.stages:
            x = stage(F.avg_pool2d(x, 2) if maps else x)
            maps.append(x)
        return maps

    def logits(self, x: Tensor) -> Tensor:
        """Class scores, (B,10)."""
        out: Tensor = self.head(self.features(x)[-1].mean((2, 3)))
        return out


class Shortcut(nn.Module):
    """relu(S(x) + B(x)): a residual block with batch normalisation; S is 1x1 where sizes differ."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.skip = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.skip(x) + self.body(x))


class Judge(nn.Module):
    """Residual classifier; its pooled features feed the Frechet distance of samples to data."""

    def __init__(self, channels: int = 1, widths: Sequence[int] = (24, 64, 128)) -> None:
        super().__init__()
        self.entry = nn.Sequential(
            nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(),
        )
        self.stages = nn.Sequential(
            Shortcut(widths[0], widths[0], 1),
            *(Shortcut(a, b, 2) for a, b in pairwise(widths)),
        )
        self.head = nn.Linear(widths[-1], 10)

    def features(self, x: Tensor) -> Tensor:
        """Pooled features before the last layer, (B,D)."""
        out: Tensor = self.stages(self.entry(x)).mean((2, 3))
        return out

    def logits(self, x: Tensor) -> Tensor:
        """Class scores, (B,10)."""
        out: Tensor = self.head(self.features(x))
        return out
