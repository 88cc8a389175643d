"""Networks that generate point clouds (Luo and Hu 2021, arXiv 2103.01458), and their model.

The points of a cloud are independent given its shape z: the noise in point x at noise level beta is

    eps(x, beta, z) = x + f(x, c),    c = [beta, sin beta, cos beta, z]

where f is six layers  h -> W h * sigmoid(gate(c)) + shift(c). The shape comes from a normalising
flow F: w ~ N(0, I), z = F^-1(w). Names of parameters are those of the published files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ld3.errors import ModelError
from ld3.models import Cond
from ld3.predictions import Prediction
from ld3.schedules import Discrete
from ld3.seeds import noise
from ld3.store import digest

WIDTHS = (128, 256, 512, 256, 128)  # of the published files
SHAPES = 1 << 40  # seed s draws its shape from generator s + SHAPES, its points from generator s


@dataclass(frozen=True)
class PointConfig:
    """Sizes of a network and the noise it was trained on."""

    latent: int  # numbers in z
    flow_depth: int  # couplings, one after the other
    flow_hidden: int
    widths: tuple[int, ...] = WIDTHS
    residual: bool = True  # eps = x + f, or f alone
    steps: int = 100
    beta_first: float = 1e-4
    beta_last: float = 0.02

    @property
    def schedule(self) -> Discrete:
        return Discrete.linear(self.beta_first, self.beta_last, self.steps)

    def beta(self, t: Tensor) -> Tensor:
        """The noise added in step K t, linear between steps: what the network gets as its time."""
        slope = (self.beta_last - self.beta_first) / (self.steps - 1)
        return self.beta_first + slope * self.schedule.index(t)


class GatedLinear(nn.Module):
    """h -> (W h + b) * sigmoid(gate(c)) + shift(c): h (B, P, inner), c (B, 1, context)."""

    def __init__(self, inner: int, outer: int, context: int) -> None:
        super().__init__()
        self._layer = nn.Linear(inner, outer)
        self._hyper_bias = nn.Linear(context, outer, bias=False)
        self._hyper_gate = nn.Linear(context, outer)

    def forward(self, h: Tensor, context: Tensor) -> Tensor:
        gate = torch.sigmoid(self._hyper_gate(context))
        return torch.addcmul(self._hyper_bias(context), self._layer(h), gate)


class PointwiseNet(nn.Module):
    """The noise in each point, (B, P, 3), beta (B,), z (B, latent) -> (B, P, 3)."""

    def __init__(self, latent: int, widths: Sequence[int], residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.layers = nn.ModuleList(
            GatedLinear(inner, outer, latent + 3) for inner, outer in pairwise((3, *widths, 3))
        )

    def forward(self, x: Tensor, beta: Tensor, z: Tensor) -> Tensor:
        h, c = x, context(beta, z)
        for layer in self.layers[:-1]:
            h = F.leaky_relu(layer(h, c[:, None]), 0.01)
        h = cast(Tensor, self.layers[-1](h, c[:, None]))
        return x + h if self.residual else h


def context(beta: Tensor, z: Tensor) -> Tensor:
    """[beta, sin beta, cos beta, z]: (B,), (B, latent) -> (B, 3 + latent)."""
    beta = beta.to(z.dtype)
    return torch.cat([torch.stack([beta, beta.sin(), beta.cos()], -1), z], -1)


class Coupling(nn.Module):
    """[a, b] -> [a, b * sigmoid(s + 2) + m] with s, m from a; the halves trade places if `swap`."""

    def __init__(self, latent: int, hidden: int, swap: bool) -> None:
        super().__init__()
        self.swap, self.kept = swap, latent - latent // 2
        self.net_s_t = nn.Sequential(
            nn.Linear(self.kept, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2 * (latent - self.kept)),
        )

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Towards noise, with log |det|, (B,)."""
        a, b = self._split(z)
        scale, shift = self._scale_and_shift(a)
        return self._join(a, b * scale + shift), scale.log().sum(-1)

    def inverse(self, w: Tensor) -> Tensor:
        a, b = self._split(w)
        scale, shift = self._scale_and_shift(a)
        return self._join(a, (b - shift) / scale)

    def _scale_and_shift(self, a: Tensor) -> tuple[Tensor, Tensor]:
        s, shift = self.net_s_t(a).chunk(2, -1)
        return torch.sigmoid(s + 2), shift

    def _split(self, v: Tensor) -> tuple[Tensor, Tensor]:
        turned = torch.cat([v[:, self.kept :], v[:, : self.kept]], -1) if self.swap else v
        return turned[:, : self.kept], turned[:, self.kept :]

    def _join(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([b, a] if self.swap else [a, b], -1)


class FlowPrior(nn.Module):
    """A normalising flow between shapes z and noise w, (B, latent) both."""

    def __init__(self, latent: int, depth: int, hidden: int) -> None:
        super().__init__()
        self.chain = nn.ModuleList(Coupling(latent, hidden, i % 2 == 0) for i in range(depth))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z -> w, and log |dw/dz|, (B,)."""
        log_det = z.new_zeros(len(z))
        for coupling in self.chain:
            z, part = coupling(z)
            log_det = log_det + part
        return z, log_det

    def inverse(self, w: Tensor) -> Tensor:
        for coupling in reversed(self.chain):
            w = cast(Coupling, coupling).inverse(w)
        return w


class PointNetwork(nn.Module):
    """What sampling needs of a published file: the flow and the network of points."""

    def __init__(self, config: PointConfig) -> None:
        super().__init__()
        self.flow = FlowPrior(config.latent, config.flow_depth, config.flow_hidden)
        self.diffusion = nn.Module()
        self.diffusion.net = PointwiseNet(config.latent, config.widths, config.residual)

    def eps(self, x: Tensor, beta: Tensor, z: Tensor) -> Tensor:
        found: Tensor = self.diffusion.net(x, beta, z)  # type: ignore[operator]
        return found


@dataclass(frozen=True)
class PointModel:
    """A point-cloud network as a model; the condition of a seed is its shape z from the prior."""

    network: PointNetwork
    config: PointConfig
    points: int
    digest: str | None = None
    prediction: ClassVar[Prediction] = "eps"
    exact_time: ClassVar[bool] = True  # t becomes beta first

    @property
    def schedule(self) -> Discrete:
        return self.config.schedule

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.points, 3)

    @property
    def _weight(self) -> Tensor:
        return next(self.network.parameters())

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self._weight.dtype, torch.float32)

    @property
    def identity(self) -> str | None:
        """Weights, their dtype, the noise and the number of points; shapes are those of seeds."""
        if self.digest is None:
            return None
        return digest([self.digest, str(self._weight.dtype), str(self.config), self.points])

    def forward(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        if not isinstance(cond, Tensor):
            raise ModelError(
                "condition: got none, expected the shapes z of the prior, model.conditions(seeds)"
            )
        weight = self._weight
        beta = self.config.beta(t).to(weight.device, weight.dtype).expand(len(x))
        return self.network.eps(x.to(weight.dtype), beta, cond.to(weight.dtype)).to(x.dtype)

    def conditions(self, seeds: Sequence[int]) -> Tensor:
        weight = self._weight
        w = noise([seed + SHAPES for seed in seeds], (self.config.latent,), weight.dtype)
        with torch.no_grad():  # one by one, so that a shape has the same bits in any batch
            rows = [self.network.flow.inverse(row[None].to(weight.device)) for row in w]
        return torch.cat(rows).to(self.dtype)

    def null(self, cond: Cond) -> Cond:
        raise ModelError("guidance: got a scale for a point-cloud network, expected 1")

    def decode(self, x: Tensor) -> Tensor:
        return x
