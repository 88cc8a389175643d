"""The state of a run as tensors, for files."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ld3.errors import StoreError
from ld3.learner.state import State
from ld3.parameters import GROUPS, GUIDANCE

VALUES = ("values", "average", "best_values")
OPTIONAL = ("rates", "optimizer", "anchor")  # mappings that may be empty


def to_tensors(state: State) -> dict[str, Tensor]:
    """Every field as tensors, with dotted names for nested ones."""
    return _flatten("", vars(state))


def from_tensors(tensors: Mapping[str, Tensor]) -> State:
    """The inverse; a missing or surplus field raises :class:`StoreError`."""
    nested: dict[str, Any] = {name: {} for name in OPTIONAL}
    scalars = {f.name: f.type for f in fields(State) if f.type in (int, float, bool)}
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
        if any(set(nested[name]) - {GUIDANCE} != set(GROUPS) for name in VALUES):
            raise KeyError("values")
        if not all(isinstance(nested[name], dict) for name in VALUES + OPTIONAL):
            raise KeyError("rates")
        return State(**nested)
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise StoreError(f"saved state: got {error}, expected all parts of a run") from None


def _flatten(name: str, value: Any) -> dict[str, Tensor]:
    if isinstance(value, Mapping):
        inner = (_flatten(f"{name}.{key}".lstrip("."), part) for key, part in value.items())
        return {key: tensor for part in inner for key, tensor in part.items()}
    if isinstance(value, Tensor):
        return {name: value}
    kind = torch.float64 if isinstance(value, float) else torch.int64
    return {name: torch.tensor(value, dtype=kind, device="cpu")}
