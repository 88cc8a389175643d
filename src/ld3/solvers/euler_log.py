"""Euler's method in log sigma, the step of DiffDock.

    x_+ = (alpha_+/alpha) x - alpha_+ s h eps        s = sigma / alpha,  h = lam_+ - lam

Where sigma is geometric in t, as in DiffDock (Corso et al. 2023, arXiv 2210.01776), this is Euler
in t: with g^2 = d sigma^2 / dt and the score -eps / sigma, x_+ = x + g^2 dt score / 2. One
evaluation a step, order 1. `euler` is exact when eps is constant; this method is not.
"""

from dataclasses import dataclass

from torch import Tensor

from ld3.grids import Knots
from ld3.solvers.base import Denoise, History, Step, combine, eps_at
from ld3.solvers.euler import Euler


@dataclass(frozen=True)
class EulerLog(Euler):
    name = "euler-log"
    summary = "Euler in log sigma: DiffDock's step, order 1"

    def step(self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History) -> Step:
        ahead = k.alpha[i + 1]
        weights = (ahead / k.alpha[i], -ahead * k.ratio[i] * k.h[i])
        return combine(weights, (x, eps_at(denoise, k, i, x))), ()
