"""Precision and recall: are samples like data, and is data like samples?

Each point of a set gets a ball that reaches to its k-th nearest neighbour in the set; the union of
the balls stands for where the set is. Then

    precision = share of samples inside the union of the data      (quality)
    recall    = share of data inside the union of the samples      (variety)

(Kynkäänniemi et al. 2019, arXiv 1904.06991.) Both depend on the number of points: use as many
samples as data, and compare only like with like.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.metrics.kernel import FeatureSet, feature_pair


@dataclass(frozen=True)
class PrecisionRecall:
    """Shares of samples inside the data, and of data inside the samples."""

    precision: float
    recall: float


def precision_recall(real: Tensor, fake: Tensor, k: int = 3) -> PrecisionRecall:
    """Precision and recall by k nearest neighbours, of features (n, D) of data and (m, D) of
    samples."""
    x, y = feature_pair(real, fake, "precision and recall")
    return precisions_recalls(FeatureSet.of(x), FeatureSet.of(y), k)[0]


def precisions_recalls(real: FeatureSet, fake: FeatureSet, k: int = 3) -> list[PrecisionRecall]:
    """With all samples; then, if they have several groups, without each of them in turn.

    The balls of the samples are then found anew among those that are left.
    """
    groups = len(fake.sizes)
    smallest = min(len(real), len(fake) - (max(fake.sizes) if groups > 1 else 0))
    if not 1 <= k < smallest:
        raise SpecError(
            f"precision and recall: got k = {k} with {len(real)} and {len(fake)} points, expected "
            "k from 1 to below the smaller number"
        )
    of_data, of_samples = _reach(real, k), _reach(fake, k)  # (n, 1 + H), (m, 1 + G)
    inside = _inside(fake, real, of_data[:, :1])[:, 0]  # (m,)
    covered = _inside(real, fake, of_samples)  # (n, 1 + G)
    group = torch.repeat_interleave(
        torch.arange(groups, device="cpu"), torch.tensor(fake.sizes, device="cpu")
    )
    found = [PrecisionRecall(_share(inside), _share(covered[:, 0]))]
    for g in range(groups if groups > 1 else 0):
        found.append(PrecisionRecall(_share(inside[group != g]), _share(covered[:, 1 + g])))
    return found


def _share(inside: Tensor) -> float:
    return float(inside.double().mean())


def _reach(points: FeatureSet, k: int) -> Tensor:
    """The distance of each point to its k-th nearest neighbour (n, 1), and, where there are
    several groups, to the k-th nearest outside of each group (n, 1 + G)."""
    groups = len(points.sizes)
    rows = []
    for _, part in points.large_blocks():
        near = [part.new_full((len(part), 0), torch.inf) for _ in range(groups)]
        for g, others in points.large_blocks():
            both = torch.cat([near[g], _smallest(torch.cdist(part, others), k + 1)], 1)
            near[g] = _smallest(both, k + 1)
        kept = [near, *([n for h, n in enumerate(near) if h != g] for g in range(groups))]
        columns = [torch.cat(some, 1).sort(1).values for some in kept[: 1 + groups * (groups > 1)]]
        rows.append(torch.stack([c[:, k] for c in columns], 1))  # the nearest of all is itself
    return torch.cat(rows)


def _smallest(rows: Tensor, k: int) -> Tensor:
    """The k smallest of each row (n, k), or all where there are fewer."""
    return rows.topk(min(k, rows.shape[1]), largest=False).values


def _inside(points: FeatureSet, others: FeatureSet, reach: Tensor) -> Tensor:
    """Whether points are in a ball of one of the others, (n, columns of reach); column 1 + g leaves
    out the others of group g."""
    parts = []
    for _, part in points.large_blocks():
        found = torch.zeros(len(part), reach.shape[1], dtype=torch.bool, device="cpu")
        done = 0
        for g, some in others.large_blocks():
            apart, own = torch.cdist(part, some), reach[done : done + len(some)]
            for column in range(reach.shape[1]):
                if column != 1 + g:
                    found[:, column] |= (apart <= own[:, column]).any(1)
            done += len(some)
        parts.append(found)
    return torch.cat(parts)
