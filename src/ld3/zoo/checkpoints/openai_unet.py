"""The U-Net of improved-diffusion and guided-diffusion (Nichol, Dhariwal 2021), ours in code.

F(x, time, label): time is the trained step, or a quarter of it, fractions allowed. Names of modules
are those of the published files, so that their tensors load as they are.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ld3.zoo.checkpoints.layers import angles, attend, double, halve

GROUPS = 32


@dataclass(frozen=True)
class UNetConfig:
    """A network, with the names of its files; `attention` are downsampling factors."""

    model_channels: int
    channel_mult: tuple[int, ...]
    num_res_blocks: int
    attention: tuple[int, ...]
    in_channels: int = 3
    out_channels: int = 6
    num_heads: int = 1
    num_head_channels: int = 0  # if not 0, heads have this width
    num_classes: int = 0
    scale_shift: bool = False
    resblock_updown: bool = False
    new_order: bool = False

    def heads(self, channels: int) -> int:
        return channels // self.num_head_channels if self.num_head_channels else self.num_heads


class ResBlock(nn.Module):
    """skip(r(x)) + conv(silu(norm(conv(r(silu(norm(x)))) with the embedding)))."""

    def __init__(
        self,
        config: UNetConfig,
        before: int,
        after: int,
        resampling: Literal["", "up", "down"] = "",
    ) -> None:
        super().__init__()
        self.scale_shift = config.scale_shift
        self.resampling = resampling
        self.in_layers = nn.Sequential(
            nn.GroupNorm(GROUPS, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)
        )
        self.emb_layers = nn.Sequential(
            nn.SiLU(), nn.Linear(4 * config.model_channels, after * (2 if self.scale_shift else 1))
        )
        self.out_layers = nn.Sequential(
            nn.GroupNorm(GROUPS, after),
            nn.SiLU(),
            nn.Identity(),  # dropout, in training
            nn.Conv2d(after, after, 3, padding=1),
        )
        self.skip_connection = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        h = self.in_layers[1](self.in_layers[0](x))
        if self.resampling:
            resample = halve if self.resampling == "down" else double
            h, x = resample(h), resample(x)
        h = self.in_layers[2](h)
        a = self.emb_layers(emb)[:, :, None, None]
        if self.scale_shift:
            scale, shift = a.chunk(2, dim=1)
            h = torch.addcmul(shift, self.out_layers[0](h), scale + 1)
        else:
            h = self.out_layers[0](h + a)
        out: Tensor = self.skip_connection(x) + self.out_layers[3](F.silu(h))
        return out


class Attention(nn.Module):
    """x + proj(attention over pixels); two orders of the channels of `qkv` are in use."""

    def __init__(self, config: UNetConfig, channels: int) -> None:
        super().__init__()
        self.heads, self.new_order = config.heads(channels), config.new_order
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.shape
        tokens = self.qkv(self.norm(x).reshape(b, c, -1))
        if self.new_order:
            q, k, v = tokens.reshape(b, 3, self.heads, c // self.heads, -1).unbind(1)
        else:
            q, k, v = tokens.reshape(b, self.heads, 3, c // self.heads, -1).unbind(2)
        mixed: Tensor = self.proj_out(attend(q, k, v).reshape(b, c, -1))
        return x + mixed.reshape(x.shape)


class Downsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.op = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.op(x)
        return out


class Upsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(double(x))
        return out


class Stage(nn.ModuleList):
    """Layers one after the other; those that take the embedding get it."""

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        for layer in self:
            x = layer(x, emb) if isinstance(layer, ResBlock) else layer(x)
        return x


class OpenAIUNet(nn.Module):
    """F(x, time, label), all output channels; time (B,), label (B,) or None."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        base, emb = config.model_channels, 4 * config.model_channels
        self.time_embed = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        if config.num_classes:
            self.label_emb = nn.Embedding(config.num_classes, emb)
        self.input_blocks = nn.ModuleList(
            [Stage([nn.Conv2d(config.in_channels, base, 3, padding=1)])]
        )
        last = len(config.channel_mult) - 1
        now, skips = base, [base]
        for level, mult in enumerate(config.channel_mult):
            listed = 2**level in config.attention
            for _ in range(config.num_res_blocks):
                layers: list[nn.Module] = [ResBlock(config, now, base * mult)]
                now = base * mult
                if listed:
                    layers.append(Attention(config, now))
                self.input_blocks.append(Stage(layers))
                skips.append(now)
            if level < last:
                updown = config.resblock_updown
                down = ResBlock(config, now, now, "down") if updown else Downsample(now)
                self.input_blocks.append(Stage([down]))
                skips.append(now)
        self.middle_block = Stage(
            [ResBlock(config, now, now), Attention(config, now), ResBlock(config, now, now)]
        )
        self.output_blocks = nn.ModuleList()
        for level, mult in reversed(list(enumerate(config.channel_mult))):
            listed = 2**level in config.attention
            for index in range(config.num_res_blocks + 1):
                layers = [ResBlock(config, now + skips.pop(), base * mult)]
                now = base * mult
                if listed:
                    layers.append(Attention(config, now))
                if level and index == config.num_res_blocks:
                    updown = config.resblock_updown
                    layers.append(ResBlock(config, now, now, "up") if updown else Upsample(now))
                self.output_blocks.append(Stage(layers))
        self.out = nn.Sequential(
            nn.GroupNorm(GROUPS, now), nn.SiLU(), nn.Conv2d(now, config.out_channels, 3, padding=1)
        )

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def forward(self, x: Tensor, time: Tensor, label: Tensor | None = None) -> Tensor:
        half = self.config.model_channels // 2
        angle = angles(time, half, half)
        emb = self.time_embed(torch.cat([angle.cos(), angle.sin()], dim=1).to(self.dtype))
        if self.config.num_classes and label is not None:
            emb = emb + self.label_emb(label)
        skips = []
        for stage in self.input_blocks:
            x = stage(x, emb)
            skips.append(x)
        x = self.middle_block(x, emb)
        for stage in self.output_blocks:
            x = stage(torch.cat([x, skips.pop()], dim=1), emb)
        out: Tensor = self.out(x)
        return out
