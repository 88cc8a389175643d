"""The networks of Karras et al. 2022 (EDM): DDPM++, NCSN++ and ADM, with four preconditioners.

    D(x; s) = c_skip x + c_out F(c_in x; c_noise)

| class          | c_skip     | c_out           | c_in          | c_noise                    |
|----------------|------------|-----------------|---------------|----------------------------|
| `EDMPrecond`   | d²/(s²+d²) | s d/sqrt(s²+d²) | 1/sqrt(s²+d²) | log(s)/4                   |
| `VPPrecond`    | 1          | -s              | 1/sqrt(s²+1)  | 999 t with s = sigma_VP(t) |
| `VEPrecond`    | 1          | s               | 1             | log(s/2)                   |
| `iDDPMPrecond` | 1          | -s              | 1/sqrt(s²+1)  | 999 - j, u_j next to s     |

`SongUNet` is DDPM++ and NCSN++, `DhariwalUNet` is ADM: one network, two styles of blocks. Names of
modules are those of the published files, so that their tensors load as they are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ld3.errors import ModelError
from ld3.zoo.checkpoints.layers import angles, attend, check_counts, double, halve

PRECONDS = ("EDMPrecond", "VPPrecond", "VEPrecond", "iDDPMPrecond")
Resampling = Literal["", "up", "down"]
ADM: dict[str, Any] = {
    "model_channels": 192, "channel_mult": (1, 2, 3, 4), "num_blocks": 3,
    "attn_resolutions": (32, 16, 8),
}  # fmt: skip
"""What the repository takes for `DhariwalUNet`, where that differs."""


@dataclass(frozen=True)
class EDMConfig:
    """A network of EDM's repository, with the names of its files."""

    img_resolution: int
    img_channels: int = 3
    label_dim: int = 0
    model_type: Literal["SongUNet", "DhariwalUNet"] = "SongUNet"
    precond: Literal["EDMPrecond", "VPPrecond", "VEPrecond", "iDDPMPrecond"] = "EDMPrecond"
    sigma_data: float = 0.5
    model_channels: int = 128
    channel_mult: tuple[int, ...] = (1, 2, 2, 2)
    channel_mult_emb: int = 4
    num_blocks: int = 4
    attn_resolutions: tuple[int, ...] = (16,)
    augment_dim: int = 0
    embedding_type: Literal["positional", "fourier"] = "positional"
    channel_mult_noise: int = 1
    encoder_type: Literal["standard", "residual"] = "standard"
    resample_filter: tuple[int, ...] = (1, 1)

    @property
    def adm(self) -> bool:
        return self.model_type == "DhariwalUNet"

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.img_channels, self.img_resolution, self.img_resolution)

    @property
    def out_channels(self) -> int:
        return self.img_channels * (2 if self.precond == "iDDPMPrecond" else 1)

    @classmethod
    def read(cls, words: Mapping[str, Any]) -> "EDMConfig":
        """From the configuration in a file; what it does not say is what the repository takes."""
        defaults = ADM if words.get("model_type") == "DhariwalUNet" else {}
        known = {field.name for field in fields(cls)}
        given = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in words.items()
            if name in known and value is not None
        }
        if words.get("decoder_type", "standard") != "standard":
            raise ModelError(
                f"checkpoint: got decoder_type {words['decoder_type']!r}, expected 'standard', "
                "which all published EDM files have"
            )
        try:
            config = cls(**{**defaults, **given})
        except TypeError as error:
            raise ModelError(
                f"checkpoint: got a configuration that is not whole ({error}), expected "
                "img_resolution at least"
            ) from None
        config.check()
        return config

    def check(self) -> None:
        """Numbers that a network can be built from."""
        for name in ("channel_mult", "attn_resolutions", "resample_filter"):
            if not isinstance(getattr(self, name), tuple):
                raise ModelError(
                    f"checkpoint: got {name} {getattr(self, name)!r}, expected a list of numbers"
                )
        if not isinstance(self.sigma_data, int | float) or not 0 < self.sigma_data < 1e6:
            raise ModelError(
                f"checkpoint: got sigma_data {self.sigma_data!r}, expected a positive number"
            )
        counts = {
            "img_resolution": (self.img_resolution, 4, 4096),
            "img_channels": (self.img_channels, 1, 64),
            "label_dim": (self.label_dim, 0, 100_000),
            "model_channels": (self.model_channels, 8, 4096),
            "channel_mult_emb": (self.channel_mult_emb, 1, 64),
            "channel_mult_noise": (self.channel_mult_noise, 1, 64),
            "num_blocks": (self.num_blocks, 1, 64),
            "augment_dim": (self.augment_dim, 0, 4096),
            "len(channel_mult)": (len(self.channel_mult), 1, 12),
            "len(resample_filter)": (len(self.resample_filter), 2, 4),
        }
        counts |= {f"channel_mult[{i}]": (n, 1, 64) for i, n in enumerate(self.channel_mult)}
        counts |= {f"resample_filter[{i}]": (n, 1, 64) for i, n in enumerate(self.resample_filter)}
        check_counts("checkpoint", counts)
        for name, word, known in (
            ("precond", self.precond, PRECONDS),
            ("model_type", self.model_type, ("SongUNet", "DhariwalUNet")),
            ("embedding_type", self.embedding_type, ("positional", "fourier")),
            ("encoder_type", self.encoder_type, ("standard", "residual")),
        ):
            if word not in known:
                raise ModelError(
                    f"checkpoint: got {name} {word!r}, expected one of {', '.join(known)}"
                )


