"""Maximum mean discrepancy: two sets of features compared by a kernel.

    MMD^2 = E k(x, x') + E k(y, y') - 2 E k(x, y)

KID takes k(x, y) = (x.y / D + 1)^3 and leaves out pairs of a sample with itself, which makes the
estimate unbiased: it may be negative, and does not depend on the number of samples on average
(Bińkowski et al. 2018, arXiv 1801.01401). CMMD takes k(x, y) = exp(-|x - y|^2 / (2 sigma^2)) on
features of length 1, keeps these pairs, and multiplies by 1000 (Jayasumana et al. 2024,
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


def kid(a: Tensor, b: Tensor, *, subsets: int = 100, size: int | None = None, seed: int = 0) -> Kid:
    """KID of features (n, D) and (m, D): mean and spread over random subsets of both.

    `size` samples of each side go into a subset, by default 1000 or as many as there are.
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
        rows = (torch.randperm(len(f), generator=generator)[:count] for f in (x, y))
        values.append(polynomial_mmd(*(f[i] for f, i in zip((x, y), rows, strict=True))))
    found = torch.tensor(values, dtype=torch.float64)
    return Kid(float(found.mean()), float(found.std(correction=0)))


def polynomial_mmd(a: Tensor, b: Tensor) -> float:
    """KID's unbiased estimate from all pairs at once: no subsets, no chance."""
    x, y = feature_pair(a, b, "KID")
    n, m = len(x), len(y)
    own_x = _total(x, x, _polynomial) - float(_polynomial_self(x).sum())
    own_y = _total(y, y, _polynomial) - float(_polynomial_self(y).sum())
    across = _total(x, y, _polynomial)
    return own_x / (n * (n - 1)) + own_y / (m * (m - 1)) - 2 * across / (n * m)


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


def _polynomial(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.T / x.shape[1] + 1) ** 3


def _polynomial_self(x: Tensor) -> Tensor:
    return (x.square().mean(1) + 1) ** 3


def _total(x: Tensor, y: Tensor, kernel: Callable[[Tensor, Tensor], Tensor]) -> float:
    """The sum of k over all pairs."""
    return sum(float(kernel(p, q).sum()) for p in blocks(x) for q in blocks(y))
