"""Train ``fashion``: a class-conditional denoiser of Fashion-MNIST images.

The denoiser is that of ``edm.py`` with log sigma from N(-0.8, 1.4^2), the loss that of
``learner.py``. The label is hidden 10 % of the time. sigma_data = 0.5 is that of the weights in the
package; the standard deviation of the pixels is 0.706. The network computes in bfloat16 where
the processor can.

    python training/fashion.py --go-on                                # from the package's weights
    python training/fashion.py                                        # from new weights
    python training/fashion.py --decay-from 90000 --until 100000      # bring it to its end
"""

from __future__ import annotations

from typing import Any

import torch
from clothes import train_on_clothes
from edm import Edm
from learner import Learner, hide, shortened
from long import Pace
from torch import Tensor, nn

from ld3.schedules import EDM
from ld3.zoo.networks import FineUNet
from ld3.zoo.shipped import ClassModel

NOISE = Edm(sigma_data=0.5, mean=-0.8, std=1.4)
SIZES: dict[str, Any] = {
    "channels": 1,
    "patch": 2,
    "widths": [64, 128],
    "blocks": 2,
    "middle": 1,
    "classes": 10,
    "embedding": 192,
    "f_max": 2.0,
    "fine": 32,
    "fine_blocks": 1,
}
ABOUT: dict[str, Any] = {
    "class": "FineUNet",
    "arguments": SIZES,
    "prediction": "edm",
    "sigma_data": NOISE.sigma_data,
    "sigma_min": NOISE.low,
    "sigma_max": NOISE.high,
    "shape": [1, 28, 28],
}
PACE = Pace(lr=1e-3, flat=3000, seed=3)


def build() -> FineUNet:
    return FineUNet(**SIZES)


def loss(learner: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    assert isinstance(learner, Learner)
    return learner.weigh(*NOISE.errors(shortened(learner.net), x0, hide(y, g), g))


def error(net: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    """The mean of e(sigma), without weights."""
    return NOISE.errors(net, x0, hide(y, g), g)[0].mean()


def as_model(net: nn.Module) -> ClassModel:
    """The denoiser as a model that ``ld3`` samples from."""
    return ClassModel(
        lambda x, t, label: NOISE.denoise(net, x, t, label),
        EDM(),
        "x0",
        (1, 28, 28),
        torch.device("cpu"),
    )


if __name__ == "__main__":
    train_on_clothes(__doc__ or "", "fashion", PACE, build, loss, error, as_model)
