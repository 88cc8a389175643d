"""Files of safetensors: a header of JSON, then the numbers."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ld3.zoo.checkpoints.regions import BadFile, Region
from ld3.zoo.checkpoints.tensors import MAX_TENSORS, Checkpoint, Entry, Tensors, is_count, sizes_of

MAX_HEADER = 100_000_000  # bytes of a header, as safetensors itself limits it
CONFIG = "ld3"  # the entry of metadata that holds the configuration of a converted file
SAFE_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def read_safetensors(path: Path, file: BinaryIO, size: int) -> Checkpoint:
    region = Region(file)
    length = region.integer(8)
    if length > min(size - 8, MAX_HEADER):
        raise BadFile(f"got a header of {length} bytes, expected at most {min(size, MAX_HEADER)}")
    header = json.loads(region.read(length))
    if not isinstance(header, dict):
        raise BadFile("got a header that is no dictionary, expected safetensors")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or len(header) > MAX_TENSORS:
        raise BadFile("got a damaged header, expected safetensors")
    entries: dict[str, Entry] = {}
    for name, words in header.items():
        if not name.isprintable():
            raise BadFile(f"got {name[:80]!r} as a name of a tensor, expected a plain text")
        dtype, shape = SAFE_DTYPES.get(words["dtype"]), sizes_of(words["shape"])
        first, last = words["data_offsets"]
        if dtype is None or shape is None or not is_count(first) or not is_count(last):
            raise BadFile(f"got {name[:80]!r} as {str(words)[:80]}, expected a plain tensor")
        stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        entry = Entry(8 + length + first, dtype, shape, stride)
        if last - first != entry.numel * dtype.itemsize or 8 + length + last > size:
            raise BadFile(
                f"got {last - first} bytes for {name[:80]!r} of shape {list(shape)} that end at "
                f"{8 + length + last} of {size}, expected a whole tensor; the file is truncated or "
                "damaged: download it again"
            )
        entries[name] = entry
    if not entries or sum(e.numel * e.dtype.itemsize for e in entries.values()) > 2 * size:
        raise BadFile("got no tensors, or more than the file has, expected weights")
    texts = {str(key): item for key, item in metadata.items() if isinstance(item, str)}
    return Checkpoint(
        path, "safetensors", Tensors(path, entries), _json_config(texts), (), size, texts
    )


def _json_config(metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        config = json.loads(metadata.get(CONFIG, "{}"))
    except ValueError:
        raise BadFile(
            "got a configuration that is not JSON, expected what ld3 convert writes"
        ) from None
    return config if isinstance(config, dict) else {}
