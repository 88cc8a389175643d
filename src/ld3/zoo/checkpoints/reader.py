"""Checkpoints of the paper's models, read without running them.

    found = read_checkpoint("edm-cifar10-32x32-uncond-vp.pkl")
    found.kind                    # "edm", "lightning", "state-dict", "point-cloud", "safetensors",
                                  # "torchscript"
    found.config                  # plain configuration in the file: numbers, texts, lists, dicts
    found.tensors                 # a mapping name -> tensor; each is read at its access
    found.tensors.shape("name")   # without reading it

Six kinds of file become one: EDM's pickles, files of Lightning, state dicts that torch wrote (zip,
or one stream as before torch 1.6), files of DMPG, TorchScript, and safetensors. Reading makes no
class and calls no function of the file: see :mod:`ld3.zoo.checkpoints.pickles`. Tensors stay in the
file until they are used, and are then read once, into their own memory.
"""

import os
import zipfile
from pathlib import Path
from typing import BinaryIO

from ld3.errors import ModelError, StoreError, one_line
from ld3.store import file_size
from ld3.zoo.checkpoints.regions import BadFile, Region, Span
from ld3.zoo.checkpoints.safetensors_files import read_safetensors
from ld3.zoo.checkpoints.tensors import Checkpoint, Tensors
from ld3.zoo.checkpoints.torch_files import Reading

__all__ = ["Checkpoint", "Tensors", "read_checkpoint"]


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Names, shapes and configuration of a checkpoint; tensors are read when they are used.

    Anything that is wrong with the file is a :class:`ModelError` of one line.
    """
    path = Path(path)
    try:
        file_size(path)  # a pipe would never end
        with path.open("rb", buffering=0) as file:
            return _read(path, file)
    except StoreError as error:
        raise ModelError(str(error)) from None
    except OSError as error:
        raise ModelError(f"{path}: cannot read: {error.strerror or error}") from None
    except BadFile as error:
        raise ModelError(f"{path}: {one_line(str(error))}") from None
    except (
        ValueError, TypeError, KeyError, IndexError, ArithmeticError, EOFError, RecursionError,
        MemoryError, NotImplementedError, zipfile.BadZipFile,
    ) as error:  # fmt: skip
        reason = one_line(str(error))[:120]
        raise ModelError(
            f"{path}: got a damaged file ({type(error).__name__}: {reason}), expected a whole "
            "checkpoint; download it again"
        ) from None


def _read(path: Path, file: BinaryIO) -> Checkpoint:
    size = file.seek(0, os.SEEK_END)
    head = Region(file).read(min(size, 16))
    if head[:4] == b"PK\x03\x04":
        return Reading(path, file, size).zipped()
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size:
        return read_safetensors(path, file, size)
    if size > 262 and Region(file, Span(257, 5)).read(5) == b"ustar":
        raise BadFile(
            "got a tar, as torch wrote before 0.1.10, expected a zip or a pickle; load it with an "
            "old torch and save it again"
        )
    if head[:1] not in (b"\x80", b"(", b"}", b"c", b"]"):
        raise BadFile(
            f"got a file that begins with {head[:8]!r}, expected a pickle, a zip of torch.save or "
            "safetensors"
        )
    return Reading(path, file, size).stream()
