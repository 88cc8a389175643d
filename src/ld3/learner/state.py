"""The state of a run between two iterations, and its tensors on disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from ld3.errors import StoreError
from ld3.learner.optimizers import Memory
from ld3.parameters import GROUPS, Values

MAPPINGS = ("values", "average", "best_values", "rates", "optimizer")


@dataclass(frozen=True)
class State:
    """Everything a run needs to continue to the bit."""

    iteration: int
    values: Values
    average: Values  # moving average of the values over iterations
    best_values: Values
    best: float  # validation loss of the best values
    rates: Mapping[str, Tensor]  # () each
    scales: Tensor  # (K,) of the losses of the problems: 1 / loss at the start, if several
    preconditioner: Tensor  # W (P, P); empty without
    noise_train: Tensor  # z' of the pairs (M, *S); empty with hard forcing
    noise_valid: Tensor
    rate_noise: float = 0.0
    secant: float = 0.0
    optimizer: Mapping[str, Memory] = field(default_factory=dict)
    since_best: int = 0  # validations
    at_minimum: int = 0  # plateaus with all rates at their minimum
    skipped: int = 0  # batches with a loss or slope that is not finite
    evaluations: int = 0  # of the network on one sample; a backward pass counts two
    done: bool = False

    def to_tensors(self) -> dict[str, Tensor]:
        """Every field as tensors, with dotted names for nested ones."""
        return _flatten("", vars(self))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "State":
        """The inverse; a missing or surplus field raises :class:`StoreError`."""
        nested: dict[str, Any] = {"rates": {}, "optimizer": {}}
        scalars = {f.name: f.type for f in fields(cls) if f.type in (int, float, bool)}
        try:
            for name, value in tensors.items():
                *outer, last = name.split(".")
                inside = nested
                for part in outer:
                    inside = inside.setdefault(part, {})
                    if not isinstance(inside, dict):
                        raise KeyError(name)
                inside[last] = value
            nested |= {name: kind(nested[name].item()) for name, kind in scalars.items()}
            if any(set(nested[name]) != set(GROUPS) for name in MAPPINGS[:3]):
                raise KeyError("values")
            if not all(isinstance(nested[name], dict) for name in MAPPINGS):
                raise KeyError("rates")
            return cls(**nested)
        except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise StoreError(f"saved state: got {error}, wanted all parts of a run") from None


def _flatten(name: str, value: Any) -> dict[str, Tensor]:
    if isinstance(value, Mapping):
        inner = (_flatten(f"{name}.{key}".lstrip("."), part) for key, part in value.items())
        return {key: tensor for part in inner for key, tensor in part.items()}
    if isinstance(value, Tensor):
        return {name: value}
    kind = torch.float64 if isinstance(value, float) else torch.int64
    return {name: torch.tensor(value, dtype=kind, device="cpu")}