class Conv(nn.Module):
    """r(x), then a convolution: r halves or doubles the image; without a kernel r alone."""

    weight: Tensor | None
    bias: Tensor | None
    resample_filter: Tensor

    def __init__(
        self,
        before: int,
        after: int,
        kernel: int,
        resampling: Resampling = "",
        taps: Sequence[int] = (1, 1),
    ) -> None:
        super().__init__()
        self.resampling = resampling
        self.plain = tuple(taps) == (1, 1)  # then the filter is a mean, or repeats pixels
        self.weight = self.bias = None
        if kernel:
            self.weight = nn.Parameter(torch.empty(after, before, kernel, kernel))
            self.bias = nn.Parameter(torch.empty(after))
            bound = 1 / math.sqrt(before * kernel * kernel)
            nn.init.uniform_(self.weight, -bound, bound)
            nn.init.uniform_(self.bias, -bound, bound)
        if resampling:
            self.register_buffer("resample_filter", square_filter(taps))

    def resample(self, x: Tensor, padding: int | None = None) -> Tensor:
        if not self.resampling:
            return x
        if self.plain and padding is None:
            return halve(x) if self.resampling == "down" else double(x)
        kernel = self.resample_filter.to(x.dtype).expand(x.shape[1], 1, -1, -1)
        if padding is None:
            padding = (kernel.shape[-1] - 1) // 2
        if self.resampling == "down":
            return F.conv2d(x, kernel, stride=2, padding=padding, groups=x.shape[1])
        return F.conv_transpose2d(x, 4 * kernel, stride=2, padding=padding, groups=x.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        x = self.resample(x)
        if self.weight is None:
            return x
        return F.conv2d(x, self.weight, self.bias, padding=self.weight.shape[-1] // 2)


class ConvThenHalve(Conv):
    """The convolution first, on an image padded for both, then the filter, then the bias."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None and self.bias is not None
        padding = (self.resample_filter.shape[-1] - 1) // 2 + self.weight.shape[-1] // 2
        y = F.conv2d(x, self.weight, padding=padding)
        return self.resample(y, padding=0) + self.bias[:, None, None]


def square_filter(taps: Sequence[int]) -> Tensor:
    """f f^T / (sum f)^2, (1, 1, n, n); on the CPU, also while a network is built without memory."""
    total = sum(taps) ** 2
    return torch.tensor([[[[a * b / total for b in taps] for a in taps]]], device="cpu")


def group_norm(channels: int, eps: float) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, channels // 4), channels, eps=eps)


class Block(nn.Module):
    """A residual block with the embedding inside, resampling and attention if need be.

        h = conv1(silu(norm1(conv0(r(silu(norm0(x))))) with the embedding))
        x = (h + skip(r(x))) g,   then  x = (proj(attention(qkv(norm2(x)))) + x) g

    Song: the embedding is added before norm1, g = sqrt(1/2). ADM: it scales and shifts after norm1,
    g = 1.
    """

    def __init__(
        self,
        config: EDMConfig,
        before: int,
        after: int,
        *,
        resampling: Resampling = "",
        attention: bool = False,
        joins: bool = False,
    ) -> None:
        super().__init__()
        adm, taps = config.adm, config.resample_filter
        eps = 1e-5 if adm else 1e-6
        self.adm = adm
        self.gain = 1.0 if adm else math.sqrt(0.5)
        self.joins = joins  # takes the last output of the encoder beside x
        self.heads = 0 if not attention else (after // 64 if adm else 1)
        self.norm0 = group_norm(before, eps)
        self.conv0 = Conv(before, after, 3, resampling, taps)
        embedding = config.model_channels * config.channel_mult_emb
        self.affine = nn.Linear(embedding, after * (2 if adm else 1))
        self.norm1 = group_norm(after, eps)
        self.conv1 = Conv(after, after, 3)
        self.skip: Conv | None = None
        if before != after or resampling:
            kernel = 1 if before != after or not adm else 0
            self.skip = Conv(before, after, kernel, resampling, taps)
        if self.heads:
            self.norm2 = group_norm(after, eps)
            self.qkv = Conv(after, 3 * after, 1)
            self.proj = Conv(after, after, 1)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        h = self.conv0(F.silu(self.norm0(x)))  # (B,C,H,W)
        a = self.affine(emb)[:, :, None, None]
        if self.adm:
            scale, shift = a.chunk(2, dim=1)
            h = F.silu(torch.addcmul(shift, self.norm1(h), scale + 1))
        else:
            h = F.silu(self.norm1(h + a))
        h = self.conv1(h) + (x if self.skip is None else self.skip(x))
        x = h if self.adm else h * self.gain
        if not self.heads:
            return x
        b, c, height, width = x.shape
        tokens = self.qkv(self.norm2(x)).reshape(b, self.heads, c // self.heads, 3, -1)
        mixed = attend(*tokens.unbind(3)).reshape(b, c, height, width)
        out: Tensor = self.proj(mixed) + x
        return out if self.adm else out * self.gain


class Fourier(nn.Module):
    """Frequencies that the file holds."""

    freqs: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("freqs", 16 * torch.linspace(-1, 1, count, device="cpu"))


class EDMNetwork(nn.Module):
    """F(x, c_noise, labels): SongUNet or DhariwalUNet.

    Labels are one-hot (B, label_dim) or None, which is zeros.
    """

    def __init__(self, config: EDMConfig) -> None:
        super().__init__()
        self.config = config
        base = config.model_channels
        width = base if config.adm else base * config.channel_mult_noise
        emb = base * config.channel_mult_emb
        if config.embedding_type == "fourier" and not config.adm:
            self.map_noise = Fourier(width // 2)
        if config.label_dim and not config.adm:
            self.map_label = nn.Linear(config.label_dim, width)
        if config.augment_dim:  # of training: absent, or zero, when sampling
            self.map_augment = nn.Linear(config.augment_dim, width, bias=False)
        self.map_layer0, self.map_layer1 = nn.Linear(width, emb), nn.Linear(emb, emb)
        if config.label_dim and config.adm:  # in the order of the files
            self.map_label = nn.Linear(config.label_dim, emb, bias=False)
        self.noise_channels = width
        self._build()

    def _build(self) -> None:
        config = self.config
        sizes = [config.img_resolution >> level for level in range(len(config.channel_mult))]
        widths = [config.model_channels * mult for mult in config.channel_mult]
        now = widths[0] if config.adm else config.model_channels
        aux = config.img_channels
        self.enc = nn.ModuleDict()
        skips: list[int] = []
        for level, (size, width) in enumerate(zip(sizes, widths, strict=True)):
            at, listed = f"{size}x{size}", size in config.attn_resolutions
            if level == 0:
                self.enc[f"{at}_conv"] = Conv(aux, now, 3)
            else:
                self.enc[f"{at}_down"] = Block(config, now, now, resampling="down")
                if config.encoder_type == "residual" and not config.adm:
                    taps = config.resample_filter
                    self.enc[f"{at}_aux_residual"] = ConvThenHalve(aux, now, 3, "down", taps)
                    aux = now
            skips.append(now)
            for index in range(config.num_blocks):
                self.enc[f"{at}_block{index}"] = Block(config, now, width, attention=listed)
                now = width
                skips.append(now)
        self.dec = nn.ModuleDict()
        for level, (size, width) in reversed(list(enumerate(zip(sizes, widths, strict=True)))):
            at, listed = f"{size}x{size}", size in config.attn_resolutions
            if level == len(sizes) - 1:
                self.dec[f"{at}_in0"] = Block(config, now, now, attention=True)
                self.dec[f"{at}_in1"] = Block(config, now, now)
            else:
                self.dec[f"{at}_up"] = Block(config, now, now, resampling="up")
            for index in range(config.num_blocks + 1):
                attention = listed and (config.adm or index == config.num_blocks)
                joined = now + skips.pop()
                block = Block(config, joined, width, attention=attention, joins=True)
                self.dec[f"{at}_block{index}"] = block
                now = width
        if config.adm:
            self.out_norm = group_norm(now, 1e-5)
            self.out_conv = Conv(now, config.out_channels, 3)
        else:
            self.dec[f"{at}_aux_norm"] = group_norm(now, 1e-6)
            self.dec[f"{at}_aux_conv"] = Conv(now, config.out_channels, 3)

    @property
    def dtype(self) -> torch.dtype:
        return self.map_layer0.weight.dtype

    def embed(self, c_noise: Tensor, labels: Tensor | None) -> Tensor:
        """Noise level and labels as one vector, (B,E)."""
        half = self.noise_channels // 2
        if self.config.adm:
            angle = angles(c_noise, half, half)
            e = torch.cat([angle.cos(), angle.sin()], dim=1).to(self.dtype)
            e = self.map_layer1(F.silu(self.map_layer0(e)))
            if labels is not None and self.config.label_dim:
                e = e + self.map_label(labels.to(self.dtype))
            return F.silu(e)
        if self.config.embedding_type == "fourier":
            angle = 2 * math.pi * self.map_noise.freqs.to(c_noise.dtype) * c_noise[:, None]
        else:
            angle = angles(c_noise, half, half - 1)
        e = torch.cat([angle.sin(), angle.cos()], dim=1).to(self.dtype)
        if self.config.label_dim:
            if labels is None:
                labels = e.new_zeros(len(e), self.config.label_dim)
            e = e + self.map_label(labels.to(self.dtype) * math.sqrt(self.config.label_dim))
        return F.silu(self.map_layer1(F.silu(self.map_layer0(e))))

    def forward(self, x: Tensor, c_noise: Tensor, labels: Tensor | None = None) -> Tensor:
        emb = self.embed(c_noise, labels)
        aux = x
        skips: list[Tensor] = []
        for layer in self.enc.values():
            if isinstance(layer, ConvThenHalve):
                x = aux = skips[-1] = (x + layer(aux)) * math.sqrt(0.5)
            else:
                x = layer(x, emb) if isinstance(layer, Block) else layer(x)
                skips.append(x)
        for layer in self.dec.values():
            if isinstance(layer, Block):
                x = layer(torch.cat([x, skips.pop()], dim=1) if layer.joins else x, emb)
        last = [self.out_norm, self.out_conv] if self.config.adm else [*self.dec.values()][-2:]
        out: Tensor = last[1](F.silu(last[0](x)))
        return out


class Preconditioned(nn.Module):
    """D(x; sigma, labels) around F: its outer arithmetic is in float32 or wider.

    The time of iDDPM's preconditioner is rounded to a table in the original, which leaves no
    gradient. Here it runs linearly in log sigma from one entry to the next, and equals the
    original at the entries; `rounded` gives the original's values, with the gradients of this form.
    """

    u: Tensor

    def __init__(self, config: EDMConfig) -> None:
        super().__init__()
        self.config = config
        if config.precond == "iDDPMPrecond":
            self.register_buffer("u", iddpm_levels())
        self.model = EDMNetwork(config)

    def net_time(self, sigma: Tensor, rounded: bool = False) -> Tensor:
        """c_noise."""
        match self.config.precond:
            case "EDMPrecond":
                return sigma.log() / 4
            case "VPPrecond":
                root = torch.sqrt(0.01 + 39.8 * torch.log1p(sigma**2))
                return 999 * (root - 0.1) / 19.9
            case "VEPrecond":
                return (sigma / 2).log()
        levels = self.u[:-1].to(sigma.dtype).log().flip(0)  # rising; the last entry is zero
        log = sigma.log()
        left = torch.searchsorted(levels, log.detach()).sub(1).clamp(0, len(levels) - 2)
        start, end = levels[left], levels[left + 1]
        place = left + (log - start) / (end - start)  # 999 - j: the place in the flipped table
        place = place.clamp(-1, len(levels) - 1)
        if not rounded:
            return place
        nearest = (sigma.detach()[:, None] - self.u.to(sigma.dtype)).abs().argmin(dim=1)
        return place + (len(levels) - 1 - nearest - place.detach())

    def raw(
        self, x: Tensor, sigma: Tensor, labels: Tensor | None = None, rounded: bool = False
    ) -> Tensor:
        """F(c_in x; c_noise), all channels; sigma (B,)."""
        if self.config.precond == "EDMPrecond":
            c_in = (sigma**2 + self.config.sigma_data**2).rsqrt()
        elif self.config.precond == "VEPrecond":
            c_in = torch.ones_like(sigma)
        else:
            c_in = (sigma**2 + 1).rsqrt()
        inner = (c_in[:, None, None, None] * x).to(self.model.dtype)
        out: Tensor = self.model(inner, self.net_time(sigma, rounded), labels)
        return out.to(x.dtype)

    def forward(
        self, x: Tensor, sigma: Tensor, labels: Tensor | None = None, rounded: bool = False
    ) -> Tensor:
        out = self.raw(x, sigma, labels, rounded)[:, : self.config.img_channels]
        s = sigma[:, None, None, None]
        if self.config.precond == "EDMPrecond":
            d = self.config.sigma_data
            total = s**2 + d**2
            return d**2 / total * x + s * d * total.rsqrt() * out
        return x + (s if self.config.precond == "VEPrecond" else -s) * out


def iddpm_levels(steps: int = 1000) -> Tensor:
    """u_steps = 0, u_{j-1} = sqrt((u_j^2 + 1) / max(a_{j-1}/a_j, 0.001) - 1)."""

    def a(j: int) -> float:
        return math.sin(math.pi * j / (2 * steps * 1.008)) ** 2

    levels = [0.0]
    for j in range(steps, 0, -1):
        levels.append(math.sqrt((levels[-1] ** 2 + 1) / max(a(j - 1) / a(j), 0.001) - 1))
    return torch.tensor(levels[::-1], dtype=torch.float64, device="cpu").float()
