"""Train ``road``: a class-conditional denoiser of cars and trucks, the colour model.

DDPM++ in a small configuration (``song.py`` starts it) with EDM's preconditioning (``edm.py``),
log sigma from N(-1.2, 1.2^2) and sigma_data 0.5, as EDM has it for CIFAR-10 (the pixels' deviation
is 0.503), on the classes automobile and truck, 10,000 images of 32x32, flipped at random. The
loss is that of ``learner.py``. As in EDM's class-conditional networks no label is ever hidden.

    python training/colour.py --data FOLDER          # the folder that ``cifar.py`` speaks of
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from cifar import CLASSES, ROAD, load
from edm import Edm
from learner import Learner, averaged, shortened
from long import Every, Pace, arguments, pace_of, train
from quality import losses, sheet
from song import song_unet
from torch import Tensor, nn

from ld3.schedules import EDM
from ld3.zoo.checkpoints.edm import EDMNetwork
from ld3.zoo.shipped import ClassModel

NOISE = Edm(sigma_data=0.5, mean=-1.2, std=1.2)
SIZES: dict[str, Any] = {
    "img_resolution": 32,
    "img_channels": 3,
    "label_dim": len(ROAD),
    "model_channels": 32,
    "channel_mult": [1, 2, 4],
    "num_blocks": 1,
    "attn_resolutions": [8],
}
ABOUT: dict[str, Any] = {
    "class": "SongUNet",
    "arguments": SIZES,
    "prediction": "edm",
    "sigma_data": NOISE.sigma_data,
    "sigma_min": NOISE.low,
    "sigma_max": NOISE.high,
    "shape": [3, 32, 32],
    "classes": list(ROAD),
}
PACE = Pace(lr=1e-3, warmup=500, flat=5000, seed=7)


def build() -> EDMNetwork:
    return song_unet(SIZES)


def one_hot(label: Tensor) -> Tensor:
    return F.one_hot(label, len(ROAD)).float()


def flip(x: Tensor, g: torch.Generator) -> Tensor:
    """Half of the images, mirrored."""
    return torch.where(torch.rand(len(x), 1, 1, 1, generator=g) < 0.5, x.flip(-1), x)


def loss(learner: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    assert isinstance(learner, Learner)

    raw = shortened(lambda x, u, label: learner.net(x, u, one_hot(label)))
    return learner.weigh(*NOISE.errors(raw, flip(x0, g), y, g))


def error(net: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    """The mean of e(sigma), without weights."""
    return NOISE.errors(lambda x, u, label: net(x, u, one_hot(label)), x0, y, g)[0].mean()


class Colour(ClassModel):
    """A model with the classes of ``ROAD``."""

    def conditions(self, seeds: Any) -> Tensor:
        return torch.tensor([seed % len(ROAD) for seed in seeds])


def as_model(net: nn.Module) -> Colour:
    """The denoiser as a model that ``ld3`` samples from."""

    def denoise(x: Tensor, t: Tensor, label: Tensor) -> Tensor:
        return NOISE.denoise(lambda a, u, c: net(a, u, one_hot(c)), x, t, label)

    return Colour(denoise, EDM(), "x0", (3, 32, 32), torch.device("cpu"))


def main() -> None:
    parser = arguments(__doc__ or "", "road", PACE)
    parser.add_argument("--data", type=Path, required=True, help="folder of the npm package")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    classes = [CLASSES.index(name) for name in ROAD]
    images, labels = load(args.data, "train", classes)
    parts = {"test": load(args.data, "test", classes), "train": (images, labels)}

    def check(weights: dict[str, Tensor], iteration: int) -> dict[str, Any]:
        net = averaged(build(), weights)
        model = as_model(net)
        sheet(model, 64, args.run / f"samples-{iteration:07d}.png")
        return losses(lambda x, y, g: error(net, x, y, g), parts)

    net = build()
    every = Every(check=60 * args.check_minutes)
    train(Learner(net), loss, images, labels, pace_of(args, PACE), args.run, check, every=every)


if __name__ == "__main__":
    main()
