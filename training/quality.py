"""How good a network is, measured while it trains.

* ``frechet``: distance of ``count`` samples (UniPC-3, 20 evaluations on the logSNR grid, guidance
  1, classes in equal parts) to the test images, by the features of ``judge``. Biased upwards by the
  small number of samples: compare at equal numbers only.
* ``recognised``: share of these samples that ``judge`` recognises as their class.
* ``loss_test``, ``loss_train``: the loss on the same 1,000 images, noise levels and noise each
  time, of the test and of the training set. When they part, the network learns by heart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import ld3
from ld3 import zoo
from ld3.metrics import Moments, frechet_distance

BATCH = 125
FIRST = 40_000  # seeds that no table of the documentation uses


def samples(model: ld3.Model, count: int, steps: int = 20, first: int = FIRST) -> Iterator[Tensor]:
    """Decoded samples in batches, clamped to [-1, 1]."""
    k = ld3.knots(model.schedule, ld3.make_grid("logsnr", model.schedule, steps))
    table = ld3.compile_table(ld3.make_solver("unipc", 3), k, model.prediction)
    for start in range(first, first + count, BATCH):
        part = range(start, min(start + BATCH, first + count))
        network = ld3.bind_network(model, model.conditions(part), guidance=1.0)
        yield model.decode(table.run(network, ld3.prior(model, part))).clamp(-1, 1)


@torch.inference_mode()
def grade(
    model: ld3.Model, count: int, steps: int = 20, first: int = FIRST, part: str = "test"
) -> dict[str, Any]:
    """Fréchet distance to the test (or ``train``) images, and share recognised."""
    judge, features, right, seen = zoo.judge(), [], 0, 0
    for batch in samples(model, count, steps, first):
        f = judge.features(batch)  # (B,D)
        wanted = torch.arange(first + seen, first + seen + len(f)) % 10
        right, seen = right + int((judge.head(f).argmax(1) == wanted).sum()), seen + len(f)
        features.append(f)
    distance = frechet_distance(Moments.of(features), zoo.judge_moments(part))
    return {"samples": count, "frechet": round(distance, 4), "recognised": round(right / count, 4)}


@torch.inference_mode()
def losses(
    loss: Callable[[Tensor, Tensor, torch.Generator], Tensor],
    parts: dict[str, tuple[Tensor, Tensor]],
    count: int = 1000,
) -> dict[str, float]:
    """The loss on the first ``count`` images of each part, with the same random numbers."""
    told = {}
    for name, (images, labels) in parts.items():
        g = torch.Generator().manual_seed(0)
        pairs = zip(images[:count].split(BATCH), labels[:count].split(BATCH), strict=True)
        values = [loss(x, y, g).item() for x, y in pairs]
        told[f"loss_{name}"] = round(sum(values) / len(values), 5)
    return told


@torch.inference_mode()
def sheet(model: ld3.Model, count: int, path: Path, columns: int = 16) -> None:
    """A image of ``count`` samples."""
    x = torch.cat(list(samples(model, count)))  # (N,C,H,W)
    n, c, h, w = x.shape
    table = x.reshape(n // columns, columns, c, h, w).permute(0, 3, 1, 4, 2)
    pixels = ((table.reshape(-1, columns * w, c) + 1) * 127.5).round().byte().numpy()
    Image.fromarray(pixels if c == 3 else pixels[..., 0]).save(path)
