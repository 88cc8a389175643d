"""Guidance as part of a plan: which evaluations pay for the unconditional pass, and what the others
use instead.

With c_j and u_j the conditional and the unconditional answer of evaluation j, as x0, and w the
scale, the *direction* of guidance is e_j = (w - 1)(c_j - u_j). The answer that the solver gets is

    m_j = c_j + sum_{i in S, i <= j} A[j, i] e_i

where S holds the evaluations with both passes. Classifier-free guidance is S = all and A = 1: then
m_j = u_j + w (c_j - u_j). An evaluation outside of S costs one pass and reuses earlier directions.
N evaluations cost N + |S| passes.

A does not depend on w: a plan with A can be used at another scale, as one without it can.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RIDGE = 1e-3  # of the mean square of a direction, in fits


@dataclass(frozen=True)
class Guidance:
    """S and A."""

    guided: tuple[int, ...]  # S, rising
    weights: Tensor  # A (M, |S|), zero where i > j; float64 on the CPU

    @property
    def passes(self) -> int:
        return len(self.weights) + len(self.guided)

    @classmethod
    def full(cls, count: int) -> "Guidance":
        """Classifier-free guidance at each of `count` evaluations."""
        return cls(tuple(range(count)), torch.eye(count, dtype=torch.float64, device="cpu"))

    @classmethod
    def last(cls, guided: Sequence[int], count: int) -> "Guidance":
        """Each evaluation uses the newest direction with weight 1."""
        weights = torch.zeros(count, len(guided), dtype=torch.float64, device="cpu")
        for j in range(count):
            if past := sum(i <= j for i in guided):
                weights[j, past - 1] = 1.0
        return cls(tuple(guided), weights)

    @classmethod
    def fitted(cls, guided: Sequence[int], gram: Tensor) -> "Guidance":
        """An evaluation outside of S uses the least-squares fit of its own direction to earlier
        ones. `gram` (M, M) holds the mean inner products <e_i, e_j> of full guidance."""
        weights = cls.last(guided, len(gram)).weights
        for j in (j for j in range(len(gram)) if j not in guided):
            past = [i for i in guided if i < j]
            if past:
                square = gram[past][:, past]
                damp = RIDGE * square.diagonal().mean().clamp_min(1e-30)
                eye = torch.eye(len(past), dtype=gram.dtype, device=gram.device)
                weights[j, : len(past)] = torch.linalg.solve(square + damp * eye, gram[past, j])
        return cls(tuple(guided), weights)


def places(guided: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of A that may differ from zero, in (M, |S|)."""
    free = torch.arange(count, device="cpu")[:, None] >= torch.tensor(guided, device="cpu")
    rows, columns = free.nonzero(as_tuple=True)
    return rows, columns
