"""Train ``fashion``: a class-conditional denoiser of Fashion-MNIST pictures.

    loss = E |D(x0 + sigma n; sigma) - x0|^2 / c_out(sigma)^2,

three quarters of the log sigma from N(-0.8, 1.4^2), one quarter uniform over [0.002, 80], so that
the whole range a sampler visits is covered.  The label is hidden 12 % of the time.
"""

from __future__ import annotations

import math

import torch
from data import load
from loop import Plan, arguments, finish, train
from torch import Tensor, nn

from ld3.zoo.networks import NO_LABEL, UNet, denoise_edm

SIGMA_DATA, SIGMA_MIN, SIGMA_MAX = 0.5, 0.002, 80.0
SIZES = {
    "channels": 1,
    "patch": 2,
    "widths": [64, 128],
    "blocks": 2,
    "middle": 1,
    "classes": 10,
    "embedding": 192,
    "f_max": 2.0,
}


def hide(label: Tensor, g: torch.Generator, share: float = 0.12) -> Tensor:
    """Replace a ``share`` of the labels by "no label"."""
    return torch.where(torch.rand(len(label), generator=g) < share, NO_LABEL, label)


def spread(count: int, g: torch.Generator) -> Tensor:
    """Random numbers, one in each of ``count`` equal parts of (0, 1), (count,)."""
    return ((torch.arange(count) + torch.rand(count, generator=g)) / count).clamp(1e-6, 1 - 1e-6)


def draw_sigma(count: int, g: torch.Generator) -> Tensor:
    """Noise levels for training, (count,); spread evenly, which makes the loss less noisy."""
    low, high = math.log(SIGMA_MIN), math.log(SIGMA_MAX)
    flat = low + (high - low) * spread(count // 4, g)
    bell = -0.8 + 1.4 * torch.special.ndtri(spread(count - count // 4, g))
    return torch.cat([bell.clamp(low, high), flat]).exp()


def loss(net: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    """Weighted mean squared error of the denoiser."""
    assert isinstance(net, UNet)
    sigma = draw_sigma(len(x0), g)  # (B,)
    noisy = x0 + sigma[:, None, None, None] * torch.randn(x0.shape, generator=g)  # (B,1,28,28)
    error = (denoise_edm(net, noisy, sigma, hide(y, g), SIGMA_DATA) - x0).square().mean((1, 2, 3))
    weight = (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2  # 1 / c_out^2
    return (weight * error).mean()


def main() -> None:
    args = arguments(__doc__ or "", "fashion", 3600, 1e-3).parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    plan = Plan(
        args.iterations, args.batch, args.lr, seed=args.seed, shards=4, threads=args.threads
    )
    mean = train(UNet(**SIZES), loss, *load(args.data, "train"), plan, args.run)
    command = f"python training/fashion.py --iterations {args.iterations} --batch {args.batch}"
    about = {
        "class": "UNet",
        "arguments": SIZES,
        "prediction": "edm",
        "sigma_data": SIGMA_DATA,
        "sigma_min": SIGMA_MIN,
        "sigma_max": SIGMA_MAX,
        "shape": [1, 28, 28],
    }
    finish(args.run, mean, plan, command + f" --lr {args.lr:g} --seed {args.seed}", about)


if __name__ == "__main__":
    main()
