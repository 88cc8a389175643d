"""numpy arrays of a pickle, as EDM2's reference statistics have them, read without unpickling.

numpy writes an array as a call of `_reconstruct` with (version, shape, dtype, order, bytes) put
into it, or of `_frombuffer` with (bytes, dtype, shape, order). Both stay data in the reader of
:mod:`ld3.zoo.checkpoints.pickles`; the numbers are then taken from where they are in the file.
"""

import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ld3.errors import StoreError, first_line
from ld3.store import file_size
from ld3.zoo.checkpoints.pickled_values import mapping, read_bytes_value
from ld3.zoo.checkpoints.pickles import Machine, Made
from ld3.zoo.checkpoints.regions import BadFile, Region

ORDERS = {"<": "<", ">": ">", "|": "|", "=": "<"}
KINDS = ("f2", "f4", "f8", "i4", "i8", "u1")
MAX_ARRAY = 2**32  # bytes
Arrays = dict[str, NDArray[Any]]


def read_pickled_arrays(path: Path) -> Arrays:
    """Arrays of nested dictionaries, their names joined by dots: `fid.mu`, `fid.sigma`, ..."""
    found: Arrays = {}
    file_size(path)  # a pipe would never end
    try:
        with path.open("rb", buffering=0) as file:
            _collect(Machine(Region(file)).run(), "", file, found, 0)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    except (BadFile, ValueError, TypeError, LookupError, RecursionError, EOFError) as error:
        reason = first_line(error, 120)
        raise StoreError(f"{path}: got no whole pickle of arrays ({reason})") from None
    return found


def _collect(value: object, name: str, file: BinaryIO, found: Arrays, depth: int) -> None:
    inner = mapping(value)
    if inner is not None and depth < 5:
        for key, item in inner.items():
            if isinstance(key, str) and len(found) < 100:
                _collect(item, f"{name}.{key}".lstrip("."), file, found, depth + 1)
    elif isinstance(value, Made):
        array = _array(value, file)
        if array is not None:
            found[name] = array


def _array(value: Made, file: BinaryIO) -> NDArray[Any] | None:
    if value.maker.endswith("multiarray._reconstruct") and isinstance(value.state, tuple):
        if len(value.state) != 5:
            return None
        _, shape, dtype, fortran, content = value.state
    elif value.maker.endswith("numeric._frombuffer") and len(value.args) == 4:
        content, dtype, shape, order = value.args
        fortran = order == "F"
    else:
        return None
    form = _dtype(dtype)
    raw = read_bytes_value(content, file, MAX_ARRAY)
    if form is None or not isinstance(shape, tuple) or raw is None:
        return None
    sizes = [size for size in shape if isinstance(size, int) and size >= 0]
    if len(sizes) != len(shape) or math.prod(sizes) * form.itemsize != len(raw):
        raise BadFile(f"got an array of shape {shape} in {len(raw)} bytes, which do not fit")
    return np.frombuffer(raw, form).reshape(sizes, order="F" if fortran else "C")


def _dtype(value: object) -> np.dtype[Any] | None:
    """numpy's dtype('f8') with its byte order, of plain numbers alone."""
    if not isinstance(value, Made) or not value.args or value.args[0] not in KINDS:
        return None
    state = value.state
    order = state[1] if isinstance(state, tuple) and len(state) > 1 else "<"
    known = ORDERS.get(order if isinstance(order, str) else "<", "<")
    return np.dtype(f"{known}{value.args[0]}")
