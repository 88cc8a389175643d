"""DDPM++ (Song et al. 2021, arXiv 2011.13456) as EDM trains it: the weights it starts from.

The network is the package's own, the one that reads EDM's checkpoints. All weights start from
Xavier's uniform numbers, without bias; the last convolution of a block or of the network is almost
zero, so that every block begins as the identity.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ld3.zoo.checkpoints.edm import Conv, EDMConfig, EDMNetwork

SCALES = {"conv1": 1e-5, "proj": 1e-5, "qkv": math.sqrt(0.2)}  # by the last part of the name


def song_unet(sizes: dict[str, Any]) -> EDMNetwork:
    """F(x, u, labels) with new weights; ``sizes`` are fields of :class:`EDMConfig`."""
    net = EDMNetwork(EDMConfig.read(sizes))
    for name, layer in net.named_modules():
        if isinstance(layer, Conv | nn.Linear) and layer.weight is not None:
            last = name.rpartition(".")[2]
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
            with torch.no_grad():
                layer.weight.mul_(1e-5 if last.endswith("aux_conv") else SCALES.get(last, 1.0))
    return net
