"""Files: written whole or not at all, read with suspicion.

A file is written beside its place under a temporary name, flushed to the disk and renamed, so that
a reader, or a run that is resumed after being killed, finds the old content or the new and nothing
in between. Tensors are safetensors, everything else is JSON; nothing is ever unpickled.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as decode_tensors
from safetensors.torch import save as encode_tensors
from torch import Tensor

from ld3.errors import StoreError

MAX_JSON = 16 * 2**20  # bytes: a plan has a few thousand


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file at `path` in one move; its folder is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}; nothing was changed"
        ) from None


def write_json(path: Path, content: object) -> None:
    """As readable JSON; numbers in full precision, NaN refused."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """As safetensors."""
    write_bytes(
        path, encode_tensors({k: v.detach().clone().contiguous() for k, v in tensors.items()})
    )


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None


def read_json(path: Path) -> Any:
    """Parsed JSON of a file that may come from anywhere."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    if size > MAX_JSON:
        raise StoreError(f"{path}: got {size} bytes, wanted at most {MAX_JSON}")
    try:
        return json.loads(read_bytes(path), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:120]
        raise StoreError(f"{path}: got something that is not JSON ({reason})") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return decode_tensors(read_bytes(path))
    except (SafetensorError, ValueError) as error:
        raise StoreError(f"{path}: not a whole safetensors file ({error})") from None


def digest(content: object) -> str:
    """A short name for anything JSON can hold: equal content, equal name."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sweep(folder: Path) -> None:
    """Remove what killed runs left half-written."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
