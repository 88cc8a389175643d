"""Give ``fashion`` a little guidance of its own, after ``fashion.py``.

A denoiser trained for hours, not days, mixes up classes that look alike.  Guidance mends that, so a
copy of the network learns to give by itself what the trained one, frozen, gives with guidance w:

    D_new(x; sigma, c)  ->  D(x; sigma, none) + w (D(x; sigma, c) - D(x; sigma, none)),

on noisy training pictures, weighted as in ``fashion.py``; without a label it stays what it was.
The targets carry no noise, so a few hundred iterations are enough (cf. Meng et al. 2023,
arXiv 2210.03142).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from data import load
from fashion import SIGMA_DATA, draw_sigma, hide
from loop import Plan, arguments, finish, train
from torch import Tensor, nn

from ld3.zoo.networks import NO_LABEL, UNet, denoise_edm


def main() -> None:
    parser = arguments(__doc__ or "", "fashion-guided", 500, 3e-4)
    parser.add_argument("--teacher", type=Path, default=Path("runs/fashion"), help="a finished run")
    parser.add_argument("--guidance", type=float, default=1.4)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    final = torch.load(args.teacher / "final.pt", weights_only=True)
    about = json.loads(final["about"])
    teacher, student = (UNet(**about["arguments"]) for _ in range(2))
    teacher.load_state_dict(final["weights"])
    student.load_state_dict(final["weights"])
    teacher.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def loss(net: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
        assert isinstance(net, UNet)
        sigma = draw_sigma(len(x0), g)  # (B,)
        noisy = x0 + sigma[:, None, None, None] * torch.randn(x0.shape, generator=g)  # (B,1,28,28)
        label = hide(y, g)
        with torch.no_grad():
            both = torch.cat([label, torch.full_like(label, NO_LABEL)])
            twice, sigmas = torch.cat([noisy, noisy]), torch.cat([sigma, sigma])
            told, free = denoise_edm(teacher, twice, sigmas, both, SIGMA_DATA).chunk(2)
            target = torch.lerp(free, told, args.guidance)
        error = (denoise_edm(net, noisy, sigma, label, SIGMA_DATA) - target).square()
        weight = (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2  # 1 / c_out^2
        return (weight * error.mean((1, 2, 3))).mean()

    plan = Plan(
        args.iterations, args.batch, args.lr, seed=args.seed, shards=4, threads=args.threads
    )
    mean = train(student, loss, *load(args.data, "train"), plan, args.run)
    command = f"python training/guide.py --iterations {args.iterations} --lr {args.lr:g}"
    command += f" --guidance {args.guidance:g} --seed {args.seed}"
    finish(
        args.run,
        mean,
        plan,
        f"{about['training']['command']}; {command}",
        {**{k: v for k, v in about.items() if k != "training"}, "guidance": args.guidance},
    )


if __name__ == "__main__":
    main()
