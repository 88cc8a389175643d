"""Fashion-MNIST from its idx files, and batches drawn without any hidden state."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

DATA = Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package dataset-fashion-mnist puts the files."""


def read_idx(path: Path) -> np.ndarray:
    """Bytes of an idx file: header 0, 0, type, rank, then the sizes as big-endian int32."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is not an idx file of unsigned bytes")
    rank = raw[3]
    shape = np.frombuffer(raw, ">i4", rank, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)


def load(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Images x / 127.5 - 1, (N,1,28,28), and labels, (N,); ``part`` is "train" or "t10k"."""
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz").astype(np.float32)
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(np.int64)
    return torch.from_numpy(images / 127.5 - 1)[:, None], torch.from_numpy(labels)


def stream(seed: int, purpose: int, step: int) -> torch.Generator:
    """Generator that depends on its three numbers only."""
    word = np.random.SeedSequence([seed, purpose, step]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(word >> 1))


def pick(count: int, batch: int, seed: int, step: int) -> Tensor:
    """Indices of batch number ``step``: a new shuffle each epoch, the ragged end left out."""
    per_epoch = count // batch
    order = torch.randperm(count, generator=stream(seed, 0, step // per_epoch))
    start = (step % per_epoch) * batch
    return order[start : start + batch]  # (batch,)
