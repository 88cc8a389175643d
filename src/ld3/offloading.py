"""Networks that accelerate's device map spreads over devices, memory and disk.

A weight that is not on its device right now is a meta tensor: shape and dtype, but no content. The
hook that accelerate attached to its module knows where the content is, and brings it while the
module runs.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ld3.errors import ModelError


def content_of(module: nn.Module, name: str, weight: Tensor) -> Tensor:
    """The tensor `name` of a state dict with its content, from memory or disk if need be."""
    if not weight.is_meta:
        return weight
    owner, _, own = name.rpartition(".")
    for hook in _hooks(module.get_submodule(owner)):
        known = getattr(hook, "weights_map", None)
        if known is not None and own in known:
            found: Tensor = known[own]
            return found
    raise ModelError(
        f"model: got {name} without content (a meta tensor), expected weights that are loaded, or "
        "that accelerate has offloaded"
    )


def entrance_of(module: nn.Module) -> torch.device:
    """The device of a network's input: what its hooks say first, else that of its first weight."""
    for hook in _all_hooks(module):
        device = getattr(hook, "execution_device", None)
        if device is not None:
            return torch.device(device)
    return next(module.parameters()).device


def is_spread(module: nn.Module) -> bool:
    """Whether accelerate places this network, so that nobody else may move it."""
    return any(True for _ in _all_hooks(module))


def _all_hooks(module: nn.Module) -> Iterator[Any]:
    return (hook for part in module.modules() for hook in _hooks(part))


def _hooks(module: nn.Module) -> Iterator[Any]:
    hook = getattr(module, "_hf_hook", None)
    if hook is not None:
        yield from getattr(hook, "hooks", (hook,))
