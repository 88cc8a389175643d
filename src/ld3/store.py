"""Files: written whole or not at all, and proved when they are read.

A file is written beside its place under a temporary name, flushed to the disk and renamed. A reader
then finds the old content or the new and nothing in between, and so does a run that was killed.
Tensors are safetensors, everything else is JSON; nothing is ever unpickled.

A *proved* file also holds what it belongs to (its key) and the SHA-256 of its content. Reading it
compares both: a flipped bit, a truncated file or the file of another key gives None, and the caller
makes the content again. Without a folder, nothing is written and None is read.
"""

import hashlib
import json
import os
import secrets
import stat
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as decode_tensors
from safetensors.torch import save as encode_tensors
from torch import Tensor

from ld3.errors import StoreError, first_line

MAX_JSON = 16 * 2**20  # bytes: a plan has a few thousand
# What writing raises: ValueError if the path has a NUL, RecursionError if it has 1000 folders.
CANNOT = (OSError, ValueError, RecursionError)
LEFTOVER = 3600  # seconds after which a temporary file belongs to nobody


def make_folder(path: Path) -> None:
    """A folder and those above it; it may be there already."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except CANNOT as error:
        raise StoreError(f"cannot write {path}: {_reason(error)}; nothing was changed") from None


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file at `path` in one move; its folder is made if need be."""
    write_parts(path, [content])


def write_parts(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """:func:`write_bytes` for content that comes in parts, one of them in memory at a time."""
    with replacing(path) as file:
        for part in parts:
            file.write(part)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of the one at `path` when all went well."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or not _is_replaceable(path):
            raise IsADirectoryError(f"{path} is a folder or device")
        beside = path.parent / f".{secrets.token_hex(8)}.tmp"
        try:
            with beside.open("x+b") as file:  # a new file, with the rights that the umask leaves
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)  # of a symbolic link: the link, not what it points to
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except CANNOT as error:
        raise StoreError(f"cannot write {path}: {_reason(error)}; nothing was changed") from None
    with suppress(OSError):  # the file is there; some systems cannot sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class _Enough(Exception):
    """Ends a check."""


def check_writable(path: Path) -> None:
    """Raise now what :func:`write_bytes` would raise later; nothing stays behind."""
    new = [folder for folder in path.parents if not os.path.exists(folder)]
    try:
        with suppress(_Enough), replacing(path):
            raise _Enough
    finally:
        for folder in new:  # the innermost first
            with suppress(OSError, ValueError):
                folder.rmdir()


def _is_replaceable(path: Path) -> bool:
    """A renamed file would take the place of a device or pipe; of a link or file it may."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return True
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def write_json(path: Path, content: object) -> None:
    """As readable JSON; numbers in full precision, NaN refused."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """As safetensors."""
    write_bytes(path, encode_tensors(_contiguous(tensors)))


def file_size(path: Path) -> int:
    """The bytes of a regular file: no folder, device or pipe, which might never end."""
    try:
        facts = path.stat()
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {_reason(error)}") from None
    if not stat.S_ISREG(facts.st_mode):
        raise StoreError(f"cannot read {path}: got a folder or device, expected a file")
    return facts.st_size


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """The content of a regular file."""
    size = file_size(path)
    if most is not None and size > most:
        raise StoreError(f"{path}: got {size} bytes, expected at most {most}")
    try:
        with path.open("rb") as file:
            return file.read(-1 if most is None else most)  # files of /proc have no size
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {_reason(error)}") from None


def read_text(path: Path, most: int = MAX_JSON) -> str:
    """A text file in UTF-8."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StoreError(
            f"{path}: got bytes that are not UTF-8 at {error.start}, expected a UTF-8 text file"
        ) from None


def read_json(path: Path) -> Any:
    """Parsed JSON of a file that may come from anywhere."""
    return _parsed(read_bytes(path, MAX_JSON), path)


def read_toml(path: Path) -> dict[str, Any]:
    """Parsed TOML."""
    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: got something that is not TOML ({_reason(error)})") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return decode_tensors(read_bytes(path))
    except (SafetensorError, ValueError) as error:
        raise StoreError(f"{path}: not a whole safetensors file ({error})") from None


def place(folder: Path | None, name: str) -> Path | None:
    """A file in a folder, if there is a folder."""
    return None if folder is None else folder / name


def write_proved_json(path: Path | None, key: object, content: object) -> None:
    """Content with its key and checksum."""
    if path is not None:
        write_json(path, {"sha256": checksum(content), "key": key, "content": content})


def read_proved_json(path: Path | None, key: object) -> Any:
    """The content, or None if there is none that belongs to the key and is whole."""
    if path is None or not path.exists():
        return None
    with suppress(StoreError, ValueError):
        found = _parsed(read_bytes(path), path)
        if (
            isinstance(found, dict)
            and found.get("key") == json.loads(json.dumps(key))
            and found.get("sha256") == checksum(found.get("content"))
        ):
            return found["content"]
    return None


def write_proved_tensors(path: Path | None, key: object, tensors: Mapping[str, Tensor]) -> None:
    """Tensors with the digest of their key and their checksum."""
    if path is not None:
        plain = _contiguous(tensors)
        write_bytes(path, encode_tensors(plain, metadata=_proof(key, plain)))


def read_proved_tensors(path: Path | None, key: object) -> dict[str, Tensor] | None:
    """The tensors, or None if there are none that belong to the key and are whole."""
    if path is None or not path.exists():
        return None
    with suppress(StoreError, SafetensorError, ValueError, OSError):
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
        tensors = read_tensors(path)
        if facts == _proof(key, tensors):
            return tensors
    return None


def checksum(content: object) -> str:
    """SHA-256 of anything JSON can hold: equal content, equal checksum."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def digest(content: object) -> str:
    """A short name for anything JSON can hold."""
    return checksum(content)[:16]


def tensor_checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def sweep(folder: Path) -> None:
    """Remove what killed runs left half-written; files of the last hour may still be at work."""
    for leftover in folder.glob(".*.tmp"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > LEFTOVER:
                leftover.unlink()


def _proof(key: object, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """In one entry: several are written in random order, and equal content gives equal bytes."""
    return {"proof": f"{checksum(key)} {tensor_checksum(tensors)}"}


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error, 120)


def _parsed(content: bytes, path: Path) -> Any:
    try:
        return json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: got something that is not JSON ({_reason(error)})") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
