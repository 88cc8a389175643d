"""DEIS: Adams-Bashforth with the right weights for uneven steps, in closed form.

    x_+ = (alpha_+/alpha) x + alpha_+ sum_j C_j eps_{i-j},   C_j = integral from s to s_+ of L_j ds

with L_j the Lagrange polynomials through the last knots, s = sigma / alpha. Variant `rho` takes
polynomials in s, variant `log-rho` in log s = -lam. Zhang and Chen 2023 (arXiv 2204.13902). Lower
orders while the history fills.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.grids import Knots
from ld3.solvers.base import Denoise, History, Solver, Step, eps_at, eps_step, moment_weights


@dataclass(frozen=True)
class DEIS(Solver):
    name = "deis"
    summary = "DEIS, Adams-Bashforth on uneven steps"
    orders = (1, 2, 3, 4)
    form = "eps"
    variants = ("rho", "log-rho")

    order: int = 3
    variant: str = "rho"

    def step(self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History) -> Step:
        eps = (eps_at(denoise, k, i, x), *history)[: self.order]
        return eps_step(k, i, x, eps, self._weights(k, i, len(eps))), eps[: self.order - 1]

    def _weights(self, k: Knots, i: int, count: int) -> list[Tensor]:
        """C_j / (s_+ - s), with u from 0 here to 1 at the next knot."""
        if self.variant == "rho":
            nodes = [
                (k.ratio[i - j] - k.ratio[i]) / (k.ratio[i + 1] - k.ratio[i]) for j in range(count)
            ]
            return moment_weights(
                nodes, [torch.full_like(k.lam[i], 1 / (j + 1)) for j in range(count)]
            )
        nodes = [(k.lam[i - j] - k.lam[i]) / k.h[i] for j in range(count)]
        # ds / (s_+ - s) = e^{-hu} du / phi_1, and the integral of e^{-h(1-v)} v^l is l! phi_{l+1}
        phi_1, phi_2, phi_3, phi_4 = k.phi[i]
        moments = (
            phi_1,
            phi_1 - phi_2,
            phi_1 - 2 * phi_2 + 2 * phi_3,
            phi_1 - 3 * phi_2 + 6 * phi_3 - 6 * phi_4,
        )
        return moment_weights(nodes, [moment / phi_1 for moment in moments[:count]])
