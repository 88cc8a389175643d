"""A solver on a space: its own formulas, in the tangent space.

In variance-exploding coordinates a method that extrapolates eps takes the step

    x_+ = x + v        v = sum_j c_j eps_j

On a space the plus is `move`. The solver finds v itself: it is given x = 0, and eps as a tangent.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.grids import Knots
from ld3.solvers.base import Denoise, History, Solver, Step
from ld3.spaces import Space


@dataclass(frozen=True)
class OnSpace:
    """Steps of a solver for states that are moved; `denoise` gives eps as tangents (B, D)."""

    solver: Solver
    space: Space

    def __post_init__(self) -> None:
        if self.solver.form != "eps" or self.solver.nfe(1) != 1:
            raise SpecError(
                f"solver: got {self.solver.name}, expected one that extrapolates eps with one "
                "evaluation per step (euler, euler-log, ipndm, deis): the states are not vectors; "
                "a compiled table takes every solver"
            )

    def step(self, denoise: Denoise, k: Knots, i: int, x: Tensor, history: History) -> Step:
        """x at t_i -> x at t_{i+1}; `k` has one number per coordinate of a tangent."""
        eps = denoise(x, k.net[i])  # (B, D)
        seen = -k.net_sigma[i] * eps  # the x0 that goes with eps, seen from 0
        v, history = self.solver.step(lambda zero, t: seen, k, i, torch.zeros_like(seen), history)
        return self.space.move(x, v.to(eps.dtype)), history
