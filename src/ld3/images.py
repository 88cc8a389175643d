"""Images without any other library: what counts as one, and PNG files."""

import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from ld3.store import write_bytes

LOOSE = 1.5  # samples of images in [-1, 1] go a little beyond


def is_image(sample: Tensor) -> bool:
    """(B, 1 or 3, H, W)."""
    return sample.ndim == 4 and sample.shape[1] in (1, 3)


def shown_range(images: Tensor) -> tuple[float, float]:
    """The values shown as black and as white: -1 and 1; for data of another scale the 0.5 % and
    99.5 % quantiles of the images."""
    values = images.detach().float().flatten()
    values = values[:: max(1, len(values) // 1_000_000)]
    values = values[torch.isfinite(values)]
    if not len(values):
        return -1.0, 1.0
    ends = torch.tensor([0.005, 0.995], device=values.device)
    low, high = torch.quantile(values, ends).tolist()
    return (-1.0, 1.0) if low >= -LOOSE and high <= LOOSE else (low, max(high, low + 1e-6))


def rescaled(images: Tensor, span: tuple[float, float]) -> Tensor:
    """Images with the ends of a range at -1 and 1."""
    low, high = span
    return images if span == (-1.0, 1.0) else (2 * images - low - high) / (high - low)


def png(image: Tensor) -> bytes:
    """One image (1 or 3, H, W) in [-1, 1] as a PNG of 8 bits, grey or RGB, pixel by pixel."""
    pixels = (127.5 * (image.float().clamp(-1, 1) + 1)).round().byte().cpu()
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
