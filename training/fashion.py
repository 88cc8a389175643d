"""Train ``fashion``: a class-conditional denoiser of Fashion-MNIST pictures.

    D(x; sigma) = c_skip x + c_out F(c_in x; log(sigma) / 4)             (EDM, arXiv 2206.00364)
    e(sigma)    = mean |D(x0 + sigma n; sigma) - x0|^2 / c_out^2
    loss        = E e(sigma) / exp(q(sigma)) + q(sigma)

q, learned along, is about log E e(sigma): every noise level weighs the same, however hard it is.
It is thrown away in the end. Seven eighths of the log sigma are from N(-0.8, 1.4^2), the rest is
uniform over [0.002, 80], so that the whole range a sampler visits is covered. The label is hidden
10 % of the time. sigma_data = 0.7 is the standard deviation of the pixels (0.706). The network
computes in bfloat16.

    python training/fashion.py                                        # open-ended
    python training/fashion.py --decay-from 90000 --until 100000      # bring it to its end
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from data import DATA, load
from long import Every, Pace, arguments, pace_of, train
from quality import grade, losses
from torch import Tensor, nn

from ld3.schedules import EDM
from ld3.zoo.magnitude import MagnitudeUNet, Waves, bake, constrain
from ld3.zoo.networks import NO_LABEL
from ld3.zoo.shipped import ClassModel

SIGMA_DATA, SIGMA_MIN, SIGMA_MAX = 0.7, 0.002, 80.0
SIZES: dict[str, Any] = {
    "channels": 1,
    "patch": 2,
    "widths": [80, 160],
    "blocks": [2, 2],
    "middle": 1,
    "heads": 4,
    "classes": 10,
    "embedding": 192,
    "f_max": 2.0,
}


class Doubt(nn.Module):
    """q(u): a linear function of waves in u = log(sigma) / 4, zero at first."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = Waves()
        self.weight = nn.Parameter(torch.zeros(33))

    def forward(self, u: Tensor) -> Tensor:
        waves = torch.cat([self.waves(u), torch.ones_like(u)[:, None]], dim=1)  # (B,33)
        return waves @ self.weight / math.sqrt(33)  # (B,)


class Learner(nn.Module):
    """The network and, beside it, the difficulty of each noise level."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.doubt = Doubt()


def hide(label: Tensor, g: torch.Generator, share: float = 0.1) -> Tensor:
    """Replace a ``share`` of the labels by "no label"."""
    return torch.where(torch.rand(len(label), generator=g) < share, NO_LABEL, label)


def spread(count: int, g: torch.Generator) -> Tensor:
    """Random numbers, one in each of ``count`` equal parts of (0, 1), (count,)."""
    return ((torch.arange(count) + torch.rand(count, generator=g)) / count).clamp(1e-6, 1 - 1e-6)


def draw_sigma(count: int, g: torch.Generator) -> Tensor:
    """Noise levels for training, (count,); spread evenly, which makes the loss less noisy."""
    low, high = math.log(SIGMA_MIN), math.log(SIGMA_MAX)
    flat = low + (high - low) * spread(count // 8, g)
    bell = -0.8 + 1.4 * torch.special.ndtri(spread(count - count // 8, g))
    return torch.cat([bell.clamp(low, high), flat]).exp()


def denoise(net: nn.Module, x: Tensor, sigma: Tensor, label: Tensor, dtype: torch.dtype) -> Tensor:
    """D(x; sigma), sigma (B,); the network's arithmetic in ``dtype``, everything else as x."""
    total = sigma**2 + SIGMA_DATA**2  # (B,)
    c_skip, c_out, c_in = (
        c.to(x.dtype)[:, None, None, None]
        for c in (SIGMA_DATA**2 / total, sigma * SIGMA_DATA * total.rsqrt(), total.rsqrt())
    )
    raw: Tensor = net((c_in * x).to(dtype), sigma.log().float() / 4, label)  # (B,C,H,W)
    return c_skip * x + c_out * raw.to(x.dtype)


def errors(
    net: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """e(sigma) of each picture and its sigma, (B,) both."""
    sigma = draw_sigma(len(x0), g)
    noisy = x0 + sigma[:, None, None, None] * torch.randn(x0.shape, generator=g)
    error = (denoise(net, noisy, sigma, hide(y, g), dtype) - x0).square().mean((1, 2, 3))
    return error * (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2, sigma


def loss(learner: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    assert isinstance(learner, Learner)
    e, sigma = errors(learner.net, x0, y, g, torch.bfloat16)
    q = learner.doubt(sigma.log() / 4)
    return (e * (-q).exp() + q).mean()


def averaged(weights: dict[str, Tensor]) -> MagnitudeUNet:
    """The network with averaged weights of a learner, ready to be used."""
    net = MagnitudeUNet(**SIZES).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    own = {k.removeprefix("net."): v for k, v in weights.items() if k.startswith("net.")}
    net.load_state_dict(own)
    bake(net)
    return net.eval().requires_grad_(False)


def as_model(net: nn.Module) -> ClassModel:
    """The denoiser as a model that ``ld3`` samples from."""
    return ClassModel(
        lambda x, t, label: denoise(net, x, t, label, torch.float32),
        EDM(),
        "x0",
        (1, 28, 28),
        torch.device("cpu"),
    )


def main() -> None:
    pace = Pace(lr=0.015, seed=3)
    parser = arguments(__doc__ or "", "fashion", pace)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the idx files")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    images, labels = load(args.data, "train")
    parts = {"test": load(args.data, "t10k"), "train": (images, labels)}

    def check(weights: dict[str, Tensor], _: int) -> dict[str, Any]:
        net = averaged(weights)
        told = losses(lambda x, y, g: errors(net, x, y, g, torch.float32)[0].mean(), parts)
        return {**grade(as_model(net), 1000), **told}

    learner = Learner(MagnitudeUNet(**SIZES))
    every = Every(check=60 * args.check_minutes)
    train(learner, loss, images, labels, pace_of(args, pace), args.run, check, constrain, every)


if __name__ == "__main__":
    main()
