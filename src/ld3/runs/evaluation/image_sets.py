"""Sets of images on disk: folders, zips, `.npz` arrays and Hugging Face datasets.

    images = open_images(path, channels=3)
    for part in images.parts(): ...       # uint8 (250, C, H, W) at a time, in the order of names

Images must have one size, unless a `crop` brings them to `side` x `side`:

    center-crop            the middle square, then Pillow's Lanczos
    center-crop-dhariwal   halved by boxes while twice too large, bicubic, then the middle

These are the two rules of EDM's dataset tool under the same names.
"""

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ld3.errors import SpecError, StoreError, first_line
from ld3.images import png_of
from ld3.runs.evaluation.npz import read_npz
from ld3.store import digest, read_bytes, write_bytes

Crop = Literal["", "center-crop", "center-crop-dhariwal"]
CROPS: tuple[str, ...] = tuple(name for name in get_args(Crop) if name)
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
PART = 250  # images at a time
MAX_FILE = 2**28  # bytes of one image file
MAX_PIXELS = 2**27


@dataclass(frozen=True)
class ImageSet:
    """Images of one size; `each` opens them again every time it is called."""

    source: Path
    digest: str  # of names, sizes and dates of the files
    count: int
    channels: int
    each: Callable[[int], Iterator[Tensor]]  # from this number on: uint8 (C, H, W)

    def parts(self, first: int = 0, count: int | None = None) -> Iterator[Tensor]:
        """uint8 (B, C, H, W) from number `first`, `count` images in all, in order."""
        rows: list[Tensor] = []
        for image in islice(self.each(first), count):
            if rows and image.shape != rows[0].shape:
                raise SpecError(
                    f"{self.source}: got images of {_size(rows[0])} and of {_size(image)}, "
                    "expected one size; bring all to one with `ld3 reference --resolution SIDE`"
                )
            rows.append(image)
            if len(rows) == PART:
                yield torch.stack(rows)
                rows = []
        if rows:
            yield torch.stack(rows)


