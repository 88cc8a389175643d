"""Decoders of pipelines, differentiable, from latents to samples in [-1, 1]."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.options import PipelineOptions


def image_decoder(vae: Any, options: PipelineOptions) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """decode(x / scale + shift), or with the mean and spread of each channel where it has them.

    A decoder that overflows in float16 and says so is copied to float32.
    """
    if vae.dtype == torch.float16 and vae.config.get("force_upcast"):
        vae = copy.deepcopy(vae).float()
    tile(vae, options)
    config = vae.config
    scale, shift = config.get("scaling_factor") or 1.0, config.get("shift_factor") or 0.0
    mean, std = config.get("latents_mean"), config.get("latents_std")

    def decode(x: Tensor) -> Tensor:
        if mean is not None and std is not None:
            axes = (1, -1, *[1] * (x.ndim - 2))
            centre, spread = (x.new_tensor(values).view(axes) for values in (mean, std))
            x = x * spread / scale + centre
        else:
            x = x / scale + shift
        out: Tensor = vae.decode(x.to(vae.dtype)).sample
        return out

    return vae, decode


def tile(vae: Any, options: PipelineOptions) -> None:
    """Decode in tiles, with the option `tiling`."""
    if not options.tiling:
        return
    if not hasattr(vae, "use_tiling"):
        raise SpecError(f"tiling: got {type(vae).__name__}, which cannot; leave it out")
    vae.enable_tiling()


def pixels(
    options: PipelineOptions, default: tuple[int, int], factor: int, patch: int = 1
) -> tuple[int, int]:
    """Height and width in latents, from those in pixels or the `default` in latents."""
    each = factor * patch
    for name, value in (("height", options.height), ("width", options.width)):
        if value is not None and value % each:
            raise SpecError(f"{name}: got {value}, expected a multiple of {each}")
    height = default[0] if options.height is None else options.height // factor
    width = default[1] if options.width is None else options.width // factor
    return height, width


def unpacked(x: Tensor, height: int, width: int) -> Tensor:
    """From tokens of two by two latents (B, H/2 W/2, 4C) to latents (B, C, H, W)."""
    channels = x.shape[-1] // 4
    blocks = x.reshape(-1, height // 2, width // 2, channels, 2, 2)
    return blocks.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, height, width)


def sides(size: Any) -> tuple[int, int]:
    """A sample size of a config, which may be one number for both."""
    return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))
