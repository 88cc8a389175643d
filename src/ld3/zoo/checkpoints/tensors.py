"""Tensors that stay in their file until they are used, and what else a checkpoint holds."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.zoo.checkpoints.regions import BadFile

Kind = Literal["edm", "lightning", "state-dict", "point-cloud", "safetensors", "torchscript"]
MAX_TENSORS = 1_000_000


@dataclass(frozen=True)
class Entry:
    """A tensor in the file: where it is, and its form."""

    start: int  # byte of its first number
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """Numbers from its first to its last."""
        if self.numel == 0:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))


class Tensors(Mapping[str, Tensor]):
    """Names and tensors of a file; a tensor is read at each access."""

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self._path = path
        self.entries = dict(entries)

    def __getitem__(self, name: str) -> Tensor:
        entry = self.entries[name]
        return self._read(
            name, torch.empty(entry.extent * entry.dtype.itemsize, dtype=torch.uint8, device="cpu")
        )

    def each(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors in the order of their names, in one buffer: each lives until the next.

        Memory then holds the largest tensor once, and nothing is left in pieces.
        """
        sizes = {name: e.extent * e.dtype.itemsize for name, e in self.entries.items()}
        buffer = torch.empty(max(sizes.values(), default=0), dtype=torch.uint8, device="cpu")
        for name in sorted(self.entries):
            yield name, self._read(name, buffer[: sizes[name]])

    def _read(self, name: str, raw: Tensor) -> Tensor:
        """A tensor whose bytes are read into `raw`."""
        entry = self.entries[name]
        if len(raw):
            try:
                with self._path.open("rb", buffering=0) as file:
                    file.seek(entry.start)
                    _read_into(file, raw.numpy().data)
            except (OSError, BadFile) as error:
                raise ModelError(
                    f"{self._path}: cannot read {name} ({error}), expected the file to stay as it "
                    "was; try again"
                ) from None
        flat = raw.ne(0) if entry.dtype == torch.bool else raw.view(entry.dtype)
        return flat.as_strided(entry.shape, entry.stride).contiguous()

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self.entries[name].dtype

    @property
    def numel(self) -> int:
        return sum(entry.numel for entry in self.entries.values())

    def renamed(self, names: Mapping[str, str]) -> "Tensors":
        """Some of the tensors under other names: old -> new."""
        return Tensors(self._path, {new: self.entries[old] for old, new in names.items()})


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds."""

    path: Path
    kind: Kind
    tensors: Tensors
    config: dict[str, Any]
    ignored: tuple[str, ...] = ()  # globals that the file mentions and that stayed names
    size: int = 0  # bytes
    metadata: dict[str, str] = field(default_factory=dict)  # of safetensors, as it stands

    @cached_property
    def sha256(self) -> str:
        """Of the whole file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _read_into(file: Any, target: memoryview) -> None:
    while len(target):
        count = file.readinto(target)
        if not count:
            raise BadFile("got the end of the file")
        target = target[count:]


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**48


def sizes_of(value: object) -> tuple[int, ...] | None:
    """A list of whole numbers from a file, None if it is none."""
    if not isinstance(value, tuple | list) or len(value) > 16 or not all(map(is_count, value)):
        return None
    return tuple(value)