def open_images(
    path: Path, channels: int = 3, side: int | None = None, crop: Crop = "center-crop"
) -> ImageSet:
    """The images at a path; `side` brings all to that size by the rule `crop`."""
    ready = _Ready(channels, side, crop)
    stamp: list[Any] = [channels, side, crop if side else ""]
    if path.is_dir():
        if (path / "dataset_info.json").is_file():
            return _dataset(path, ready, stamp)
        if (path / "dataset_dict.json").is_file():
            splits = sorted(file.parent.name for file in path.glob("*/dataset_info.json"))
            raise SpecError(
                f"{path}: got a dataset with splits {', '.join(splits)[:100]}; give the folder of "
                "one of them"
            )
        files = sorted(f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
        if not files:
            raise SpecError(
                f"{path}: got a folder without images, expected {', '.join(SUFFIXES[:3])}, or a "
                "dataset that `datasets` saved"
            )
        facts = [[str(f.relative_to(path)), f.stat().st_size, f.stat().st_mtime_ns] for f in files]

        def each(first: int) -> Iterator[Tensor]:
            return (ready.of(read_bytes(f, MAX_FILE), f) for f in files[first:])

        return ImageSet(path, digest([facts, stamp]), len(files), channels, each)
    if not path.is_file():
        raise StoreError(f"cannot read {path}: there is no such file or folder")
    stat = path.stat()
    stamp += [path.name, stat.st_size, stat.st_mtime_ns]
    if path.suffix == ".npz":
        return _arrays(path, ready, stamp)
    if not zipfile.is_zipfile(path):
        raise SpecError(f"{path}: got neither a folder, a zip nor an .npz, expected images")
    return _zip(path, ready, stamp)


def _zip(path: Path, ready: "_Ready", stamp: list[Any]) -> ImageSet:
    with zipfile.ZipFile(path) as archive:
        members = [m for m in archive.infolist() if Path(m.filename).suffix.lower() in SUFFIXES]
    members.sort(key=lambda m: m.filename)
    if not members:
        raise SpecError(f"{path}: got a zip without images, expected {', '.join(SUFFIXES[:3])}")
    large = next((m for m in members if m.file_size > MAX_FILE), None)
    if large is not None:
        raise SpecError(
            f"{path}: got {large.filename[:80]!r} of {large.file_size} bytes, expected images of "
            f"at most {MAX_FILE}"
        )

    def each(first: int) -> Iterator[Tensor]:
        with zipfile.ZipFile(path) as archive:
            for member in members[first:]:
                try:
                    content = archive.read(member)
                except Exception as error:
                    raise StoreError(f"{path}: got a damaged zip ({str(error)[:80]})") from None
                yield ready.of(content, path / member.filename)

    return ImageSet(path, digest(stamp), len(members), ready.channels, each)


def _arrays(path: Path, ready: "_Ready", stamp: list[Any]) -> ImageSet:
    """`arr_0` of ADM's sample batches: uint8 (N, H, W, 1 or 3)."""
    array = read_npz(path).get("arr_0")
    if array is None or array.dtype != np.uint8 or len(array.shape) != 4:
        raise SpecError(f"{path}: got no images in arr_0, expected uint8 (N, H, W, 3)")

    def each(first: int) -> Iterator[Tensor]:
        done = 0
        for part in array.rows(PART):
            for image in part[max(0, first - done) :]:
                yield ready.of_array(image, path)
            done += len(part)

    return ImageSet(path, digest(stamp), array.shape[0], ready.channels, each)


def _dataset(path: Path, ready: "_Ready", stamp: list[Any]) -> ImageSet:
    """What `datasets.Dataset.save_to_disk` wrote; the column of images is found by its type."""
    try:
        from datasets import Image, load_from_disk
    except ImportError:
        raise SpecError(
            f"{path}: got a dataset of Hugging Face, which needs the package `datasets`; run "
            "`pip install datasets`"
        ) from None
    try:
        data = load_from_disk(str(path))
    except Exception as error:  # whatever it raises for damaged files
        raise StoreError(
            f"{path}: got a dataset that `datasets` cannot read ({first_line(error, 80)}); save it "
            "again"
        ) from None
    columns = [n for n, kind in data.features.items() if isinstance(kind, Image)]
    if not columns:
        raise SpecError(
            f"{path}: got columns {', '.join(data.features)[:100]}, expected one of images"
        )

    def image(number: int) -> Tensor:
        try:
            return ready.of_image(data[number][columns[0]], path)
        except Exception as error:  # whatever a decoder raises, or no image at all
            reason = first_line(error, 80)
            raise StoreError(f"{path}: got row {number} without a whole image ({reason})") from None

    def each(first: int) -> Iterator[Tensor]:
        return map(image, range(first, len(data)))

    return ImageSet(path, digest([str(data._fingerprint), stamp]), len(data), ready.channels, each)


@dataclass(frozen=True)
class _Ready:
    """One file -> uint8 (C, H, W)."""

    channels: int
    side: int | None
    crop: Crop

    def of(self, content: bytes, name: Path) -> Tensor:
        pillow = _pillow()
        try:
            with pillow.open(io.BytesIO(content)) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError(f"{image.width}x{image.height} pixels are too many")
                return self.of_image(image, name)
        except Exception as error:  # whatever a decoder raises for a damaged file
            reason = first_line(error, 80)
            raise StoreError(f"{name}: got a file that is no whole image ({reason})") from None

    def of_array(self, array: Any, name: Path) -> Tensor:
        if self.side is None and array.shape[-1] == self.channels:
            return torch.from_numpy(np.array(array)).permute(2, 0, 1)
        return self.of_image(
            _pillow().fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array), name
        )

    def of_image(self, image: Any, name: Path) -> Tensor:
        image = image.convert("L" if self.channels == 1 else "RGB")
        if self.side is not None and image.size != (self.side, self.side):
            image = cropped(image, self.side, self.crop)
        pixels = torch.from_numpy(np.array(image))
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def cropped(image: Any, side: int, rule: Crop) -> Any:
    """The middle of a Pillow image, side x side: see the module."""
    resample = _pillow().Resampling
    width, height = image.size
    if rule == "center-crop-dhariwal":
        while min(image.size) >= 2 * side:
            image = image.resize((image.size[0] // 2, image.size[1] // 2), resample.BOX)
        scale = side / min(image.size)
        size = tuple(round(edge * scale) for edge in image.size)
        image = image.resize(size, resample.BICUBIC)
        left, top = ((edge - side) // 2 for edge in image.size)
        return image.crop((left, top, left + side, top + side))
    inner = min(width, height)
    left, top = (width - inner) // 2, (height - inner) // 2
    square = image.crop((left, top, left + inner, top + inner))
    return square.resize((side, side), resample.LANCZOS)


def write_pngs(folder: Path, parts: Iterable[Tensor]) -> None:
    """uint8 (B, C, H, W) as 000000.png, ..., in their order."""
    for number, image in enumerate(chain.from_iterable(parts)):
        write_bytes(folder / f"{number:06d}.png", png_of(image))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise SpecError(
            "images: reading image files needs the package Pillow; run `pip install pillow`"
        ) from None
    return Image


def _size(image: Tensor) -> str:
    return f"{image.shape[-2]}x{image.shape[-1]}"
