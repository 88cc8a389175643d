r"""A U-Net whose layers keep the magnitude of what flows through them (cf. EDM2, arXiv 2312.02696).

Every weight vector w_j of a layer (one per output channel, n inputs) acts with length 1,

    y_j = <w_j / |w_j|, x>,

so that inputs of unit variance give outputs of unit variance, and sums, concatenations and the
nonlinearity are scaled to keep it so:

    sum(a, b; t) = ((1 - t) a + t b) / sqrt((1 - t)^2 + t^2),     silu(x) / 0.596.

No normalisation layers and no biases are left: what remains is convolutions and cheap pointwise
maps, smooth in x and in time. In training mode w is normalised on its way in; `bake` replaces each
w by w / |w| for good, and a network in eval mode uses its weights as they are.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ld3.zoo.networks import frequencies, stages, waves

SILU = 0.596
"""Root mean square of silu(x) for x ~ N(0, 1)."""


def mp_silu(x: Tensor) -> Tensor:
    return F.silu(x) * (1 / SILU)


def mp_sum(a: Tensor, b: Tensor, t: float = 0.3) -> Tensor:
    """((1 - t) a + t b) / sqrt((1 - t)^2 + t^2)."""
    scale = math.hypot(1 - t, t)
    return a * ((1 - t) / scale) + b * (t / scale)


def mp_cat(a: Tensor, b: Tensor) -> Tensor:
    """Channels of both, weighted so that each contributes equally and the mean square is kept."""
    m, n = a.shape[1], b.shape[1]
    scale = math.sqrt((m + n) / 2)
    return torch.cat([a * (scale / math.sqrt(m)), b * (scale / math.sqrt(n))], dim=1)


def unit(x: Tensor, eps: float = 1e-4) -> Tensor:
    """x over the root mean square of its channels (dimension 1)."""
    return x * (x.float().square().mean(1, keepdim=True) + eps).rsqrt().to(x.dtype)


def rows(w: Tensor, eps: float = 1e-6) -> Tensor:
    """w with rows of length 1."""
    length: Tensor = torch.linalg.vector_norm(w.flatten(1), dim=1).view(-1, *[1] * (w.ndim - 1))
    return w / (length + eps)


class Weight(nn.Module):
    """A linear map (``kernel`` 0) or a convolution (``kernel`` odd) without bias."""

    def __init__(self, before: int, after: int, kernel: int) -> None:
        super().__init__()
        shape = (after, before, kernel, kernel) if kernel else (after, before)
        self.weight = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
        w = rows(self.weight) if self.training else self.weight
        w = (w if gain is None else w * gain).to(x.dtype)
        return F.linear(x, w) if w.ndim == 2 else F.conv2d(x, w, padding=w.shape[-1] // 2)


class Waves(nn.Module):
    """u -> sqrt 2 (cos 2 pi f u, sin 2 pi f u), f in geometric steps from ``f_min`` to ``f_max``.

    With u = log(sigma) / 4 and f_max = 2 no wave has a period below 2 in log sigma.
    """

    frequency: Tensor

    def __init__(self, count: int = 16, f_min: float = 0.05, f_max: float = 2.0) -> None:
        super().__init__()
        self.register_buffer("frequency", frequencies(count, f_min, f_max), persistent=False)

    def forward(self, u: Tensor) -> Tensor:
        return math.sqrt(2) * waves(u, self.frequency)  # (B,2K)


class Block(nn.Module):
    """sum(x, conv(silu(c conv(silu(x)))); 0.3), c = 1 + gain <embedding>; then attention."""

    def __init__(self, width: int, embedding: int, heads: int = 0) -> None:
        super().__init__()
        self.first = Weight(width, width, 3)
        self.second = Weight(width, width, 3)
        self.modulate = Weight(embedding, width, 0)
        self.gain = nn.Parameter(torch.zeros(()))
        self.attention = Attention(width, heads) if heads else None

    def forward(self, x: Tensor, e: Tensor, dropout: float = 0.0) -> Tensor:
        c = 1 + self.modulate(e, self.gain)[:, :, None, None]  # (B,W,1,1)
        y = mp_silu(self.first(mp_silu(x)) * c)
        y = F.dropout(y, dropout, self.training and dropout > 0)
        x = mp_sum(x, self.second(y))
        if self.attention is not None:
            x = self.attention(x)
        return x


class Attention(nn.Module):
    """sum(x, P softmax(<q, k> / sqrt d) v; 0.3) over the pixels; q, k and v of unit magnitude."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Weight(width, 3 * width, 1)
        self.project = Weight(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        tokens = self.qkv(x).permute(0, 2, 3, 1).reshape(b, h * w, 3, self.heads, c // self.heads)
        q, k, v = _unit_last(tokens).permute(2, 0, 3, 1, 4).unbind(0)  # (B,heads,HW,d) each
        weight = (q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)).softmax(-1)
        mixed = (weight @ v).permute(0, 2, 1, 3).reshape(b, h, w, c).permute(0, 3, 1, 2)
        return mp_sum(x, self.project(mixed))


def _unit_last(x: Tensor, eps: float = 1e-4) -> Tensor:
    return x * (x.float().square().mean(-1, keepdim=True) + eps).rsqrt().to(x.dtype)


class MagnitudeUNet(nn.Module):
    """F(x, u, label) with layers that keep magnitudes.

    The arguments are those of :class:`ld3.zoo.networks.UNet`, with the number of ``blocks`` of each
    level, and ``heads`` of the attention in the last block of each stage at the bottom.
    """

    def __init__(
        self,
        channels: int,
        patch: int = 2,
        widths: Sequence[int] = (80, 160),
        blocks: Sequence[int] = (2, 2),
        middle: int = 1,
        heads: int = 4,
        classes: int = 10,
        embedding: int = 192,
        f_max: float = 2.0,
    ) -> None:
        super().__init__()
        self.patch, self.classes = patch, classes
        self.waves = Waves(f_max=f_max)
        self.time = Weight(32, embedding, 0)
        self.label = Weight(classes, embedding, 0)
        folded, last = channels * patch * patch, len(widths) - 1
        heads_of = [heads if level == last else 0 for level in range(len(widths))]
        self.entry = Weight(folded + 1, widths[0], 3)

        def stage(level: int, count: int) -> nn.ModuleList:
            return nn.ModuleList(
                # attention in the last block of a stage only
                Block(widths[level], embedding, heads_of[level] if i + 1 == count else 0)
                for i in range(count)
            )

        levels = range(len(widths))
        self.down = nn.ModuleList(stage(level, blocks[level]) for level in levels)
        self.middle = stage(last, middle)
        self.up = nn.ModuleList(stage(level, blocks[level]) for level in levels)
        self.merge = nn.ModuleList(
            nn.ModuleList(Weight(2 * widths[level], widths[level], 1) for _ in range(blocks[level]))
            for level in levels
        )
        self.shrink = nn.ModuleList(Weight(widths[i], widths[i + 1], 1) for i in range(last))
        self.grow = nn.ModuleList(Weight(widths[i + 1], widths[i], 1) for i in range(last))
        self.exit = Weight(widths[0], folded, 3)
        self.gain = nn.Parameter(torch.zeros(()))

    def embed(self, u: Tensor, label: Tensor) -> Tensor:
        """silu(sum(time, label; 1/2)); no label is a zero vector."""
        one_hot = F.one_hot(label, self.classes + 1)[:, : self.classes]  # (B,classes)
        time = self.time(self.waves(u.to(self.time.weight.dtype)))
        named = self.label(math.sqrt(self.classes) * one_hot.to(time.dtype))
        return mp_silu(mp_sum(time, named, 0.5))  # (B,E)

    def forward(self, x: Tensor, c_noise: Tensor, label: Tensor, dropout: float = 0.0) -> Tensor:
        """Output of the shape of ``x``; ``c_noise`` (B,) is u, ``label`` (B,) is int64."""
        e = self.embed(c_noise, label).to(x.dtype)
        folded = F.pixel_unshuffle(x, self.patch)  # (B,C p^2,H/p,W/p)
        h = self.entry(torch.cat([folded, torch.ones_like(folded[:, :1])], dim=1))
        kept: list[list[Tensor]] = []
        for level, stage in enumerate(stages(self.down)):
            if level:
                h = self.shrink[level - 1](F.avg_pool2d(h, 2))
            kept.append([])
            for block in stage:
                h = block(unit(h), e, dropout)
                kept[-1].append(h)
        for block in self.middle:
            h = block(h, e, dropout)
        merges, ups = stages(self.merge), stages(self.up)
        for level in reversed(range(len(kept))):
            if level < len(kept) - 1:
                h = F.interpolate(self.grow[level](h), scale_factor=2.0, mode="nearest")
            for merge, block in zip(merges[level], ups[level], strict=True):
                h = block(merge(mp_cat(h, kept[level].pop())), e, dropout)
        return F.pixel_shuffle(self.exit(h, self.gain), self.patch)  # (B,C,H,W)


@torch.no_grad()
def constrain(net: nn.Module) -> None:
    """Give every row the length sqrt n, so that its entries are about 1.

    For training, after each step of the optimiser: what is learned is not changed by it, and the
    learning rate means the same for every layer and at all times.
    """
    for layer in _weights(net):
        layer.weight.copy_(rows(layer.weight) * math.sqrt(layer.weight[0].numel()))


@torch.no_grad()
def bake(net: nn.Module) -> None:
    """Give every row the length 1: from here on the network is used in eval mode."""
    for layer in _weights(net):
        layer.weight.copy_(rows(layer.weight))


def _weights(net: nn.Module) -> list[Weight]:
    return [layer for layer in net.modules() if isinstance(layer, Weight)]
