"""Intervals: how far a number would move if other noise had been drawn.

Values v (S, n) are distances for S learning seeds on the same n held-out seeds. Their mean is
recomputed with weights of held-out and of learning seeds drawn anew, many times:

    mean = sum_s sum_i V_s W_i v_si      W, V shares of n-1 draws of n, and S-1 of S

The weights are one set for all methods (*paired*): hard noise is hard for all, so the ratio of two
methods is known far better than either mean. Draws are with replacement, and one fewer than there
are values: then the variance of the mean is the textbook's s^2/n, which matters for few seeds.

For numbers that belong to a whole set of samples, such as a Fréchet distance, drawing the same
sample twice would mislead; there blocks of samples are left out in turn (*jackknife*).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 4000
LEVEL = 0.95
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306,
           10: 2.262}  # fmt: skip
"""97.5 % quantile of Student's t for that many blocks."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A number with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Weights:
    """How much each held-out and each learning seed counts in each draw."""

    noises: Array  # (B, n), rows sum to 1
    seeds: Array  # (B, S)

    @classmethod
    def drawn(cls, noises: int, seeds: int, draws: int = DRAWS, seed: int = 0) -> "Weights":
        """The same for the same numbers, always."""
        chance = np.random.default_rng([seed, noises, seeds, draws])
        return cls(_counts(chance, draws, noises), _counts(chance, draws, seeds))

    def means(self, values: Array) -> Array:
        """(S, n) -> (B,); one row of values stands for all seeds."""
        rows = self.noises @ values.T  # (B, S)
        weights = self.seeds if len(values) > 1 else np.ones((len(rows), 1))
        drawn: Array = (weights * rows).sum(1)
        return drawn


def _counts(chance: np.random.Generator, draws: int, n: int) -> Array:
    if n == 1:
        return np.ones((draws, 1))
    picked = chance.integers(0, n, size=(draws, n - 1)) + n * np.arange(draws)[:, None]
    shares: Array = np.bincount(picked.ravel(), minlength=draws * n).reshape(draws, n) / (n - 1)
    return shares


def mean(values: Array, weights: Weights) -> Interval:
    """Of all values (S, n)."""
    return _interval(float(values.mean()), weights.means(values))


def ratio(values: Array, to: Array, weights: Weights) -> Interval:
    """Of the mean of `values` to that of `to`, on the same held-out seeds."""
    own, other = weights.means(values), weights.means(to)
    floor = np.finfo(np.float64).tiny
    value = float(values.mean()) / max(float(to.mean()), floor)
    return _interval(value, own / np.maximum(other, floor))


def _interval(value: float, drawn: Array) -> Interval:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(value, float(low), float(high))


def jackknife(values: Sequence[float], without: Sequence[Sequence[float]]) -> Interval:
    """For S seeds their `values` on all samples, and `without` each of G blocks in turn (S, G).

    se^2 = (G-1)/G sum_g (m_g - mean m)^2 + var_s / S with m_g the mean over seeds without block g.
    """
    left_out = np.asarray(without, dtype=np.float64).mean(0)  # (G,)
    blocks, seeds = len(left_out), len(values)
    square = (blocks - 1) / blocks * float(((left_out - left_out.mean()) ** 2).sum())
    if seeds > 1:
        square += float(np.var(values, ddof=1)) / seeds
    middle = float(np.mean(values))
    reach = STUDENT[blocks] * square**0.5
    return Interval(middle, middle - reach, middle + reach)


def wins(values: Array, to: Array) -> float:
    """The share of held-out seeds on which the mean over learning seeds is smaller."""
    return float((values.mean(0) < to.mean(0)).mean())
