"""Single steps of torch.optim, with the optimiser's memory as tensors that can be stored."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer, RMSprop

Memory = Mapping[str, Tensor]
OPTIMIZERS: dict[str, Callable[[list[Tensor], float], Optimizer]] = {
    "sgd": lambda values, rate: SGD(values, rate),
    "rmsprop": lambda values, rate: RMSprop(values, rate, momentum=0.9),
    "adam": lambda values, rate: Adam(values, rate, betas=(0.9, 0.99)),
}


def optimizer_step(
    rule: str, values: Tensor, slope: Tensor, rate: float, memory: Memory
) -> tuple[Tensor, dict[str, Tensor]]:
    """The values after one step along a slope, and the optimiser's memory after it."""
    values = values.detach().clone()
    values.grad = slope.detach()
    optimizer = OPTIMIZERS[rule]([values], rate)
    optimizer.state[values] = {name: part.clone() for name, part in memory.items()}
    optimizer.step()
    kept = optimizer.state[values].items()
    return values, {name: part for name, part in kept if isinstance(part, Tensor)}


def clipped(slope: Tensor, norm: float) -> Tensor:
    """slope * min(1, norm / |slope|)."""
    return slope * torch.clamp(norm / (torch.linalg.vector_norm(slope) + 1e-6), max=1.0)
