"""Latent diffusion of CompVis with a vector-quantised first stage, as pipelines.

Unconditional (LSUN-Bedroom, LDM-4) and class-conditional (ImageNet, cin256-v2). Latents are decoded
without a scale.
"""

from typing import Any

import torch

from ld3.errors import ModelError
from ld3.zoo.checkpoints.latent_names import Weights
from ld3.zoo.checkpoints.latent_parts import (
    CLASSES,
    LatentKind,
    import_diffusers,
    make_coder,
    make_scheduler,
    make_unet,
)
from ld3.zoo.pipelines.class_latents import ClassLatentPipeline


def ldm_pipeline(tensors: Weights, kind: LatentKind, dtype: torch.dtype) -> Any:
    """An unconditional model as diffusers' `LDMPipeline`."""
    coder, unet = make_coder(tensors, kind, dtype), make_unet(tensors, kind, dtype)
    return import_diffusers().LDMPipeline(coder, unet, make_scheduler(tensors, kind))


def class_pipeline(tensors: Weights, kind: LatentKind, dtype: torch.dtype) -> ClassLatentPipeline:
    """A class-conditional model; row 1000 of its table is the empty class."""
    table, unet = tensors[CLASSES].to(dtype), make_unet(tensors, kind, dtype)
    width = unet.config.get("cross_attention_dim")
    if table.ndim != 2 or table.shape[1] != width:
        raise ModelError(
            f"checkpoint: got {CLASSES} of shape {tuple(table.shape)}, expected (classes, {width})"
        )
    return ClassLatentPipeline(
        unet,
        make_coder(tensors, kind, dtype),
        make_scheduler(tensors, kind),
        table,
    )
