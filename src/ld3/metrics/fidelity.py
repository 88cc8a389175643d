"""Fidelity: how far samples are from a reference made from the same noise, sample by sample.

    rmse(x, y) = sqrt(mean_i (x_i - y_i)^2)        over the values of one sample

The reference is the teacher, or an accurate solution of the same ODE. A few trajectories near a
border between two modes can hold most of the error, so a mean stands beside the median and the
worst sample. No features, no data: what is lost by taking few steps and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import SpecError


@dataclass(frozen=True)
class Spread:
    """Mean, median and worst of one number per sample."""

    mean: float
    median: float
    worst: float
    worst_index: int  # which sample it is

    @classmethod
    def of(cls, values: Tensor) -> "Spread":
        """Of values (B,)."""
        if values.ndim != 1 or not len(values):
            raise SpecError(f"spread: got values of shape {tuple(values.shape)}, expected (B,)")
        v = values.detach().to("cpu", torch.float64)
        index = int(v.argmax())
        return cls(float(v.mean()), float(v.quantile(0.5)), float(v[index]), index)


@dataclass(frozen=True)
class Fidelity:
    """The distance of samples to a reference."""

    rmse: Spread
    perceptual: Spread | None = None


def rmse(a: Tensor, b: Tensor) -> Tensor:
    """Root mean square of a - b, (B, *S), (B, *S) -> (B,), in float64."""
    if a.shape != b.shape or a.ndim < 2:
        raise SpecError(
            f"fidelity: got samples of shape {tuple(a.shape)} and a reference of shape "
            f"{tuple(b.shape)}, expected twice the same (B, *S), made from the same noise"
        )
    return (a.double() - b.double()).flatten(1).square().mean(1).sqrt()


@torch.no_grad()
def per_sample(
    distance: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, batch: int = 100
) -> Tensor:
    """Any distance of :mod:`ld3.distances`, a batch at a time: (B,)."""
    parts = [slice(first, first + batch) for first in range(0, len(a), batch)]
    return torch.cat([distance(a[part], b[part]) for part in parts])


def fidelity(
    samples: Tensor,
    reference: Tensor,
    perceptual: Callable[[Tensor, Tensor], Tensor] | None = None,
    batch: int = 100,
) -> Fidelity:
    """Samples (B, *S) against a reference (B, *S); `perceptual` adds a distance of your choice."""
    own = Spread.of(rmse(samples, reference))
    if perceptual is None:
        return Fidelity(own)
    return Fidelity(own, Spread.of(per_sample(perceptual, samples, reference, batch)))
