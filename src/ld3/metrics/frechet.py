"""The Fréchet distance between two sets of samples, seen as Gaussians in a space of features.

    d^2 = |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1^{1/2} C_2 C_1^{1/2})^{1/2})

(Heusel et al. 2017, arXiv 1706.08500, there with Inception features: FID.) It depends on the
features and, biased upwards, on the number of samples: compare only like with like.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import SpecError


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of features, in float64; summed so that parts can be added."""

    count: int
    total: Tensor  # (D,) sum of features
    outer: Tensor  # (D, D) sum of f f^T

    @classmethod
    def of(cls, batches: Iterable[Tensor]) -> "Moments":
        """From features (B, D) in batches of any size."""
        count, total, outer = 0, None, None
        for batch in batches:
            f = batch.detach().to("cpu", torch.float64)
            total = f.sum(0) if total is None else total + f.sum(0)
            outer = f.T @ f if outer is None else outer + f.T @ f
            count += len(f)
        if total is None or outer is None or count < 2:
            raise SpecError(f"Fréchet distance: got {count} samples, wanted at least 2")
        return cls(count, total, outer)

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


def frechet_distance(a: Moments, b: Moments) -> float:
    """d^2 of the formula above, in float64; symmetric matrices only, so no complex roots."""
    values, vectors = torch.linalg.eigh(a.cov)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    cross = torch.linalg.eigvalsh(root @ b.cov @ root).clamp_min(0).sqrt().sum()
    distance = (a.mean - b.mean).square().sum() + a.cov.trace() + b.cov.trace() - 2 * cross
    return float(distance)
