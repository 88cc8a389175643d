"""Euler's method in variance-exploding coordinates, which is DDIM.

    x_+ = (alpha_+/alpha) x + alpha_+ (s_+ - s) eps        s = sigma / alpha

Song et al. 2021 (arXiv 2010.02502). One evaluation a step, order 1, exact when eps is constant.
"""

from dataclasses import dataclass

from torch import Tensor

from ld3.grids import Knots
from ld3.solvers.base import Denoise, History, Solver, Step, eps_at, eps_step


@dataclass(frozen=True)
class Euler(Solver):
    name = "euler"
    summary = "Euler = DDIM, order 1"
    orders = (1,)
    form = "eps"

    def step(self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History) -> Step:
        return eps_step(k, i, x, (eps_at(denoise, k, i, x),), (1.0,)), ()
