"""UniPC: a predictor in x0 form; the output at the predicted state also corrects that state.

From the corrected state x at t_i, with m_k the answer at knot i-k, r_k = (lam_{i-k} - lam_i)/h < 0
and D_k = (m_k - m_0)/r_k:

    base = (sigma_+/sigma) x + alpha_+ h phi_1 m_0
    predicted = base + alpha_+ sum_k w_k D_k                       k = 1..p-1
    corrected = base + alpha_+ (sum_k w'_k D_k + w'_p (m_+ - m_0)) k = 1..p-1, r_p = 1

where m_+ is the answer at the predicted state. The weights match the moments
sum_k w_k r_k^(j-1) = j! h phi_{j+1}(-h), j = 1, 2, ..., except that the short rules (one unknown)
take w = B/2 with B = h (variant bh1) or B = h phi_1 (bh2): only there do the variants differ.
m_+ serves as the history at t_{i+1} and the corrector is skipped at the end, so N steps cost N
evaluations. Zhao et al. 2023 (arXiv 2302.04867). Lower orders in the first and the last steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.grids import Knots
from ld3.solvers.base import Denoise, History, Solver, Step, combine, moment_weights, warm_up


@dataclass(frozen=True)
class UniPC(Solver):
    name = "unipc"
    summary = "UniPC, predictor and corrector in one evaluation"
    orders = (1, 2, 3)
    variants = ("bh1", "bh2")

    order: int = 3
    variant: str = "bh1"

    def step(self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History) -> Step:
        m = denoise(x, k.net[i])
        if i == 0:
            past: History = (m,)
        else:
            start, *older = history  # the corrected state at t_{i-1} and the answers up to there
            x = self._leap(k, i - 1, start, (m, *older), corrector=True)
            past = (m, *older)[: self.order]
        return self._leap(k, i, x, past, corrector=False), (x, *past)

    def _leap(self, k: Knots, i: int, x: Tensor, m: History, corrector: bool) -> Tensor:
        """From x at t_i to t_{i+1}; m is newest first and, for the corrector, starts with m_+."""
        order = warm_up(self.order, i, k.steps)
        nodes = [(k.lam[i - j] - k.lam[i]) / k.h[i] for j in range(1, order)]
        if corrector:
            nodes = [torch.ones_like(k.h[i]), *nodes]
            m = (m[1], m[0], *m[2:])  # the answer at t_i first, as in the formulas
        phi = k.phi[i]
        if len(nodes) == 1:
            bh = k.h[i] if self.variant == "bh1" else k.h[i] * phi[0]
            weights = [0.5 * bh]
        else:
            factorials = (1.0, 2.0, 6.0)
            moments = [factorials[j] * k.h[i] * phi[j + 1] for j in range(len(nodes))]
            weights = moment_weights(nodes, moments)
        ahead = k.alpha[i + 1]
        on_difference = [ahead * w / r for w, r in zip(weights, nodes, strict=True)]
        on_newest = ahead * k.h[i] * phi[0] - sum(on_difference)
        coefficients = (k.sigma[i + 1] / k.sigma[i], on_newest, *on_difference)
        return combine(coefficients, (x, *m[: len(nodes) + 1]))
