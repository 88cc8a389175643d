"""What the scripts of the models of Fashion-MNIST's pixels do, given network and loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from data import DATA, load
from learner import Learner, averaged, shipped
from long import Every, Loss, Pace, arguments, pace_of, train
from quality import grade, losses
from torch import Tensor, nn

import ld3


def train_on_clothes(
    text: str,
    name: str,
    pace: Pace,
    build: Callable[[], nn.Module],
    loss: Loss,
    error: Callable[[nn.Module, Tensor, Tensor, torch.Generator], Tensor],
    as_model: Callable[[nn.Module], ld3.Model],
) -> None:
    """Read the options, train, and check the averaged network now and then."""
    parser = arguments(text, name, pace)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the idx files")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    images, labels = load(args.data, "train")
    parts = {"test": load(args.data, "t10k"), "train": (images, labels)}

    def check(weights: dict[str, Tensor], _: int) -> dict[str, Any]:
        net = averaged(build(), weights)
        found = losses(lambda x, y, g: error(net, x, y, g), parts)
        return {**grade(as_model(net), 1000), **found}

    net = shipped(build(), name) if args.go_on else build()
    every = Every(check=60 * args.check_minutes)
    train(Learner(net), loss, images, labels, pace_of(args, pace), args.run, check, every)
