"""iPNDM: Adams-Bashforth with the weights of equal steps, on any grid.

    x_+ = (alpha_+/alpha) x + alpha_+ (s_+ - s) sum_j w_j eps_{i-j}

Zhang and Chen 2023 (arXiv 2204.13902), in the form used by LD3: no Runge-Kutta start, lower orders
while the history fills, full order at the end. Because the weights ignore the spacing, the order
seen on uneven grids is 1 to 2; with few steps the method is strong all the same.
"""

from dataclasses import dataclass

from torch import Tensor

from ld3.grids import Knots
from ld3.solvers.base import Denoise, History, Solver, Step, eps_at, eps_step

WEIGHTS = {
    1: (1.0,),
    2: (3 / 2, -1 / 2),
    3: (23 / 12, -16 / 12, 5 / 12),
    4: (55 / 24, -59 / 24, 37 / 24, -9 / 24),
}


@dataclass(frozen=True)
class IPNDM(Solver):
    name = "ipndm"
    summary = "iPNDM, Adams-Bashforth weights of equal steps"
    orders = (1, 2, 3, 4)
    form = "eps"

    order: int = 3

    def step(self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History) -> Step:
        eps = (eps_at(denoise, k, i, x), *history)[: self.order]
        return eps_step(k, i, x, eps, WEIGHTS[len(eps)]), eps[: self.order - 1]
