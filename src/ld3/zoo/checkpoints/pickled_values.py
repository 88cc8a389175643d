"""What is in a pickle, once everything is data: dictionaries, plain values, numbers of numpy."""

import math
import struct
from typing import BinaryIO

from ld3.zoo.checkpoints.pickles import Made, Name, checked_key
from ld3.zoo.checkpoints.regions import BadFile, Region, Span


def plain(value: object, file: BinaryIO, depth: int = 12) -> object:
    """Numbers, texts, lists and dictionaries of JSON inside a value; None for all else.

    Depth is limited, so that shared values cannot grow without bound.
    """
    return _Plain(file).of(value, depth)


class _Plain:
    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.left = 100_000  # values

    def of(self, value: object, depth: int) -> object:
        self.left -= 1
        if depth == 0 or self.left < 0:
            return None
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, list | tuple):
            return [self.of(each, depth - 1) for each in value]
        if isinstance(value, Made) and value.maker.endswith("multiarray.scalar"):
            return numpy_scalar(value, self.file)
        if isinstance(value, Made) and value.maker == "torch.Size" and value.args:
            return self.of(value.args[0], depth - 1)
        entries = mapping(value)
        if entries is None and isinstance(value, Made) and isinstance(value.state, dict):
            entries = value.state
        if entries is None:
            return None
        return {key: self.of(v, depth - 1) for key, v in entries.items() if isinstance(key, str)}


def mapping(value: object) -> dict[object, object] | None:
    """A dictionary, or an object that is one: OrderedDict, EasyDict."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, Made):
        return None
    if value.entries:
        return value.entries
    if value.maker != "collections.OrderedDict":
        return None
    pairs = value.args[0] if value.args else []
    found: dict[object, object] = {}
    for pair in pairs if isinstance(pairs, list) else []:  # as Python 2 wrote it
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise BadFile("got an OrderedDict of other things than pairs, expected pairs")
        found[checked_key(pair[0])] = pair[1]
    return found


_SCALARS = {
    "f8": "<d", "f4": "<f", "f2": "<e", "i8": "<q", "i4": "<i", "i2": "<h", "i1": "<b",
    "u8": "<Q", "u4": "<I", "u2": "<H", "u1": "<B", "b1": "<?",
}  # fmt: skip


def numpy_scalar(value: Made, file: BinaryIO) -> object:
    """A number that numpy wrote: scalar(dtype('f8'), bytes); None for other dtypes."""
    if len(value.args) != 2 or not isinstance(value.args[0], Made) or not value.args[0].args:
        return None
    form = _SCALARS.get(str(value.args[0].args[0]))
    raw = read_bytes_value(value.args[1], file, 8)
    if form is None or raw is None or struct.calcsize(form) != len(raw):
        return None
    number: object = struct.unpack(form, raw)[0]
    return number if not isinstance(number, float) or math.isfinite(number) else str(number)


def read_bytes_value(value: object, file: BinaryIO, limit: int) -> bytes | None:
    """A short bytes object, also as protocol 2 writes it: _codecs.encode(text, 'latin1')."""
    if isinstance(value, Span) and value.size <= limit:
        return Region(file, value).read(value.size)
    if isinstance(value, Made) and value.maker == "_codecs.encode" and value.args:
        text = value.args[0]
        if isinstance(text, str) and len(text) <= limit:
            return text.encode("latin-1", "replace")
    return None


def shown(value: object) -> str:
    """A value of the file in a message."""
    if isinstance(value, Made):
        return f"a {value.maker[:80] or 'nameless'} object"
    if isinstance(value, Name):
        return f"the name {str(value)[:80]}"
    if isinstance(value, int | float | str):
        return repr(value)[:40]
    return f"a {type(value).__name__}"
