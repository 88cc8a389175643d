"""Noise: one generator per sample, and the one table of which seeds are used for what.

A seed means the same noise in any batch, process and machine. Each purpose has a range of seeds of
its own, cut into blocks: run r of a purpose takes the first seeds of block r. Ranges never overlap
and a block is never exceeded, so that no plan is scored on noise it was trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ld3.errors import SpecError

Purpose = Literal[
    "training", "validation", "held-out", "evaluation", "reference", "images", "bound",
    "illustration",
]  # fmt: skip


@dataclass(frozen=True)
class SeedRange:
    """Seeds first .. first + block * blocks - 1."""

    first: int
    block: int  # seeds of one run, at most
    blocks: int = 1


BILLION = 1_000_000_000
RANGES: dict[Purpose, SeedRange] = {
    "training": SeedRange(0, 10_000, 100_000),
    "validation": SeedRange(BILLION, 10_000, 100_000),
    "held-out": SeedRange(2 * BILLION, BILLION),
    "evaluation": SeedRange(3 * BILLION, BILLION // 2),  # samples of set metrics
    "reference": SeedRange(7 * BILLION // 2, BILLION // 2),  # the set they are compared to
    "images": SeedRange(4 * BILLION, BILLION),
    "bound": SeedRange(5 * BILLION, BILLION),
    "illustration": SeedRange(6 * BILLION, BILLION),
}
MAX_RUN = RANGES["training"].blocks - 1  # the largest --seed
MAX_PAIRS = RANGES["training"].block  # of one run


def seeds_for(purpose: Purpose, count: int, run: int = 0) -> range:
    """`count` seeds of block `run`; more than the block holds is a :class:`SpecError`."""
    own = RANGES[purpose]
    if not 0 <= run < own.blocks:
        raise SpecError(f"seed: got {run}, expected 0 to {own.blocks - 1}")
    if not 0 <= count <= own.block:
        raise SpecError(f"{purpose} seeds: got {count}, expected at most {own.block} per run")
    first = own.first + run * own.block
    return range(first, first + count)


def noise(
    seeds: Sequence[int],
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Unit-variance noise z (B, *shape), row b made by seeds[b] alone.

    Always drawn on the CPU in float32 and then converted, so that it is the same everywhere.
    """
    rows = []
    for seed in seeds:
        generator = torch.Generator(device="cpu").manual_seed(seed)
        rows.append(torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu"))
    return torch.stack(rows).to(device, dtype)
