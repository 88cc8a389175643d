"""The cache: what was computed, under a name that is a digest of all it depends on.

    cache.json("scores", key, make)       what `make()` gives, from disk if it is there
    cache.tensors("features", key, make)  the same for tensors

Every file proves itself when it is read (:mod:`ld3.store`): one that is damaged, or belongs to
another key, is made again. Values that are not finite are never stored. Several processes may share
a folder: each writes whole files only, and at worst two of them make the same one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3 import __version__
from ld3.store import (
    digest,
    read_proved_json,
    read_proved_tensors,
    sweep,
    write_proved_json,
    write_proved_tensors,
)

Key = Mapping[str, Any]
CHUNK = 32  # seeds in one file


@dataclass(frozen=True)
class Cache:
    """A folder, or nothing on disk at all."""

    folder: Path | None
    since: float = 0.0  # files older than this do not count: seconds since 1970

    def json(self, kind: str, key: Key, make: Callable[[], Any]) -> Any:
        """Anything JSON can hold; not stored if it holds numbers that are not finite."""
        file = self._file(kind, key, "json")
        found = read_proved_json(file, self._key(key))
        if found is None:
            found = make()
            if _is_finite(found):
                write_proved_json(file, self._key(key), found)
        return found

    def tensors(
        self, kind: str, key: Key, make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Tensors by name; not stored if one is not finite."""
        file = self._file(kind, key, "safetensors")
        found = read_proved_tensors(file, self._key(key))
        if found is None:
            found = make()
            if all(bool(torch.isfinite(t).all()) for t in found.values()):
                write_proved_tensors(file, self._key(key), found)
        return found

    def rows(
        self, kind: str, key: Key, seeds: Sequence[int], make: Callable[[Sequence[int]], Tensor]
    ) -> Tensor:
        """One row per seed, (B, *S): stored in chunks of seeds, made for missing seeds only.

        `make` gets missing seeds in order and gives their rows; it refuses what is not finite.
        """
        wanted = set(seeds)
        rows: dict[int, Tensor] = {}
        for first in sorted({seed // CHUNK * CHUNK for seed in wanted}):
            own = {**key, "chunk": first}
            file = self._file(kind, own, "safetensors")
            stored = read_proved_tensors(file, self._key(own))
            chunk: dict[int, Tensor] = {}
            if stored is not None:
                chunk = dict(zip(stored["seeds"].tolist(), stored["rows"], strict=True))
            missing = [s for s in range(first, first + CHUNK) if s in wanted and s not in chunk]
            if missing:
                chunk |= dict(zip(missing, make(missing), strict=True))
                known = sorted(chunk)
                content = torch.stack([chunk[seed].cpu() for seed in known])
                named = {"seeds": torch.tensor(known), "rows": content}
                write_proved_tensors(file, self._key(own), named)
            rows |= {seed: chunk[seed] for seed in chunk if seed in wanted}
        return torch.stack([rows[seed] for seed in seeds])

    def own_folder(self, kind: str, key: Key) -> Path | None:
        """A folder for work that keeps files of its own; those that are too old are removed."""
        if self.folder is None:
            return None
        folder = self.folder / kind / digest(self._key(key))
        for file in folder.glob("*"):
            self._remove_old(file)
        return folder

    def sweep(self) -> None:
        """Remove leftovers of killed processes."""
        if self.folder is not None:
            for folder in (self.folder, *self.folder.glob("*/")):
                sweep(folder)

    def _file(self, kind: str, key: Key, suffix: str) -> Path | None:
        """Where something is; a file that is too old is removed."""
        if self.folder is None:
            return None
        file = self.folder / kind / f"{digest(self._key(key))}.{suffix}"
        self._remove_old(file)
        return file

    def _remove_old(self, file: Path) -> None:
        if self.since and file.is_file() and file.stat().st_mtime < self.since:
            file.unlink(missing_ok=True)

    @staticmethod
    def _key(key: Key) -> dict[str, Any]:
        return {**key, "version": __version__}


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if isinstance(value, Mapping):
        return all(_is_finite(inner) for inner in value.values())
    return not isinstance(value, list | tuple) or all(_is_finite(inner) for inner in value)
