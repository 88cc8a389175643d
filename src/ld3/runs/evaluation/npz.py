"""Arrays of an `.npz` file, row by row: nothing is unpickled, and no array has to fit in memory.

    arrays = read_npz(path)
    arrays["mu"].whole()              # the whole array, for small ones
    for part in arrays["arr_0"].rows(250): ...

An array of objects is a pickle inside of the file. It is refused by name, and never read.
"""

import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ld3.errors import StoreError, first_line
from ld3.store import file_size, replacing

MAX_WHOLE = 2**32  # bytes of an array that is read in one piece
MAX_HEADER = 10_000  # bytes


@dataclass(frozen=True)
class Array:
    """One array of a file; its numbers stay there until they are read."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def whole(self) -> NDArray[Any]:
        """All of it."""
        if self.nbytes > MAX_WHOLE:
            raise StoreError(
                f"{self.path}: got {self.name} of {self.nbytes} bytes, expected at most {MAX_WHOLE}"
            )
        flat = np.frombuffer(next(self._parts([self.nbytes])), self.dtype)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")

    def rows(self, count: int) -> Iterator[NDArray[Any]]:
        """At most `count` rows at a time, in order."""
        if self.fortran and len(self.shape) > 1:
            raise StoreError(f"{self.path}: got {self.name} in Fortran order, expected C order")
        inner = self.shape[1:]
        each = math.prod(inner) * self.dtype.itemsize
        sizes = [min(count, self.shape[0] - first) for first in range(0, self.shape[0], count)]
        for part in self._parts([size * each for size in sizes]):
            yield np.frombuffer(part, self.dtype).reshape(-1, *inner)

    def _parts(self, sizes: Iterable[int]) -> Iterator[bytes]:
        """The bytes of the numbers, in parts of these sizes."""
        with _opened(self.path) as archive, archive.open(f"{self.name}.npy") as file:
            _header(file, self.path, self.name)
            for size in sizes:
                try:
                    content = file.read(size)
                except Exception as error:  # zlib.error is a subclass of nothing else
                    raise _damaged(self.path, error) from None
                if len(content) != size:
                    raise StoreError(
                        f"{self.path}: got {len(content)} bytes of {self.name}, expected {size}; "
                        "the file is truncated: download it again"
                    )
                yield content


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of a file by name; their shapes are read, their numbers are not."""
    found: dict[str, Array] = {}
    with _opened(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename:
                raise StoreError(
                    f"{path}: got a member {member.filename[:80]!r}, expected arrays (.npy) alone"
                )
            try:
                with archive.open(member) as file:
                    shape, fortran, dtype = _header(file, path, name)
                    used = file.tell()
            except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
                raise _damaged(path, error) from None
            array = Array(path, name, shape, dtype, fortran)
            if member.file_size != used + array.nbytes:
                raise StoreError(
                    f"{path}: got {member.file_size} bytes of {name}, expected "
                    f"{used + array.nbytes} for shape {list(shape)}; the file is damaged"
                )
            found[name] = array
    return found


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Whole arrays, written whole or not at all."""
    with replacing(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            write_rows(archive, name, array.shape, array.dtype, [np.ascontiguousarray(array)])


def write_rows(
    archive: zipfile.ZipFile,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    parts: Iterable[NDArray[Any]],
) -> None:
    """One array of an open file, some rows at a time."""
    member = zipfile.ZipInfo(f"{name}.npy")  # with a fixed date: equal content, equal bytes
    with archive.open(member, "w", force_zip64=True) as file:
        head = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(file, head)
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype).tobytes())


def _opened(path: Path) -> zipfile.ZipFile:
    file_size(path)  # a pipe would never end
    try:
        return zipfile.ZipFile(path)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    except zipfile.BadZipFile as error:
        raise _damaged(path, error) from None


def _header(file: IO[bytes], path: Path, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file, MAX_HEADER)
    except (ValueError, EOFError) as error:
        raise _damaged(path, error) from None
    if dtype.hasobject:
        raise StoreError(
            f"{path}: got {name}, an array of Python objects (a pickle inside of the file), "
            "expected numbers; nothing of it was run"
        )
    return shape, fortran, dtype


def _damaged(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"{path}: got a file that is no whole .npz ({first_line(error)}); download it again"
    )
