"""Noise: one generator per sample, so that a seed means the same sample in any batch."""

from collections.abc import Sequence

import torch
from torch import Tensor


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
