"""Maximum mean discrepancy: two sets of features compared by a kernel.

    MMD^2 = E k(x, x') + E k(y, y') - 2 E k(x, y)

KID takes ``k(x, y) = (x.y / D + 1)^3`` and leaves out pairs of a sample with itself, which makes
the estimate unbiased: it may be negative, and does not depend on the number of samples on average
(Bińkowski et al. 2018, arXiv 1801.01401). CMMD takes ``k(x, y) = exp(-|x - y|^2 / (2 sigma^2))``
on features of length 1, keeps these pairs, and multiplies by 1000 (Jayasumana et al. 2024,
arXiv 2401.09603, there with CLIP embeddings).

Sums run over blocks of pairs in float64: memory does not grow with the square of the samples. A set
may also come in *groups* (:class:`FeatureSet`) and block by block, from a disk. Its sums are then
kept for every pair of groups, so that leaving a group out costs nothing more.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import SpecError

BLOCK = 512  # rows of each side at a time
SIZE = 1000  # samples in a subset of KID, where there are so many


Kernel = Callable[[Tensor, Tensor], Tensor]
Block = tuple[int, Tensor]  # the number of a group, and features (B, D) of it


@dataclass(frozen=True)
class FeatureSet:
    """Features in groups; `blocks` gives them again each time it is called, in order."""

    sizes: tuple[int, ...]  # rows of each group
    blocks: Callable[[], Iterable[Block]]

    @classmethod
    def of(cls, features: Tensor) -> "FeatureSet":
        """One group that is in memory."""
        return cls((len(features),), lambda: ((0, part) for part in blocks(features)))

    def __len__(self) -> int:
        return sum(self.sizes)

    def large_blocks(self) -> Iterator[Block]:
        """Joined to about :data:`BLOCK` rows where they are smaller."""
        group, rows = 0, list[Tensor]()
        for number, part in self.blocks():
            if rows and (number != group or sum(map(len, rows)) >= BLOCK):
                yield group, torch.cat(rows)
                rows = []
            group = number
            rows.append(part.detach().to("cpu", torch.float64))
        if rows:
            yield group, torch.cat(rows)


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
            f"KID: got {subsets} subsets of {count}, expected at least 1 of 2 to {most}, the "
            "number of samples"
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
    """KID's unbiased estimate from all pairs at once, without random subsets.

    `paired` says that row i of both sets came from the same noise. The two are then not
    independent, and k(x_i, y_i) is left out as well; with it the estimate would be too small.
    """
    x, y = feature_pair(a, b, "KID")
    if paired and len(x) != len(y):
        raise SpecError(
            f"KID: got {len(x)} and {len(y)} samples, expected as many of both where paired"
        )
    if not paired:
        return kids(FeatureSet.of(x), FeatureSet.of(y))[0]
    pairs = len(x) * (len(x) - 1)
    own = sum(_total(f, f, polynomial) - _twins(f, f) for f in (x, y))
    return (own - 2 * (_total(x, y, polynomial) - _twins(x, y))) / pairs


def kids(x: FeatureSet, y: FeatureSet) -> list[float]:
    """KID by all pairs of x and y; then, if x has several groups, without each of them in turn."""
    same_y = float(pair_sums(y, y, polynomial).sum() - _own(y).sum())
    own, twins, across = pair_sums(x, x, polynomial), _own(x), pair_sums(x, y, polynomial).sum(1)
    m, values = len(y), []
    for keep in _kept(x.sizes):
        n = int(torch.tensor(x.sizes, device="cpu")[keep].sum())
        inner = float(own[keep][:, keep].sum() - twins[keep].sum()) / (n * (n - 1))
        values.append(inner + same_y / (m * (m - 1)) - 2 * float(across[keep].sum()) / (n * m))
    return values


def cmmd(a: Tensor, b: Tensor, *, sigma: float = 10.0, scale: float = 1000.0) -> float:
    """CMMD's estimate for features (n, D) and (m, D), which are brought to length 1 first."""
    x, y = feature_pair(a, b, "CMMD")
    return cmmds(FeatureSet.of(x), FeatureSet.of(y), sigma=sigma, scale=scale)[0]


def cmmds(
    x: FeatureSet, y: FeatureSet, *, sigma: float = 10.0, scale: float = 1000.0
) -> list[float]:
    """CMMD of x and y; then, if x has several groups, without each of them in turn."""
    if not sigma > 0:
        raise SpecError(f"CMMD: got sigma {sigma}, expected it above 0")

    def gaussian(p: Tensor, q: Tensor) -> Tensor:
        p, q = torch.nn.functional.normalize(p), torch.nn.functional.normalize(q)
        square = p.square().sum(1)[:, None] + q.square().sum(1) - 2 * p @ q.T
        return torch.exp(square.clamp_min(0) / (-2 * sigma**2))

    same_y = float(pair_sums(y, y, gaussian).sum()) / len(y) ** 2
    own, across = pair_sums(x, x, gaussian), pair_sums(x, y, gaussian).sum(1)
    values = []
    for keep in _kept(x.sizes):
        n = int(torch.tensor(x.sizes, device="cpu")[keep].sum())
        inner, outer = float(own[keep][:, keep].sum()), float(across[keep].sum())
        values.append(scale * (inner / n**2 + same_y - 2 * outer / (n * len(y))))
    return values


def pair_sums(x: FeatureSet, y: FeatureSet, kernel: Kernel) -> Tensor:
    """Sums of k over all pairs of rows, by group of x and group of y: (G, H), float64."""
    sums = torch.zeros(len(x.sizes), len(y.sizes), dtype=torch.float64, device="cpu")
    for g, p in x.large_blocks():
        for h, q in y.large_blocks():
            sums[g, h] += kernel(p, q).sum()
    return sums


def _own(x: FeatureSet) -> Tensor:
    """Sums of k(f, f) by group, for KID."""
    sums = torch.zeros(len(x.sizes), dtype=torch.float64, device="cpu")
    for g, p in x.large_blocks():
        sums[g] += _twins(p, p)
    return sums


def _kept(sizes: tuple[int, ...]) -> list[Tensor]:
    """All groups; then all but one."""
    count = len(sizes)
    each = [torch.arange(count, device="cpu") != g for g in range(count)] if count > 1 else []
    return [torch.ones(count, dtype=torch.bool, device="cpu"), *each]


def feature_pair(a: Tensor, b: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Both in float64 on the CPU, after a check of their shapes."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise SpecError(
            f"{what}: got features of shapes {tuple(a.shape)} and {tuple(b.shape)}, expected "
            "(n, D) and (m, D) with at least 2 rows and the same D"
        )
    return a.detach().to("cpu", torch.float64), b.detach().to("cpu", torch.float64)


def blocks(features: Tensor) -> list[Tensor]:
    """A part of the rows at a time."""
    return [features[i : i + BLOCK] for i in range(0, len(features), BLOCK)]


def polynomial(x: Tensor, y: Tensor) -> Tensor:
    """KID's k of all pairs, (n, D), (m, D) -> (n, m)."""
    return (x @ y.T).div_(x.shape[1]).add_(1).pow_(3)  # one matrix in memory, not four


def _twins(x: Tensor, y: Tensor) -> float:
    """The sum of k over pairs of equal rows."""
    return float((((x * y).mean(1) + 1) ** 3).sum())


def _total(x: Tensor, y: Tensor, kernel: Kernel) -> float:
    """The sum of k over all pairs."""
    return float(pair_sums(FeatureSet.of(x), FeatureSet.of(y), kernel))
