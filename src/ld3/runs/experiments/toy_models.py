"""Models with exact scores and few dimensions, for experiments."""

import torch

from ld3.schedules import Flow
from ld3.seeds import noise
from ld3.zoo.toy import Mixture, image_mixture, mixture


def line() -> Mixture:
    """Three clusters on a line, from N(0, 1): the paths can be drawn."""
    return mixture([[-1.0], [0.2], [1.3]], std=0.12, schedule=Flow(), weights=[0.35, 0.4, 0.25])


def clusters() -> Mixture:
    """Six clusters in 16 dimensions, EDM."""
    return mixture(noise(range(6), (16,), torch.float64), std=0.25)


def images() -> Mixture:
    """Smooth images of 8x8, EDM."""
    return image_mixture(count=4, rank=6, shape=(1, 8, 8))
