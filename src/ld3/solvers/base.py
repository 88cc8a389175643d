"""What a solver is, and the two forms in which all methods here take their step.

The ODE of a diffusion model, in the variance-exploding coordinates xbar = x / alpha and
s = sigma / alpha, is d xbar / d s = eps. Two exact rewritings from t_i to t_{i+1}, with h the
difference in lam = -log s:

    eps form   xbar_+ = xbar + integral of eps ds
    x0 form    x_+ = (sigma_+/sigma) x + alpha_+ integral over [0, 1] of h e^{-h(1-u)} x0(u) du

Methods differ in how they extrapolate eps or x0 from earlier outputs of the network. `denoise`
gives x0; the noise estimate that goes with it is taken at the network time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor

from ld3.grids import Knots
from ld3.predictions import to_eps

Denoise = Callable[[Tensor, Tensor], Tensor]
"""x (B,*S), network time () -> x0 (B,*S); condition and guidance are already bound."""

History = tuple[Tensor, ...]
"""What a method remembers between steps; empty before the first."""

Step = tuple[Tensor, History]
"""The state after a step, and the history for the next one."""


@dataclass(frozen=True)
class Solver(ABC):
    """One method. Frozen, without memory of its own: `step` gets its history and returns it."""

    name: ClassVar[str]
    summary: ClassVar[str]
    orders: ClassVar[tuple[int, ...]]
    variants: ClassVar[tuple[str, ...]] = ()
    form: ClassVar[str] = "x0"  # what it extrapolates: x0, or the noise eps

    order: int = 1
    variant: str = ""

    def nfe(self, steps: int) -> int:
        """Network evaluations of that many steps."""
        return steps

    @abstractmethod
    def step(self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History) -> Step:
        """x at t_i -> x at t_{i+1}."""


def combine(coefficients: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensor:
    """sum_j c_j X_j: float64 scalars times tensors in the dtype of the tensors."""
    total = coefficients[0] * tensors[0]
    for c, tensor in zip(coefficients[1:], tensors[1:], strict=True):
        total = total + c * tensor
    return total


def eps_at(denoise: Denoise, k: Knots, i: int, x: Tensor) -> Tensor:
    """The network's noise estimate at knot i."""
    return to_eps(denoise(x, k.net[i]), x, k.net_alpha[i], k.net_sigma[i])


def eps_step(
    k: Knots, i: int, x: Tensor, eps: Sequence[Tensor], weights: Sequence[Tensor | float]
) -> Tensor:
    """x_+ = (alpha_+/alpha) x + alpha_+ (s_+ - s) sum_j w_j eps_j, newest first."""
    ahead = k.alpha[i + 1]
    scale = ahead * (k.ratio[i + 1] - k.ratio[i])
    return combine((ahead / k.alpha[i], *(scale * w for w in weights)), (x, *eps))


def warm_up(order: int, i: int, steps: int) -> int:
    """The order of step i: rising while the history fills, falling at the end."""
    return min(order, i + 1, steps - i)


def moment_weights(nodes: Sequence[Tensor], moments: Sequence[Tensor]) -> list[Tensor]:
    """The w with sum_k w_k nodes_k^j = moments_j for j = 0..p-1.

    That is the quadrature rule on these nodes that is exact for all polynomials of degree < p, by
    Lagrange: w_k is the integral of prod_{l != k} (u - u_l)/(u_k - u_l). Closed form, so that two
    nodes that nearly coincide give large numbers and not an exception.
    """
    weights = []
    for k, node in enumerate(nodes):
        rest = list(moments)
        for other in (*nodes[:k], *nodes[k + 1 :]):
            # moments of the weight function times (u - other)/(node - other)
            rest = [(high - other * low) / (node - other) for low, high in pairwise(rest)]
        weights.append(rest[0])
    return weights
