"""Heun's method in variance-exploding coordinates: the trapezoidal rule on an Euler prediction.

    eps_1 = eps(x, t^c_i),  eps_2 = eps(Euler step, t^c_{i+1})
    x_+ = (alpha_+/alpha) x + alpha_+ (s_+ - s) (eps_1 + eps_2)/2

Karras et al. 2022 (arXiv 2206.00364). Two evaluations a step, also in the last one, because our
grids end at t_min > 0; order 2.
"""

from dataclasses import dataclass

from torch import Tensor

from ld3.grids import Knots
from ld3.solvers.base import Denoise, History, Solver, Step, eps_at, eps_step


@dataclass(frozen=True)
class Heun(Solver):
    name = "heun"
    summary = "Heun, order 2, two evaluations a step"
    orders = (2,)
    form = "eps"

    order: int = 2

    def nfe(self, steps: int) -> int:
        return 2 * steps

    def step(self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History) -> Step:
        first = eps_at(denoise, k, i, x)
        predicted = eps_step(k, i, x, (first,), (1.0,))
        second = eps_at(denoise, k, i + 1, predicted)
        return eps_step(k, i, x, (first, second), (0.5, 0.5)), ()
