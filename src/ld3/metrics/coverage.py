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
from ld3.metrics.kernel import blocks, feature_pair


@dataclass(frozen=True)
class PrecisionRecall:
    precision: float
    recall: float


def precision_recall(real: Tensor, fake: Tensor, k: int = 3) -> PrecisionRecall:
    """Of features (n, D) of data and (m, D) of samples."""
    x, y = feature_pair(real, fake, "precision and recall")
    if not 1 <= k < min(len(x), len(y)):
        raise SpecError(
            f"precision and recall: got k = {k} with {len(x)} and {len(y)} points, wanted k from "
            "1 to below the smaller number"
        )
    return PrecisionRecall(_inside(y, x, k), _inside(x, y, k))


def _inside(points: Tensor, others: Tensor, k: int) -> float:
    """The share of points in a ball of one of the others."""
    nearest = (torch.cdist(part, others).topk(k + 1, largest=False) for part in blocks(others))
    reach = torch.cat([found.values[:, k] for found in nearest])  # the nearest of all is itself
    inside = (torch.cdist(part, others) <= reach for part in blocks(points))
    return sum(int(part.any(1).sum()) for part in inside) / len(points)
