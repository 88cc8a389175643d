"""The cache: what was computed, under a name that is a digest of all it depends on.

    cache.json("scores", key, make)       what `make()` gives, from disk if it is there
    cache.tensors("features", key, make)  the same for tensors

Every file proves itself when it is read (:mod:`ld3.store`): one that is damaged, or belongs to
another key, is made again. Values that are not finite are never stored. Several processes may share
a folder: each writes whole files only, and at worst two of them make the same one. Of several ranks
only the first has the folder; what it reads goes to all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3 import __version__
from ld3.runs.ranks import ALONE, Ranks
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
    ranks: Ranks = ALONE

    @classmethod
    def open(cls, folder: Path | None, since: float = 0.0, ranks: Ranks = ALONE) -> "Cache":
        """On rank 0 a folder, on others none."""
        return cls(folder if ranks.is_first else None, since, ranks)

    def json(self, kind: str, key: Key, make: Callable[[], Any]) -> Any:
        """Anything JSON can hold; not stored if it holds numbers that are not finite."""
        return next(self.each_json(kind, [key], lambda missing: (make() for _ in missing)))

    def each_json(
        self, kind: str, keys: Sequence[Key], make: Callable[[Sequence[int]], Iterator[Any]]
    ) -> Iterator[Any]:
        """:meth:`json` for several keys; `make` gets the numbers of those that are missing and
        gives their values in order."""
        files = [self._file(kind, key, "json") for key in keys]

        def stored() -> list[Any]:
            return [
                read_proved_json(file, self._key(key))
                for file, key in zip(files, keys, strict=True)
            ]

        found = self.ranks.first(stored)
        made = make([n for n, value in enumerate(found) if value is None])
        for file, key, value in zip(files, keys, found, strict=True):
            if value is None:
                value = next(made)
                if _is_finite(value):
                    write_proved_json(file, self._key(key), value)
            yield value

    def has(self, kind: str, key: Key) -> bool:
        """Whether tensors are stored here."""
        file = self._file(kind, key, "safetensors")
        return read_proved_tensors(file, self._key(key)) is not None

    def tensors(
        self, kind: str, key: Key, make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Tensors by name; not stored if one is not finite."""
        file = self._file(kind, key, "safetensors")
        found: dict[str, Tensor] | None = self.ranks.first_tensors(
            lambda: read_proved_tensors(file, self._key(key))
        )
        if found is None:
            found = make()
            if all(bool(torch.isfinite(t).all()) for t in found.values()):
                write_proved_tensors(file, self._key(key), found)
        return found

    def rows(
        self,
        kind: str,
        key: Key,
        seeds: Sequence[int],
        make: Callable[[Sequence[int]], Tensor],
        progress: Callable[[int], None] = lambda count: None,
    ) -> Tensor:
        """One row per seed, (B, *S): stored in chunks of seeds, made for missing seeds only.

        `make` gets missing seeds in order and gives their rows; it refuses what is not finite.
        Ranks share the chunks; `progress` gets how many rows were just made.
        """
        wanted = set(seeds)
        chunks = {
            first: self._chunk(kind, {**key, "chunk": first})
            for first in sorted({seed // CHUNK * CHUNK for seed in wanted})
        }
        missing: list[tuple[int, list[int]]] = self.ranks.first(
            lambda: [
                (first, [s for s in range(first, first + CHUNK) if s in wanted and s not in chunk])
                for first, chunk in chunks.items()
            ]
        )
        missing = [(first, gaps) for first, gaps in missing if gaps]
        made = self.ranks.share(lambda one: {"rows": make(one[1])}, missing)
        for (first, gaps), found in zip(missing, made, strict=True):
            chunks[first] |= dict(zip(gaps, found["rows"], strict=True))
            self._store_chunk(kind, {**key, "chunk": first}, chunks[first])
            progress(len(gaps))

        def stacked() -> dict[str, Tensor]:
            rows = {seed: row for chunk in chunks.values() for seed, row in chunk.items()}
            return {"rows": torch.stack([rows[seed].cpu() for seed in seeds])}

        return self.ranks.first_tensors(stacked)["rows"]  # type: ignore[no-any-return]

    def _chunk(self, kind: str, key: Key) -> dict[int, Tensor]:
        """The stored rows of a chunk by their seeds."""
        stored = read_proved_tensors(self._file(kind, key, "safetensors"), self._key(key))
        if stored is None:
            return {}
        return dict(zip(stored["seeds"].tolist(), stored["rows"], strict=True))

    def _store_chunk(self, kind: str, key: Key, chunk: Mapping[int, Tensor]) -> None:
        file = self._file(kind, key, "safetensors")
        if file is not None:
            known = sorted(chunk)
            content = torch.stack([chunk[seed].cpu() for seed in known])
            named = {"seeds": torch.tensor(known), "rows": content}
            write_proved_tensors(file, self._key(key), named)

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
