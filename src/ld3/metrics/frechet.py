"""The Fréchet distance between two sets of samples, seen as Gaussians in a space of features.

    d^2 = |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1^{1/2} C_2 C_1^{1/2})^{1/2})

(Heusel et al. 2017, arXiv 1706.08500, there with Inception features: FID.) It depends on the
features and, biased upwards, on the number of samples: compare only like with like. The bias falls
as 1/N (Chong, Forsyth 2020, arXiv 1911.07023), so that two numbers of samples remove most of it:

    d^2(N) = d^2(inf) + c/N     =>     d^2(inf) = 2 d^2(N) - d^2(N/2)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

import torch
from torch import Tensor

from ld3.errors import SpecError


@dataclass(frozen=True)
class Gaussian:
    """Mean and covariance in float64, with the root of the covariance, which is found once."""

    mean: Tensor  # (D,)
    cov: Tensor  # (D, D)

    @cached_property
    def root(self) -> Tensor:
        """C^{1/2}, from a symmetric eigenproblem: no complex roots."""
        values, vectors = torch.linalg.eigh(self.cov)
        found: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
        return found


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of features, in float64; summed so that parts can be added."""

    count: int
    total: Tensor  # (D,) sum of features
    outer: Tensor  # (D, D) sum of f f^T

    @classmethod
    def of(cls, batches: Iterable[Tensor]) -> "Moments":
        """From features (B, D) in batches of any size."""
        found: Moments | None = None
        for batch in batches:
            more = cls.sums(batch)
            found = more if found is None else found + more
        if found is None or found.count < 2:
            count = 0 if found is None else found.count
            raise SpecError(f"Fréchet distance: got {count} samples, expected at least 2")
        return found

    @classmethod
    def sums(cls, batch: Tensor) -> "Moments":
        """Of features (B, D), to be added to others."""
        f = batch.detach().to("cpu", torch.float64)
        return cls(len(f), f.sum(0), f.T @ f)

    @classmethod
    def known(cls, mean: Tensor, cov: Tensor, count: int) -> "Moments":
        """From a mean and covariance that were computed before."""
        mean, cov = mean.double(), cov.double()
        return cls(count, count * mean, (count - 1) * cov + count * torch.outer(mean, mean))

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.count + other.count, self.total + other.total, self.outer + other.outer)

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    @property
    def cov(self) -> Tensor:
        return (self.outer - torch.outer(self.total, self.mean)) / (self.count - 1)

    @cached_property
    def gaussian(self) -> Gaussian:
        return Gaussian(self.mean, self.cov)


def frechet_distance(a: Moments | Gaussian, b: Moments | Gaussian) -> float:
    """d^2 of the formula above, in float64; the root is taken of b, once for all a."""
    p, q = (each.gaussian if isinstance(each, Moments) else each for each in (a, b))
    cross = torch.linalg.eigvalsh(q.root @ p.cov @ q.root).clamp_min(0).sqrt().sum()
    distance = (p.mean - q.mean).square().sum() + p.cov.trace() + q.cov.trace() - 2 * cross
    return float(distance)


def frechet_at_infinity(parts: Sequence[Moments], to: Gaussian) -> float:
    """2 d^2(N) - d^2(N/2) for samples in an even number of parts of about one size.

    d^2(N/2) is the mean over as many halves as there are parts: each is a run of parts, around the
    end to the front.
    """
    count = len(parts)
    if count < 2 or count % 2:
        raise SpecError(f"Fréchet distance: got {count} parts, expected an even number of them")
    turns = [[*parts[first:], *parts[:first]][: count // 2] for first in range(count)]
    halves = [frechet_distance(reduce(add, half), to) for half in turns]
    return 2 * frechet_distance(reduce(add, parts), to) - sum(halves) / count
