"""What every diffusion model of this folder trains with: loss weights, labels, noise levels.

The error e(u) of a model depends on its noise level u. With

    loss = E e(u) / exp(q(u)) + q(u)

q, learned along, comes to log E e(u): every noise level weighs the same, however hard it is. It is
thrown away in the end (cf. EDM2, arXiv 2312.02696).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ld3.zoo.networks import frequencies, waves
from ld3.zoo.shipped import WEIGHTS

QUICK = torch.cpu._is_avx512_bf16_supported()
"""Elsewhere bfloat16 is slower (0.4 times as fast on a Xeon without it)."""
UNFINISHED = Path(__file__).parent / "unfinished"
Raw = Callable[[Tensor, Tensor, Tensor], Tensor]  # F(x, u, label)


class Doubt(nn.Module):
    """q(u): a linear function of waves in u, zero at first."""

    frequency: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequency", frequencies(16, 0.05, 2.0), persistent=False)
        self.weight = nn.Parameter(torch.zeros(33))

    def forward(self, u: Tensor) -> Tensor:
        known = torch.cat([waves(u, self.frequency), torch.ones_like(u)[:, None]], dim=1)  # (B,33)
        return known @ self.weight / math.sqrt(33)  # (B,)


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


def shortened(net: Raw) -> Raw:
    """The network computed in bfloat16 where the processor can, its weights and its answer in
    float32."""

    def raw(x: Tensor, u: Tensor, label: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=QUICK):
            out: Tensor = net(x, u, label)
        return out.float()

    return raw


def shipped(net: nn.Module, name: str) -> nn.Module:
    """``net`` with the weights to go on from: of an unfinished run, if ``UNFINISHED`` has that
    name, else of the package. Layers that these do not have stay new."""
    file = f"{name}.safetensors"
    weights = load_file(next(f / file for f in (UNFINISHED, WEIGHTS) if (f / file).exists()))
    known = {k: v.float() if v.is_floating_point() else v for k, v in weights.items()}
    net.load_state_dict({**net.state_dict(), **known})
    return net


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
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net.eval().requires_grad_(False)
