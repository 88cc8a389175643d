"""Train ``fashion-flow``: a class-conditional rectified flow.

    x_t = (1 - t) x0 + t n,    loss = E |F(x_t; t) - (n - x0)|^2,

half of the t logit-normal, half uniform on (0, 1).  The label is hidden 12 % of the time.
"""

from __future__ import annotations

import torch
from data import load
from fashion import hide, spread
from loop import Plan, arguments, finish, train
from torch import Tensor, nn

from ld3.zoo.networks import UNet

SIZES = {
    "channels": 1,
    "patch": 2,
    "widths": [56, 104],
    "blocks": 2,
    "middle": 1,
    "classes": 10,
    "embedding": 160,
    "f_max": 2.0,
}


def loss(net: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    """Mean squared error of the velocity."""
    b = len(x0)
    bell = torch.special.ndtri(spread(b // 2, g)).sigmoid()
    t = torch.cat([bell, spread(b - b // 2, g)])  # (B,)
    noise = torch.randn(x0.shape, generator=g)  # (B,1,28,28)
    s = t[:, None, None, None]
    v = net((1 - s) * x0 + s * noise, t, hide(y, g))
    return (v - (noise - x0)).square().mean()


def main() -> None:
    args = arguments(__doc__ or "", "fashion-flow", 2000, 1e-3).parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    plan = Plan(
        args.iterations, args.batch, args.lr, seed=args.seed, shards=4, threads=args.threads
    )
    mean = train(UNet(**SIZES), loss, *load(args.data, "train"), plan, args.run)
    command = f"python training/flow.py --iterations {args.iterations} --batch {args.batch}"
    about = {
        "class": "UNet",
        "arguments": SIZES,
        "prediction": "flow velocity, v = noise - data, x_t = (1 - t) data + t noise, c_noise = t",
        "shape": [1, 28, 28],
    }
    finish(args.run, mean, plan, command + f" --lr {args.lr:g} --seed {args.seed}", about)


if __name__ == "__main__":
    main()
