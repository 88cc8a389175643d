"""Optimisers for a handful of numbers, with their memory in plain sight.

Each takes the slope g and its memory and returns the direction of the step and the new memory. They
are the rules of torch.optim (tests compare them), written out because a run must be able to stop
and go on to the bit from tensors in a file, and the memory of torch.optim is not that.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Memory = Mapping[str, Tensor]
Rule = Callable[[Tensor, Memory], tuple[Tensor, dict[str, Tensor]]]


def sgd(slope: Tensor, memory: Memory) -> tuple[Tensor, dict[str, Tensor]]:
    """The slope itself."""
    return slope, dict(memory)


def rmsprop(slope: Tensor, memory: Memory) -> tuple[Tensor, dict[str, Tensor]]:
    """g / sqrt(mean of g^2) with momentum 0.9: the paper's rule for the times."""
    zero = torch.zeros_like(slope)
    square = 0.99 * memory.get("square", zero) + 0.01 * slope**2
    direction = 0.9 * memory.get("momentum", zero) + slope / (square.sqrt() + 1e-8)
    return direction, {"square": square, "momentum": direction}


def adam(slope: Tensor, memory: Memory) -> tuple[Tensor, dict[str, Tensor]]:
    """Adam with betas (0.9, 0.99)."""
    zero = torch.zeros_like(slope)
    count = memory.get("count", torch.zeros((), dtype=torch.float64, device="cpu")) + 1
    mean = 0.9 * memory.get("mean", zero) + 0.1 * slope
    square = 0.99 * memory.get("square", zero) + 0.01 * slope**2
    direction = (mean / (1 - 0.9**count)) / ((square / (1 - 0.99**count)).sqrt() + 1e-8)
    return direction, {"count": count, "mean": mean, "square": square}


RULES: dict[str, Rule] = {"sgd": sgd, "rmsprop": rmsprop, "adam": adam}


def clipped(slope: Tensor, norm: float) -> Tensor:
    """The slope, shortened to length `norm` if it is longer."""
    return slope * torch.clamp(norm / (torch.linalg.vector_norm(slope) + 1e-6), max=1.0)
