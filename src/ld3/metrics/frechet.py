"""The Fréchet distance between two sets of samples, seen as Gaussians in a space of features.

    d^2 = |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1^{1/2} C_2 C_1^{1/2})^{1/2})

(Heusel et al. 2017, arXiv 1706.08500, there with Inception features: FID.) It depends on the
features and, biased upwards, on the number of samples: compare only like with like. The bias falls
as 1/N (Chong, Forsyth 2020, arXiv 1911.07023), so that two numbers of samples remove most of it:

    d^2(N) = d^2(inf) + c/N     =>     d^2(inf) = 2 d^2(N) - d^2(N/2)

The trace of the root is a sum over D eigenvalues. Fewer samples than features have a covariance
C_1 = F^T F with a short factor F (n, D); then only the n eigenvalues of F C_2 F^T can differ from
0.
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
    factor: Tensor | None = None  # (n, D) with n < D: F of cov = F^T F

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
    squares: Tensor  # (D, D) sum of f f^T; if `few`, the features (count, D) themselves
    few: bool = False  # fewer samples than features

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
        few = len(f) < f.shape[1]
        return cls(len(f), f.sum(0), f if few else f.T @ f, few)

    @classmethod
    def known(cls, mean: Tensor, cov: Tensor, count: int) -> "Moments":
        """From a mean and covariance that were computed before."""
        mean, cov = mean.double(), cov.double()
        return cls(count, count * mean, (count - 1) * cov + count * torch.outer(mean, mean))

    def __add__(self, other: "Moments") -> "Moments":
        count, total = self.count + other.count, self.total + other.total
        if self.few and other.few and count < len(total):
            return Moments(count, total, torch.cat((self.squares, other.squares)), few=True)
        return Moments(count, total, self.outer + other.outer)

    @property
    def outer(self) -> Tensor:
        """sum of f f^T (D, D)"""
        return self.squares.T @ self.squares if self.few else self.squares

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    @property
    def cov(self) -> Tensor:
        return (self.outer - torch.outer(self.total, self.mean)) / (self.count - 1)

    @cached_property
    def gaussian(self) -> Gaussian:
        if not self.few:
            return Gaussian(self.mean, self.cov)
        factor = (self.squares - self.mean) / (self.count - 1) ** 0.5
        return Gaussian(self.mean, factor.T @ factor, factor)


def frechet_distance(a: Moments | Gaussian, b: Moments | Gaussian) -> float:
    """`|m1 - m2|^2 + tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2)`, in float64. The root is that of b,
    once for all a. Rounding can put the value of equal sets a little below 0: it is then 0."""
    p, q = (each.gaussian if isinstance(each, Moments) else each for each in (a, b))
    if p.factor is None and q.factor is not None:
        p, q = q, p
    outer, inner = (q.root, p.cov) if p.factor is None else (p.factor, q.cov)
    cross = torch.linalg.eigvalsh(outer @ inner @ outer.T).clamp_min(0).sqrt().sum()
    distance = (p.mean - q.mean).square().sum() + p.cov.trace() + q.cov.trace() - 2 * cross
    return max(0.0, float(distance))


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
