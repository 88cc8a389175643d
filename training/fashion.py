"""Train ``fashion``: a class-conditional denoiser of Fashion-MNIST pictures.

    loss = E |D(x0 + sigma n; sigma) - x0|^2 / c_out(sigma)^2,

three quarters of the log sigma from N(-0.8, 1.4^2), one quarter uniform over [0.002, 80], so that
the whole range a sampler visits is covered.  The label is hidden 12 % of the time.  In the end some
guidance is built in (``guide.py``).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from data import load
from guide import guide
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


def draw(x0: Tensor, y: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Noisy pictures, their sigma, label and weight 1 / c_out^2."""
    sigma = draw_sigma(len(x0), g)  # (B,)
    noisy = x0 + sigma[:, None, None, None] * torch.randn(x0.shape, generator=g)  # (B,1,28,28)
    return noisy, sigma, hide(y, g), (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2


def denoise(net: nn.Module, noisy: Tensor, sigma: Tensor, label: Tensor) -> Tensor:
    assert isinstance(net, UNet)
    return denoise_edm(net, noisy, sigma, label, SIGMA_DATA)


def loss(net: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    """Weighted mean squared error of the denoiser."""
    noisy, sigma, label, weight = draw(x0, y, g)
    error = (denoise(net, noisy, sigma, label) - x0).square().mean((1, 2, 3))
    return (weight * error).mean()


def main() -> None:
    parser = arguments(__doc__ or "", "fashion", 7400, 1e-3)
    parser.add_argument("--guidance", type=float, default=1.4, help="built in; 1: none")
    parser.add_argument("--guide-iterations", type=int, default=500)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    plan = Plan(
        args.iterations, args.batch, args.lr, seed=args.seed, shards=4, threads=args.threads
    )
    data = load(args.data, "train")
    mean = train(UNet(**SIZES), loss, *data, plan, args.run / "trained")
    last = replace(plan, iterations=args.guide_iterations, lr=3e-4, seed=args.seed + 4)
    if args.guidance != 1:
        mean = guide(mean, denoise, draw, *data, args.guidance, last, args.run / "guided")
    command = f"python training/fashion.py --iterations {args.iterations} --batch {args.batch}"
    about = {
        "class": "UNet",
        "arguments": SIZES,
        "prediction": "edm",
        "sigma_data": SIGMA_DATA,
        "sigma_min": SIGMA_MIN,
        "sigma_max": SIGMA_MAX,
        "shape": [1, 28, 28],
        "guidance": args.guidance,
    }
    command += f" --lr {args.lr:g} --seed {args.seed}"
    finish(args.run, mean, plan, command, about, log=args.run / "trained" / "log.jsonl")


if __name__ == "__main__":
    main()
