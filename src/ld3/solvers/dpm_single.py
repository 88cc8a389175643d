"""DPM-Solver++ single-step (2S, 3S): groups of steps that all start at the same anchor.

Steps are taken in groups of `order`. The first step of a group is of order 1; the second goes from
the anchor (the state where the group began) to t_{i+1} again with order 2, using the answers at the
anchor and at the first inner point; the third likewise with order 3. So the inner points are knots
of the grid, with network times of their own, and N steps cost N evaluations. With u the position
of an inner point between anchor (0) and target (1) in lam, and phi_k = phi_k(-h) over that span:

    x_+ = (sigma_+/sigma) x + alpha_+ h (phi_1 m_0 + sum_j w_j (m_j - m_0))
    2S:  w = phi_1 / (2 u_1)
    3S:  sum_j w_j u_j = phi_2,  sum_j w_j u_j^2 = 2 phi_3         (the first alone at its 2nd step)

Lu et al. 2022 (arXiv 2211.01095).
"""

from dataclasses import dataclass

from torch import Tensor

from ld3.grids import Knots, phi_functions
from ld3.solvers.base import Denoise, History, Solver, Step, combine, moment_weights


@dataclass(frozen=True)
class DPMSingle(Solver):
    name = "dpm-single"
    summary = "DPM-Solver++ single-step (2S, 3S)"
    orders = (2, 3)

    order: int = 2

    def step(self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History) -> Step:
        first = i - i % self.order  # the knot of the anchor
        anchor, *earlier = history if i > first else (x,)
        m = (*earlier, denoise(x, k.net[i]))  # m[j] belongs to knot first + j
        h = k.lam[i + 1] - k.lam[first]
        phi_1, phi_2, phi_3 = phi_functions(-h, 3).unbind()
        nodes = [(k.lam[first + j] - k.lam[first]) / h for j in range(1, len(m))]
        if self.order == 2 and nodes:
            weights = [0.5 * phi_1 / nodes[0]]
        else:
            # w_j u_j matches the moments of one degree less
            matched = moment_weights(nodes, (phi_2, 2 * phi_3)[: len(nodes)])
            weights = [w / u for w, u in zip(matched, nodes, strict=True)]
        scale, on_anchor = k.alpha[i + 1] * h, phi_1 - sum(weights)
        scaled = [scale * w for w in (on_anchor, *weights)]
        return combine((k.sigma[i + 1] / k.sigma[first], *scaled), (anchor, *m)), (anchor, *m)
