"""Soft teacher forcing: the student may start near the teacher's noise z.

    min over z' with |z' - z| <= r of d(student(z'), teacher(z))        r = gamma d / NFE^2

z has unit variance, so that the ball in x has radius r sigma_T. Each pair keeps its own z', which
moves by projected gradient steps that lower its loss. Sampling does not use z'.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def radius(gamma: float, shape: Sequence[int], nfe: int) -> float:
    """r = gamma d / NFE^2."""
    return gamma * math.prod(shape) / nfe**2


def projected_step(noise: Tensor, centre: Tensor, slope: Tensor, rate: float, r: float) -> Tensor:
    """z' - rate * slope (B, *S), projected to the ball of radius r around each z."""
    away = (noise - rate * slope - centre).flatten(1)
    length = torch.linalg.vector_norm(away, dim=1, keepdim=True)
    shrink = torch.clamp(r / length.clamp_min(1e-12), max=1.0)
    return centre + (shrink * away).view_as(centre)


def keep_better(old: Tensor, new: Tensor, old_loss: Tensor, new_loss: Tensor) -> Tensor:
    """New z' where their loss (B,) is strictly lower, old z' elsewhere."""
    better = (new_loss < old_loss).view(-1, *[1] * (old.ndim - 1))
    return torch.where(better, new, old)
