"""Agreement: does a classifier see the class of the condition?

    agreement = share of samples with argmax_c logits_c = label

For conditional models. A classifier is not perfect: compare with its accuracy on data, and with an
accurate run of the same model.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ld3.errors import SpecError


def agreement(logits: Tensor, labels: Tensor) -> float:
    """Share of samples whose largest class score is the requested one, from scores (B, C)
    and the classes of the conditions (B,)."""
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise SpecError(
            f"agreement: got scores of shape {tuple(logits.shape)} and labels of shape "
            f"{tuple(labels.shape)}, expected (B, C) and (B,)"
        )
    return float((logits.argmax(1) == labels.to(logits.device)).double().mean())


def balanced_labels(seeds: Sequence[int], classes: int) -> Tensor:
    """The class for each seed, seed mod classes: any `classes` seeds in a row have each once."""
    if classes < 1:
        raise SpecError(f"labels: got {classes} classes, expected at least 1")
    return torch.tensor([seed % classes for seed in seeds], dtype=torch.int64)
