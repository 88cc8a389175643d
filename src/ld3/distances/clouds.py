"""Chamfer distance between point clouds: how far each point is from the other cloud."""

import torch
from torch import Tensor

from ld3.errors import ModelError

PAIRS = 1 << 24  # distances between points that are held at once


def chamfer(x: Tensor, y: Tensor) -> Tensor:
    """``mean_i min_j |x_i - y_j|^2 + mean_j min_i |x_i - y_j|^2`` for clouds (B, P, D): (B,).

    The order of points does not matter. Which point is nearest is found without gradients, a few
    clouds at a time; the gradient is that of the distances to these points, so memory grows with
    the number of points and not with its square.
    """
    if x.shape != y.shape or x.ndim != 3:
        raise ModelError(
            f"chamfer: got samples of shapes {tuple(x.shape)} and {tuple(y.shape)}, expected twice "
            "the same (B, points, coordinates); take l2 for samples that are no point clouds"
        )
    wide = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    x, y = x.to(wide), y.to(wide)
    to_y, to_x = _nearest(x.detach(), y.detach())
    there = (x - _taken(y, to_y)).square().sum(-1).mean(1)
    back = (y - _taken(x, to_x)).square().sum(-1).mean(1)
    return there + back


def _taken(cloud: Tensor, index: Tensor) -> Tensor:
    return cloud.gather(1, index[..., None].expand(-1, -1, cloud.shape[2]))


def _nearest(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of each point the number of the nearest one in the other cloud, (B, P) both."""
    found = []
    size = max(1, PAIRS // max(1, x.shape[1] ** 2))
    for a, b in zip(torch.split(x, size), torch.split(y, size), strict=True):
        apart = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
        found.append((apart.argmin(2), apart.argmin(1)))
    return torch.cat([to_y for to_y, _ in found]), torch.cat([to_x for _, to_x in found])
