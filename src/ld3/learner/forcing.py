"""Soft teacher forcing: the student may start a little beside the teacher's noise.

    min over z' with |z' - z| <= r of d(student(z'), teacher(z))        r = gamma d / NFE^2

in unit-variance space, so that the ball in x has radius r sigma_T. Each pair keeps its own z',
moved by projected gradient steps where that lowers its loss; z' is never used to sample.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def radius(gamma: float, shape: Sequence[int], nfe: int) -> float:
    """r of the paper; 0 is hard forcing."""
    return gamma * math.prod(shape) / nfe**2


def moved(near: Tensor, centre: Tensor, slope: Tensor, rate: float, r: float) -> Tensor:
    """One gradient step of each z' (B, *S), projected to the ball of radius r around its z."""
    away = (near - rate * slope - centre).flatten(1)
    length = torch.linalg.vector_norm(away, dim=1, keepdim=True)
    shrink = torch.clamp(r / length.clamp_min(1e-12), max=1.0)
    return centre + (shrink * away).view_as(centre)


def keep_better(old: Tensor, new: Tensor, old_loss: Tensor, new_loss: Tensor) -> Tensor:
    """New z' where they have the lower loss (B,), old ones elsewhere."""
    better = (new_loss < old_loss).view(-1, *[1] * (old.ndim - 1))
    return torch.where(better, new, old)
