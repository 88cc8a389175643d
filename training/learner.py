"""What every diffusion model of this folder trains with: loss weights, labels, noise levels.

The error e(u) of a model depends on its noise level u. With

    loss = E e(u) / exp(q(u)) + q(u)

q, learned along, comes to log E e(u): every noise level weighs the same, however hard it is. It is
thrown away in the end (cf. EDM2, arXiv 2312.02696).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ld3.zoo.magnitude import MagnitudeUNet, Waves, bake


class Doubt(nn.Module):
    """q(u): a linear function of waves in u, zero at first."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = Waves()
        self.weight = nn.Parameter(torch.zeros(33))

    def forward(self, u: Tensor) -> Tensor:
        waves = torch.cat([self.waves(u), torch.ones_like(u)[:, None]], dim=1)  # (B,33)
        return waves @ self.weight / math.sqrt(33)  # (B,)


class Learner(nn.Module):
    """A network and, beside it, the difficulty of each noise level."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.doubt = Doubt()

    def weigh(self, error: Tensor, u: Tensor) -> Tensor:
        """The loss, from errors and noise levels (B,)."""
        q = self.doubt(u.float())
        return (error * (-q).exp() + q).mean()


def hide(label: Tensor, g: torch.Generator, none: int = 10, share: float = 0.1) -> Tensor:
    """Replace a ``share`` of the labels by ``none``, "no label"."""
    return torch.where(torch.rand(len(label), generator=g) < share, none, label)


def spread(count: int, g: torch.Generator) -> Tensor:
    """Random numbers, one in each of ``count`` equal parts of (0, 1), (count,).

    Spreading the noise levels of a batch evenly makes its loss less noisy.
    """
    return ((torch.arange(count) + torch.rand(count, generator=g)) / count).clamp(1e-6, 1 - 1e-6)


def own(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The network's weights among those of a learner."""
    return {k.removeprefix("net."): v for k, v in weights.items() if k.startswith("net.")}


def averaged(net: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """``net`` with averaged weights of its learner, ready to be used."""
    net.load_state_dict({**net.state_dict(), **own(weights)})
    if isinstance(net, MagnitudeUNet):
        bake(net)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net.eval().requires_grad_(False)
