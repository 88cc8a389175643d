"""Train the two classifiers: ``perceptual`` (a distance) and ``judge`` (a grader of samples).

Loss: cross-entropy with smoothed labels on pictures that are flipped and shifted at random.  No
noise is added: a distance must see the noise that too few steps leave behind.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from data import load
from loop import Plan, arguments, finish, train
from torch import Tensor, nn

from ld3.zoo.networks import Judge, Perceptual

SIZES = {"perceptual": [24, 48, 80, 96], "judge": [24, 64, 128]}


def vary(x: Tensor, shift: int, g: torch.Generator) -> Tensor:
    """Flip half the pictures, move each by up to ``shift`` pixels."""
    b, _, h, w = x.shape
    flip = torch.rand(b, 1, 1, 1, generator=g) < 0.5
    x = torch.where(flip, x.flip(-1), x)
    padded = F.pad(x, [shift] * 4, value=-1.0)
    dy, dx = torch.randint(0, 2 * shift + 1, (2, b), generator=g)
    rows = (dy[:, None] + torch.arange(h))[:, None, :, None]  # (B,1,H,1)
    columns = (dx[:, None] + torch.arange(w))[:, None, None, :]  # (B,1,1,W)
    return padded[torch.arange(b)[:, None, None, None], 0, rows, columns]  # (B,1,H,W)


def build(which: str) -> Perceptual | Judge:
    """The network ``which`` with its shipped sizes."""
    kind = {"perceptual": Perceptual, "judge": Judge}[which]
    return kind(widths=SIZES[which])


@torch.no_grad()
def accuracy(model: Perceptual | Judge, images: Tensor, labels: Tensor) -> float:
    """Share of pictures recognised."""
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

    def loss(net: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
        assert isinstance(net, Perceptual | Judge)
        return F.cross_entropy(net.logits(vary(x, 1, g)), y, label_smoothing=0.05)

    plan = Plan(args.iterations, args.batch, args.lr, decay=0.02, clip=5.0, seed=args.seed)
    mean = train(model, loss, *load(args.data, "train"), plan, args.run)
    assert isinstance(mean, Perceptual | Judge)
    score = accuracy(mean, *load(args.data, "t10k"))
    print("test accuracy", score)
    command = f"python training/classifiers.py {args.which} --iterations {args.iterations}"
    command += f" --batch {args.batch} --lr {args.lr:g} --seed {args.seed}"
    about = {
        "class": type(mean).__name__,
        "arguments": {"channels": 1, "widths": SIZES[args.which]},
        "test_accuracy": score,
    }
    finish(args.run, mean, plan, command, about)


if __name__ == "__main__":
    main()
