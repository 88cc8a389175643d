"""Maximum mean discrepancy: two sets of features compared by a kernel.

    MMD^2 = E k(x, x') + E k(y, y') - 2 E k(x, y)

KID takes ``k(x, y) = (x.y / D + 1)^3`` and leaves out pairs of a sample with itself, which makes
the estimate unbiased: it may be negative, and does not depend on the number of samples on average
(Bińkowski et al. 2018, arXiv 1801.01401). CMMD takes ``k(x, y) = exp(-|x - y|^2 / (2 sigma^2))``
on features of length 1, keeps these pairs, and multiplies by 1000 (Jayasumana et al. 2024,
arXiv 2401.09603, there with CLIP embeddings).

Sums run over blocks of pairs in float64: memory does not grow with the square of the samples.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import SpecError

BLOCK = 1024  # rows of each side at a time
SIZE = 1000  # samples in a subset of KID, where there are so many


@dataclass(frozen=True)
class Kid:
    """The kernel distance over subsets."""

    mean: float
    std: float  # over subsets: of one subset, not of the mean


def kid(
    a: Tensor,
    b: Tensor,
    *,
    paired: bool = False,
    subsets: int = 100,
    size: int | None = None,
    seed: int = 0,
) -> Kid:
    """KID of features (n, D) and (m, D): mean and spread over random subsets of both.

    `size` samples of each side go into a subset, by default 1000 or as many as there are. `paired`
    is explained at :func:`polynomial_mmd`; the subsets are then of the same rows.
    """
    x, y = feature_pair(a, b, "KID")
    most = min(len(x), len(y))
    count = min(SIZE, most) if size is None else size
    if not 2 <= count <= most or subsets < 1:
        raise SpecError(
            f"KID: got {subsets} subsets of {count}, wanted at least 1 of 2 to {most}, the number "
            "of samples"
        )
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(subsets):
        rows = torch.randperm(len(x), generator=generator)[:count]
        others = rows if paired else torch.randperm(len(y), generator=generator)[:count]
        values.append(polynomial_mmd(x[rows], y[others], paired=paired))
    found = torch.tensor(values, dtype=torch.float64)
    return Kid(float(found.mean()), float(found.std(correction=0)))


def polynomial_mmd(a: Tensor, b: Tensor, *, paired: bool = False) -> float:
    """KID's unbiased estimate from all pairs at once: no subsets, no chance.

    `paired` says that row i of both sets came from the same noise. The two are then not
    independent, and k(x_i, y_i) is left out as well; with it the estimate would be too small.
    """
    x, y = feature_pair(a, b, "KID")
    n, m = len(x), len(y)
    if paired and n != m:
        raise SpecError(f"KID: got {n} and {m} samples, wanted as many of both where paired")
    own_x = (_total(x, x, polynomial) - _twins(x, x)) / (n * (n - 1))
    own_y = (_total(y, y, polynomial) - _twins(y, y)) / (m * (m - 1))
    across = _total(x, y, polynomial)
    across = (across - _twins(x, y)) / (n * (n - 1)) if paired else across / (n * m)
    return own_x + own_y - 2 * across


def cmmd(a: Tensor, b: Tensor, *, sigma: float = 10.0, scale: float = 1000.0) -> float:
    """CMMD's estimate for features (n, D) and (m, D), which are brought to length 1 first."""
    if not sigma > 0:
        raise SpecError(f"CMMD: got sigma {sigma}, wanted it above 0")
    x, y = (torch.nn.functional.normalize(f) for f in feature_pair(a, b, "CMMD"))

    def gaussian(p: Tensor, q: Tensor) -> Tensor:
        square = p.square().sum(1)[:, None] + q.square().sum(1) - 2 * p @ q.T
        return torch.exp(square.clamp_min(0) / (-2 * sigma**2))

    own = (_total(f, f, gaussian) / len(f) ** 2 for f in (x, y))
    return scale * (sum(own) - 2 * _total(x, y, gaussian) / (len(x) * len(y)))


def feature_pair(a: Tensor, b: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Both in float64 on the CPU, after a check of their shapes."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise SpecError(
            f"{what}: got features of shapes {tuple(a.shape)} and {tuple(b.shape)}, wanted (n, D) "
            "and (m, D) with at least 2 rows and the same D"
        )
    return a.detach().to("cpu", torch.float64), b.detach().to("cpu", torch.float64)


def blocks(features: Tensor) -> list[Tensor]:
    """A part of the rows at a time."""
    return [features[i : i + BLOCK] for i in range(0, len(features), BLOCK)]


def polynomial(x: Tensor, y: Tensor) -> Tensor:
    """KID's k of all pairs, (n, D), (m, D) -> (n, m)."""
    return (x @ y.T / x.shape[1] + 1) ** 3


def _twins(x: Tensor, y: Tensor) -> float:
    """The sum of k over pairs of equal rows."""
    return float((((x * y).mean(1) + 1) ** 3).sum())


def _total(x: Tensor, y: Tensor, kernel: Callable[[Tensor, Tensor], Tensor]) -> float:
    """The sum of k over all pairs."""
    return sum(float(kernel(p, q).sum()) for p in blocks(x) for q in blocks(y))
