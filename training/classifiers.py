"""Train the classifiers of clothes: ``perceptual`` (a distance) and ``judge`` (metrics).

Loss: cross-entropy with smoothed labels on images that are flipped and shifted at random.

``perceptual`` sees no noise: a distance must notice what too few steps leave behind. ``judge`` sees
noise and blur so weak that people do not (``disturb``). Without that, noise that nobody sees moves
the Fréchet distance as much as faults that everybody sees.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from data import load
from learner import QUICK
from loop import Plan, arguments, finish, train
from torch import Tensor, nn

from ld3.zoo.networks import Judge, Perceptual

SIZES = {"perceptual": [24, 48, 80, 96], "judge": [24, 64, 128]}


def vary(x: Tensor, g: torch.Generator) -> Tensor:
    """Flip half the images, move each by up to one pixel."""
    b, c, h, w = x.shape
    flip = torch.rand(b, 1, 1, 1, generator=g) < 0.5
    x = torch.where(flip, x.flip(-1), x)
    padded = F.pad(x, [1] * 4, value=-1.0)
    dy, dx = torch.randint(0, 3, (2, b), generator=g)
    rows = (dy[:, None] + torch.arange(h))[:, None, :, None]  # (B,1,H,1)
    columns = (dx[:, None] + torch.arange(w))[:, None, None, :]  # (B,1,1,W)
    layers = torch.arange(c)[None, :, None, None]
    return padded[torch.arange(b)[:, None, None, None], layers, rows, columns]  # (B,C,H,W)


def disturb(x: Tensor, g: torch.Generator) -> Tensor:
    """Blur or sharpen each image by up to a quarter, add noise of up to six in 256 grey levels."""
    side = torch.tensor([0.25, 0.5, 0.25])
    kernel = (side[:, None] * side).expand(x.shape[1], 1, 3, 3)
    blurred = F.conv2d(F.pad(x, [1] * 4, "replicate"), kernel, groups=x.shape[1])
    weight = torch.rand(len(x), 1, 1, 1, generator=g) / 2 - 0.25
    level = 0.05 * torch.rand(len(x), 1, 1, 1, generator=g)
    x = x + weight * (blurred - x) + level * torch.randn(x.shape, generator=g)
    return x.clamp(-1, 1)


def build(which: str) -> Perceptual | Judge:
    """The network ``which`` with its shipped sizes."""
    kind = Perceptual if which == "perceptual" else Judge
    return kind(widths=SIZES[which])


@torch.no_grad()
def accuracy(model: Perceptual | Judge, images: Tensor, labels: Tensor) -> float:
    """Share of images recognised."""
    hits = sum(
        int((model.logits(x).argmax(1) == y).sum())
        for x, y in zip(images.split(500), labels.split(500), strict=True)
    )
    return hits / len(images)


def main() -> None:
    parser = arguments(__doc__ or "", "<name>", 1500, 2e-3)
    parser.add_argument("which", choices=sorted(SIZES))
    args = parser.parse_args()
    if args.run.name == "<name>":
        args.run = args.run.with_name(args.which)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    model = build(args.which)
    data, unseen = load(args.data, "train"), load(args.data, "t10k")

    def loss(net: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
        assert isinstance(net, Perceptual | Judge)
        x = vary(x, g)
        if args.which == "judge":
            x = disturb(x, g)
        with torch.autocast("cpu", torch.bfloat16, enabled=QUICK):
            logits = net.logits(x)
        return F.cross_entropy(logits.float(), y, label_smoothing=0.05)

    plan = Plan(args.iterations, args.batch, args.lr, decay=0.02, clip=5.0, seed=args.seed)
    mean = train(model, loss, *data, plan, args.run)
    assert isinstance(mean, Perceptual | Judge)
    score = accuracy(mean, *unseen)
    print("test accuracy", score)
    command = f"python training/classifiers.py {args.which} --iterations {args.iterations}"
    command += f" --batch {args.batch} --lr {args.lr:g} --seed {args.seed}"
    about = {
        "class": type(mean).__name__,
        "arguments": {"widths": SIZES[args.which]},
        "test_accuracy": score,
    }
    finish(args.run, mean, plan, command, about)


if __name__ == "__main__":
    main()
