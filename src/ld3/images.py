"""Samples as images without any other library: images, drawings of point clouds, PNG files.

A cloud is centred, scaled by three times its standard deviation, turned by 35 degrees about its
upright axis y and tilted by 20 degrees towards the viewer. Each point is a small ball; near ones
are bright and hide those behind them.
"""

import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from ld3.store import write_bytes

CLOUD_SIZE = 112  # pixels of a drawn cloud, a side
COLOURS = ((0.16, 0.07, 0.36), (0.13, 0.51, 0.56), (0.98, 0.82, 0.25))  # far, middle, near
LOOSE = 1.5  # samples of images in [-1, 1] go a little beyond


def is_image(sample: Tensor) -> bool:
    """(B, 1 or 3, H, W)."""
    return sample.ndim == 4 and sample.shape[1] in (1, 3)


def is_cloud(sample: Tensor) -> bool:
    """(B, P, 3)."""
    return sample.ndim == 3 and sample.shape[2] == 3


def as_images(samples: Tensor, size: int = CLOUD_SIZE) -> Tensor | None:
    """Samples to look at, in [-1, 1]: images as they are, clouds drawn `size` pixels wide; None for
    samples of any other kind."""
    if is_image(samples):
        return samples
    return draw_clouds(samples, size) if is_cloud(samples) else None


@torch.no_grad()
def draw_clouds(clouds: Tensor, size: int = CLOUD_SIZE) -> Tensor:
    """Clouds (B, P, 3) from one side, on white: (B, 3, size, size) in [-1, 1]."""
    x = clouds.detach().float().cpu()
    x = x - x.mean(1, keepdim=True)
    spread = x.square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-12)
    x = x / (3 * spread) @ _view().T  # right, up, near
    side = 2 * size  # drawn twice as large, then averaged
    column = ((1 + x[..., 0]) * side / 2).floor().long()
    row = ((1 - x[..., 1]) * side / 2).floor().long()
    near = torch.full((len(x), side * side), -torch.inf)
    radius = max(1, side // 60)
    for down in range(-radius, radius + 1):
        for right in range(-radius, radius + 1):
            if down**2 + right**2 > radius**2:
                continue
            r, c = row + down, column + right
            inside = (r >= 0) & (r < side) & (c >= 0) & (c < side)
            bulge = math.sqrt(radius**2 - down**2 - right**2) * 2 / side
            depth = torch.where(inside, x[..., 2] + bulge, -torch.inf)
            place = (r * side + c).where(inside, 0)
            near.scatter_reduce_(1, place, depth, "amax")
    return avg_pool2d(_coloured(near).view(len(x), 3, side, side), 2)


def _view() -> Tensor:
    turn, tilt = math.radians(-35), math.radians(20)
    upright = torch.tensor(
        [[math.cos(turn), 0, math.sin(turn)], [0, 1, 0], [-math.sin(turn), 0, math.cos(turn)]]
    )
    forward = torch.tensor(
        [[1, 0, 0], [0, math.cos(tilt), -math.sin(tilt)], [0, math.sin(tilt), math.cos(tilt)]]
    )
    return forward @ upright


def _coloured(near: Tensor) -> Tensor:
    """Depths (B, N), -inf where nothing is, as colours (B, 3, N) in [-1, 1]."""
    share = (near.clamp(-0.6, 0.6) + 0.6) / 1.2 * 2  # 0 far, 1 middle, 2 near
    far, middle, front = (torch.tensor(colour)[None, :, None] for colour in COLOURS)
    s = share[:, None]
    colours = torch.where(s < 1, far + s * (middle - far), middle + (s - 1) * (front - middle))
    return torch.where(near[:, None].isfinite(), 2 * colours - 1, 1.0)


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
