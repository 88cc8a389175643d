"""Grids that others found and published, as noise levels s = sigma / alpha.

A table with N steps is used as it is for N steps; for other N the nearest table is interpolated,
log s linear in the number of the step. Where the range of s is not that of the table, log s is
stretched to fit, so that any schedule can start from the shape of any table.
"""

import math
from functools import partial

import torch
from torch import Tensor

from ld3.density import linear
from ld3.known_grids.handmade import Handmade
from ld3.schedules import Schedule, ends

Tables = tuple[tuple[float, ...], ...]

_GITS = "GITS (Chen et al. 2024) for {}, sigmas shipped with the LD3 code"
_AYS = "AYS (Sabour et al. 2024) for {}, 10 steps"

_TABLES: dict[str, tuple[str, Tables]] = {
    "ays-sd15": (
        _AYS.format("Stable Diffusion 1.5"),
        ((14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029),),
    ),
    "ays-sdxl": (
        _AYS.format("SDXL"),
        ((14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029),),
    ),
    "ays-svd": (
        _AYS.format("Stable Video Diffusion"),
        ((700.0, 54.5, 15.886, 7.977, 4.248, 1.789, 0.981, 0.403, 0.173, 0.034, 0.002),),
    ),
    "gits-cifar10": (
        _GITS.format("CIFAR10"),
        (
            (80, 5.1092, 1.584, 0.47, 0.002),
            (80, 5.8389, 2.1632, 0.8119, 0.2107, 0.002),
            (80, 9.7232, 3.3686, 1.3482, 0.5666, 0.1698, 0.002),
            (80, 10.9836, 3.8811, 1.8543, 0.9654, 0.47, 0.2107, 0.0665, 0.002),
            (80, 13.9293, 5.1092, 2.5152, 1.3482, 0.6799, 0.3183, 0.1698, 0.0665, 0.0225, 0.002),
        ),
    ),
    "gits-ffhq": (
        _GITS.format("FFHQ"),
        (
            (80, 7.5699, 2.1632, 0.5666, 0.002),
            (80, 10.9836, 3.8811, 1.584, 0.5666, 0.1698, 0.002),
        ),
    ),
    "gits-afhqv2": (
        _GITS.format("AFHQv2"),
        (
            (80, 7.5699, 2.1632, 0.3878, 0.002),
            (80, 9.7232, 3.8811, 1.584, 0.47, 0.1359, 0.002),
        ),
    ),
    "gits-lsun": (
        _GITS.format("LSUN latent diffusion"),
        (
            (83.8225, 2.1307, 0.9556, 0.425, 0.0388),
            (83.8225, 2.4793, 1.1629, 0.5745, 0.2411, 0.0388),
        ),
    ),
    "gits-sd": (
        _GITS.format("Stable Diffusion"),
        (
            (14.6146, 3.1131, 1.0421, 0.3811, 0.0292),
            (14.6146, 4.39, 1.5286, 0.6526, 0.2667, 0.0292),
            (14.6146, 4.7242, 1.9132, 0.9324, 0.4557, 0.1801, 0.0292),
            (14.6146, 6.4477, 2.2797, 1.1629, 0.6114, 0.3058, 0.1258, 0.0292),
        ),
    ),
}


def _place(tables: Tables, schedule: Schedule, u: Tensor) -> Tensor:
    """u (N-1,) of the inner points -> times."""
    steps = len(u) + 1
    table = min(tables, key=lambda row: abs(math.log((len(row) - 1) / steps)))
    lam = -torch.tensor(table, dtype=torch.float64, device="cpu").log()  # (M+1,)
    share = (lam - lam[0]) / (lam[-1] - lam[0])  # rising from 0 to 1
    first, last = schedule.lam(ends(schedule))
    return schedule.time_at(first + (last - first) * linear(share, u))


PUBLISHED: dict[str, Handmade] = {
    name: Handmade("a table of s", source, partial(_place, tables))
    for name, (source, tables) in _TABLES.items()
}
