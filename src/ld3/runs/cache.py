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
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3 import __version__
from ld3.runs.ranks import ALONE, Ranks
from ld3.store import (
    digest,
    make_folder,
    read_proved_json,
    read_proved_tensors,
    sweep,
    write_proved_json,
    write_proved_tensors,
)

Key = Mapping[str, Any]
CHUNK = 32  # seeds in one file, at most


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

    def make(self) -> None:
        """Its folder: one that cannot be written is found before any work."""
        if self.folder is not None:
            make_folder(self.folder)

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
        """One row per seed, (B, *S), stored and made in chunks: those seeds that have the
        same quotient by CHUNK.

        A chunk is named by its seeds. Rows may differ in their last bits with what else is in
        their batch, so that a row of a smaller chunk is not used for a larger.

        `make` gets the seeds of a chunk in order and gives their rows; it refuses what is not
        finite. Ranks share the chunks; `progress` gets how many rows were just made, at first 0.
        """
        order = sorted(set(seeds))
        chunks = [list(chunk) for _, chunk in groupby(order, lambda seed: seed // CHUNK)]
        keys = [{**key, "seeds": chunk} for chunk in chunks]
        files = [self._file(kind, own, "safetensors") for own in keys]
        found = [
            read_proved_tensors(file, self._key(own)) for file, own in zip(files, keys, strict=True)
        ]
        missing: list[int] = self.ranks.first(
            lambda: [n for n, stored in enumerate(found) if stored is None]
        )
        if missing:
            progress(0)
        made = self.ranks.share(lambda n: {"rows": make(chunks[n])}, missing)
        for n, rows in zip(missing, made, strict=True):
            content = {"seeds": torch.tensor(chunks[n], device="cpu"), **rows}
            write_proved_tensors(files[n], self._key(keys[n]), content)
            found[n] = rows
            progress(len(chunks[n]))

        def stacked() -> dict[str, Tensor]:
            every = torch.cat([stored["rows"].cpu() for stored in found if stored is not None])
            place = {seed: n for n, seed in enumerate(order)}
            return {"rows": every[[place[seed] for seed in seeds]]}

        return self.ranks.first_tensors(stacked)["rows"]  # type: ignore[no-any-return]

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
