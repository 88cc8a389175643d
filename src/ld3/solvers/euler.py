"""Euler's method in variance-exploding coordinates, which is DDIM.

    x_+ = (alpha_+/alpha) x + alpha_+ (s_+ - s) eps        s = sigma / alpha

Song et al. 2021 (arXiv 2010.02502). One evaluation a step, order 1, exact when eps is constant.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ld3.grids import Knots
from ld3.solvers.base import Denoise, History, Solver, eps_at, eps_step


@dataclass(frozen=True)
class Euler(Solver):
    name: ClassVar[str] = "euler"
    summary: ClassVar[str] = "Euler = DDIM, order 1"
    orders: ClassVar[tuple[int, ...]] = (1,)
    form: ClassVar[str] = "eps"

    order: int = 1

    def step(
        self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History
    ) -> tuple[Tensor, History]:
        eps = eps_at(denoise, k, i, x)
        return eps_step(k, i, x, (eps,), (torch.ones_like(k.lam[i]),)), ()
