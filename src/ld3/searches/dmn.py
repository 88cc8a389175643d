"""DMN: the grid with the smallest bound on the error, from the noise schedule alone.

Xue et al. 2024, arXiv 2402.17376. Suppose the network's x0 is off by about w = sigma^p / alpha (in
variance preserving form; p = 1 for pixels, 2 for latents). An exponential integrator of order 3
adds up these errors with the weights J_sn it gives in step s to what the network said at point n,

    x_N / sigma_N = x_0 / sigma_0 + sum_s sum_n J_sn x0_n
    J_sn = integral over step s of e^lam (Lagrange polynomial of point n) dlam

and the bound is, with orders rising 1, 2, 3 at the start and falling at the end,

    sum over steps of order 1 of |J_ss w_s|  +  sum_n |sum over other steps of J_sn w_n|

Steps 1 and 2 are not in the signed sum: each adds sqrt(sum_n (J_sn w_n)^2). The code of the LD3
paper includes them for N > 7; then errors cancel in the bound that do not cancel in samples.

The gaps in lam are a softmax with a floor. Adam in float64 minimises the bound from an even grid in
lam and from one in t. The lower bound is taken.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.grids import TimeGrid, phi_functions
from ld3.known_grids.handmade import HANDMADE
from ld3.models import is_latent
from ld3.parameters import GridParameters
from ld3.problem import Problem
from ld3.schedules import Schedule
from ld3.searches.protocol import Found, Need, Report
from ld3.solvers.base import moment_weights
from ld3.table import TunedSolver

ORDER = 3
ALONE = 3  # steps before it are not summed with their signs
STARTS = {"lam": ("logsnr",), "t": ("uniform",), "both": ("logsnr", "uniform")}


def error_bound(lam: Tensor, p: float) -> Tensor:
    """The bound () of a grid lam (N+1,), rising; differentiable."""
    steps = len(lam) - 1
    h = lam.diff()
    weight = -p * _half_softplus(2 * lam) + _half_softplus(-2 * lam)  # log w = p log sigma - log a
    moments = h[:, None] * phi_functions(-h, ORDER)  # (N, 3): 0!, 1/1!, 1/2! of u^j
    moments = moments * torch.tensor([1.0, 1.0, 2.0], dtype=lam.dtype, device="cpu")
    number = torch.arange(steps, device="cpu")
    order = torch.minimum(number + 1, steps - number).clamp(max=ORDER)
    total = lam.new_zeros(())
    signed = lam.new_zeros(steps)
    for k in range(1, ORDER + 1):
        s = number[order == k]
        if len(s) == 0:
            continue
        nodes = [(lam[s - back] - lam[s]) / h[s] for back in range(k)]
        quadrature = moment_weights(nodes, list(moments[s, :k].unbind(1)))
        terms = torch.stack(  # (k, steps of this order): w_n J_sn
            [
                torch.exp(weight[s - back] + lam[s + 1]) * each
                for back, each in enumerate(quadrature)
            ]
        )
        if k == 1:
            total = total + terms.abs().sum()
            continue
        alone = s < ALONE
        total = total + torch.linalg.vector_norm(terms[:, alone], dim=0).sum()
        for back in range(k):
            signed = signed.index_add(0, (s - back)[~alone], terms[back, ~alone])
    return total + signed.abs().sum()


def _half_softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) / 2: minus log sigma at 2 lam, minus log alpha at -2 lam."""
    return 0.5 * torch.logaddexp(x, torch.zeros_like(x))


def lowest_bound(
    schedule: Schedule, steps: int, start: TimeGrid, p: float, iterations: int = 200
) -> tuple[TimeGrid, tuple[float, ...]]:
    """The best grid on the way down from a start, and the bound after each iteration."""
    grids = GridParameters(schedule, steps, "lam", floor=0.01)
    first, last = grids.ends()
    logits = grids.logits(start).requires_grad_()
    best, lowest, curve = logits.detach().clone(), math.inf, []
    adam = torch.optim.Adam([logits], betas=(0.9, 0.99))
    for number in range(iterations + 1):
        share = grids.shares(logits).cumsum(0)
        lam = first + (last - first) * torch.cat([torch.zeros_like(share[:1]), share])
        bound = error_bound(lam, p).log()  # bounds of different N are of different size
        curve.append(math.exp(bound.item()))
        if curve[-1] < lowest:
            lowest, best = curve[-1], logits.detach().clone()
        (logits.grad,) = torch.autograd.grad(bound, logits)
        adam.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * number / iterations))
        adam.step()
    still = torch.zeros(steps - 1, dtype=torch.float64, device="cpu")
    return grids.grid(best, still), tuple(curve)


@dataclass(frozen=True)
class DMN:
    """The error bound of exponential integrators, without a network."""

    source: ClassVar[str] = "DMN (Xue et al. 2024): lowest bound on the error of the solver"
    needs: ClassVar[frozenset[Need]] = frozenset()

    p: float | None = None  # None: 2 for latent models, 1 for others
    start: Literal["lam", "t", "both"] = "both"
    iterations: int = 200

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise SpecError(f"start: got {self.start!r}, expected lam, t or both")

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        schedule, steps = problem.model.schedule, problem.steps
        latent = is_latent(problem.model, problem.train.noise.device)
        p = (2.0 if latent else 1.0) if self.p is None else self.p
        tried = []
        for name in STARTS[self.start]:
            start = HANDMADE[name](schedule, steps)
            tried.append(lowest_bound(schedule, steps, start, p, self.iterations))
            progress(len(tried), len(STARTS[self.start]))
        grid, curve = min(tried, key=lambda found: min(found[1]))
        return Found(TunedSolver(problem.solver, grid), 0, curve)
