"""Train ``fashion-flow``: a class-conditional rectified flow.

    x_t = (1 - t) x0 + t n,    e(t) = mean |F(x_t; t) - (n - x0)|^2,

half of the t logit-normal, half uniform on (0, 1); the loss is that of ``learner.py``. The label is
hidden 10 % of the time. Time enters by waves with a period of at least 0.5 in t.
"""

from __future__ import annotations

from typing import Any

import torch
from clothes import train_on_clothes
from learner import Learner, Raw, hide, shortened, spread
from long import Pace
from torch import Tensor, nn

from ld3.schedules import Flow
from ld3.zoo.networks import FineUNet
from ld3.zoo.shipped import ClassModel

SIZES: dict[str, Any] = {
    "channels": 1,
    "patch": 2,
    "widths": [56, 104],
    "blocks": 2,
    "middle": 1,
    "classes": 10,
    "embedding": 160,
    "f_max": 2.0,
    "fine": 32,
    "fine_blocks": 1,
}
ABOUT: dict[str, Any] = {
    "class": "FineUNet",
    "arguments": SIZES,
    "prediction": "flow velocity, v = noise - data, x_t = (1 - t) data + t noise, c_noise = t",
    "shape": [1, 28, 28],
}
PACE = Pace(lr=1e-3, flat=3000, seed=4)


def build() -> FineUNet:
    return FineUNet(**SIZES)


def errors(raw: Raw, x0: Tensor, y: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """e(t) and t, (B,) both."""
    b = len(x0)
    t = torch.cat([torch.special.ndtri(spread(b // 2, g)).sigmoid(), spread(b - b // 2, g)])
    noise = torch.randn(x0.shape, generator=g)  # (B,1,28,28)
    s = t[:, None, None, None]
    v = raw((1 - s) * x0 + s * noise, t, hide(y, g))
    return (v - (noise - x0)).square().mean((1, 2, 3)), t


def loss(learner: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    assert isinstance(learner, Learner)
    return learner.weigh(*errors(shortened(learner.net), x0, y, g))


def error(net: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    """The mean of e(t), without weights."""
    return errors(net, x0, y, g)[0].mean()


def as_model(net: nn.Module) -> ClassModel:
    """The flow as a model that ``ld3`` samples from."""
    return ClassModel(net, Flow(), "flow", (1, 28, 28), torch.device("cpu"))


if __name__ == "__main__":
    train_on_clothes(__doc__ or "", "fashion-flow", PACE, build, loss, error, as_model)
