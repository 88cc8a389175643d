"""Images without any other library: what counts as one, and PNG files."""

import struct
import zlib
from pathlib import Path

from torch import Tensor

from ld3.store import write_bytes


def is_image(sample: Tensor) -> bool:
    """(B, 1 or 3, H, W)."""
    return sample.ndim == 4 and sample.shape[1] in (1, 3)


def png(image: Tensor) -> bytes:
    """One image (1 or 3, H, W) in [-1, 1] as a PNG of 8 bits, grey or RGB, pixel by pixel."""
    return png_of((127.5 * (image.float().clamp(-1, 1) + 1)).round().byte().cpu())


def png_of(pixels: Tensor) -> bytes:
    """One image of bytes, uint8 (1 or 3, H, W), as a PNG."""
    channels, height, width = pixels.shape
    rows = pixels.permute(1, 2, 0).flatten(1)  # (H, W C)
    lines = b"".join(b"\0" + row.numpy().tobytes() for row in rows)  # 0: no filter
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def write_image(path: Path, image: Tensor) -> None:
    """One image (1 or 3, H, W) in [-1, 1], in colours."""
    write_bytes(path, png(image.expand(3, -1, -1)))
