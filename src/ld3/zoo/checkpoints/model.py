"""A network of a checkpoint as a model: times, classes and names around it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from ld3.errors import ModelError, one_line
from ld3.models import Cond
from ld3.predictions import Prediction
from ld3.schedules import Schedule
from ld3.store import digest
from ld3.zoo.checkpoints.tensors import Tensors

Net = TypeVar("Net", bound=nn.Module)
Seen = TypeVar("Seen")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class CheckpointModel:
    """`call(x, t, label)` is the network: x (B, *shape), t (), label (B,) or None.

    Outer arithmetic is in float32 or wider, also around a network in half precision: at sigma = 80
    half precision has no digits left for the image. So `dtype`, that of x, is never a half.
    """

    call: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    schedule: Schedule
    prediction: Prediction
    shape: tuple[int, ...]
    net_dtype: torch.dtype
    digest: str  # of the weights in the file
    device: torch.device
    classes: tuple[int, ...] = ()  # seed s has class number s mod their number
    details: tuple[object, ...] = ()  # settings that change samples
    exact_time: bool = False
    network: nn.Module = field(default_factory=nn.Module)

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.net_dtype, torch.float32)

    @property
    def identity(self) -> str:
        settings = [str(setting) for setting in self.details]
        return digest([self.digest, str(self.net_dtype), list(self.classes), settings])

    def forward(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        return self.call(x, t, cond if isinstance(cond, Tensor) else None)

    def conditions(self, seeds: Sequence[int]) -> Cond:
        if not self.classes:
            return None
        wanted = [self.classes[seed % len(self.classes)] for seed in seeds]
        return torch.tensor(wanted, device=self.device)

    def null(self, cond: Cond) -> Cond:
        raise ModelError(
            "guidance: got a scale other than 1 for a network that was trained without dropping "
            "its labels, expected 1; it has no empty label"
        )

    def decode(self, x: Tensor) -> Tensor:
        return x


def with_weights(
    build: Callable[[], Net], tensors: Tensors, device: torch.device, dtype: torch.dtype
) -> tuple[Net, str]:
    """A frozen network with the tensors of a file, and a digest of these.

    Tensors are read one by one into their place, in their last dtype and memory format; names and
    shapes are compared first. Buffers stay in float32 beside weights in half precision.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype: got {dtype}, expected float32, float64, float16 or bfloat16")
    network = fitting(build, tensors)
    weights = {name for name, _ in network.named_parameters()}
    found = hashlib.sha256()
    state: dict[str, Tensor] = {}
    for name, tensor in tensors.each():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        wanted = dtype if name in weights else torch.promote_types(dtype, torch.float32)
        layout = torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
        place = torch.empty(tensor.shape, dtype=wanted, device=device, memory_format=layout)
        state[name] = place.copy_(tensor)
    network.load_state_dict(state, assign=True)
    network.eval().requires_grad_(False)
    return network, found.hexdigest()[:16]


def seen_in(read: Callable[[Tensors], Seen], tensors: Tensors) -> Seen:
    """What shapes tell; shapes that no such network has are refused."""
    try:
        return read(tensors)
    except (LookupError, ValueError, ArithmeticError):
        raise ModelError(
            "checkpoint: got shapes that tell no configuration, expected those of a whole network"
        ) from None


def fitting(build: Callable[[], Net], tensors: Tensors) -> Net:
    """A network without memory, whose names and shapes are those of the file."""
    try:
        with torch.device("meta"):
            network = build()
    except (ValueError, RuntimeError, ArithmeticError) as error:  # widths that no layer takes
        reason = one_line(str(error))[:100]
        raise ModelError(
            f"checkpoint: got a configuration that makes no network ({reason}), expected that of a "
            "published file"
        ) from None
    check_names(tensors, {name: tuple(v.shape) for name, v in network.state_dict().items()})
    return network


def check_names(tensors: Tensors, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Every name and shape of a network is in the file, and no other."""
    missing = sorted(set(wanted) - set(tensors))
    extra = sorted(set(tensors) - set(wanted))
    if missing or extra:
        texts = [
            f"{len(names)} {what} ({', '.join(name[:60] for name in names[:2])}"
            f"{', ...' if len(names) > 2 else ''})"
            for names, what in ((missing, "names missing"), (extra, "names too many"))
            if names
        ]
        raise ModelError(
            f"checkpoint: got {' and '.join(texts)}, expected the {len(wanted)} names of its "
            "network; the file is of another network, or --config does not fit it"
        )
    for name, shape in wanted.items():
        if tensors.shape(name) != shape:
            raise ModelError(
                f"checkpoint: got {name} of shape {list(tensors.shape(name))}, expected "
                f"{list(shape)}; the file is of another network, or --config does not fit it"
            )
        if not tensors.dtype(name).is_floating_point:
            raise ModelError(
                f"checkpoint: got {name} of {tensors.dtype(name)}, expected floating point"
            )


def chosen_classes(count: int, wanted: Sequence[int] | None) -> tuple[int, ...]:
    """All classes of a network, or those that were chosen."""
    if wanted is None:
        return tuple(range(count))
    if not count:
        raise ModelError("--label: got labels for a network without classes, expected none")
    outside = [label for label in wanted if not 0 <= label < count]
    if outside:
        raise ModelError(f"--label: got {outside[0]}, expected labels from 0 to {count - 1}")
    return tuple(wanted)
