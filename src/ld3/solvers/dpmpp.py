"""DPM-Solver++ multistep: x0 extrapolated in lam from the last one, two or three answers.

With m_0 the newest, r_0 = h_{i-1}/h_i, r_1 = h_{i-2}/h_i and phi_k = phi_k(-h):

    1:   x_+ = (sigma_+/sigma) x + alpha_+ h phi_1 m_0
    2M:  ... + alpha_+ h phi_1 D/2              D  = (m_0 - m_1)/r_0
    3M:  ... + alpha_+ h (phi_2 D1 + phi_3 D2)  D1 = D + r_0 D2
                                                D2 = (D - (m_1 - m_2)/r_1)/(r_0 + r_1)

Lu et al. 2022 (arXiv 2211.01095). Lower orders in the first and the last steps, so 3M is of order 2
overall. (Its D2 is half a second derivative, so that phi_3 D2 is half of Taylor's term: the
published method, kept.) The variant `full` keeps its order to the end, as "DPM++ 2M" of k-diffusion
does when the last noise level is not zero, and diffusers with lower_order_final=False.
"""

from dataclasses import dataclass

from torch import Tensor

from ld3.grids import Knots
from ld3.solvers.base import Denoise, History, Solver, Step, combine, warm_up


@dataclass(frozen=True)
class DPMpp(Solver):
    name = "dpmpp"
    summary = "DPM-Solver++ multistep (1, 2M, 3M)"
    orders = (1, 2, 3)
    variants = ("", "full")

    order: int = 3

    def step(self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History) -> Step:
        m = (denoise(x, k.net[i]), *history)[: self.order]
        rising = min(self.order, i + 1)
        order = rising if self.variant == "full" else warm_up(self.order, i, k.steps)
        weights = _weights(k, i, order)
        scale = k.alpha[i + 1] * k.h[i]
        coefficients = (k.sigma[i + 1] / k.sigma[i], *(scale * w for w in weights))
        return combine(coefficients, (x, *m[: len(weights)])), m[: self.order - 1]


def _weights(k: Knots, i: int, order: int) -> tuple[Tensor, ...]:
    """On m_0, m_1, m_2, in units of alpha_+ h."""
    phi_1, phi_2, phi_3, _ = k.phi[i]
    if order == 1:
        return (phi_1,)
    r_0 = k.h[i - 1] / k.h[i]
    if order == 2:
        slope = 0.5 * phi_1 / r_0
        return phi_1 + slope, -slope
    r_1 = k.h[i - 2] / k.h[i]
    curve = (r_0 * phi_2 + phi_3) / (r_0 + r_1)  # on D - (m_1 - m_2)/r_1
    newest, older = (phi_2 + curve) / r_0, curve / r_1
    return phi_1 + newest, -newest - older, older
