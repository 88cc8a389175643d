"""Latent diffusion checkpoints as models, and as folders of diffusers.

    kind = recognise_latent(checkpoint.tensors)    # None: some other checkpoint
    model = latent_model(checkpoint)
    to_diffusers_folder(checkpoint, "lsun")        # then: --model diffusers:lsun

Three kinds: unconditional (LSUN-Bedroom), class-conditional (ImageNet, cin256-v2), and Stable
Diffusion 1.x. The number of attention heads and the size of an image are not in the file: they are
those of the published models, unless the configuration has `num_heads`, `num_head_channels` or
`image_size`.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from ld3.errors import ModelError, StoreError
from ld3.options import PipelineOptions
from ld3.zoo.checkpoints.latent_names import Weights
from ld3.zoo.checkpoints.latent_parts import (
    LatentKind,
    check_names,
    recognise_latent,
    weights_note,
)
from ld3.zoo.checkpoints.ldm import class_pipeline, ldm_pipeline
from ld3.zoo.checkpoints.sd import clip_tokenizer, sd_pipeline
from ld3.zoo.pipelines import of_pipeline
from ld3.zoo.pipelines.model import PipelineModel

CONDITIONS = {
    "ldm": "none",
    "ldm-class": "classes, the last row of the table is the empty class",
    "sd": "text (CLIP ViT-L/14)",
}
LICENCES = {
    "ldm": "MIT (CompVis)",
    "ldm-class": "MIT (CompVis)",
    "sd": "CreativeML Open RAIL-M",
}


class LatentCheckpoint(Protocol):
    """The tensors of a file by name, and its configuration, if it has one."""

    @property
    def path(self) -> Path: ...
    @property
    def tensors(self) -> Weights: ...
    @property
    def config(self) -> Mapping[str, Any]: ...


def latent_kind(checkpoint: LatentCheckpoint) -> LatentKind:
    """The kind of a latent diffusion checkpoint, with what its configuration says."""
    kind = recognise_latent(checkpoint.tensors)
    if kind is None:
        raise ModelError(f"{checkpoint.path}: got no latent U-Net, expected a latent checkpoint")
    return kind.configured(checkpoint.config)


def latent_pipeline(checkpoint: LatentCheckpoint, dtype: torch.dtype | None = None) -> Any:
    """A checkpoint as a pipeline, on the CPU; float32 without a dtype."""
    kind, dtype = latent_kind(checkpoint), dtype or torch.float32
    check_names(checkpoint.tensors)
    if kind.name == "ldm":
        return ldm_pipeline(checkpoint.tensors, kind, dtype)
    if kind.name == "ldm-class":
        return class_pipeline(checkpoint.tensors, kind, dtype)
    beside = checkpoint.path.parent / "tokenizer"
    tokenizer = clip_tokenizer(beside if beside.is_dir() else None)
    return sd_pipeline(checkpoint.tensors, kind, dtype, tokenizer)


def latent_model(
    checkpoint: LatentCheckpoint,
    options: PipelineOptions | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> PipelineModel:
    """A checkpoint as a model; its options are those of the pipeline it becomes."""
    return of_pipeline(latent_pipeline(checkpoint, dtype), options or PipelineOptions(), device)


def to_diffusers_folder(checkpoint: LatentCheckpoint, out: str | Path) -> Path:
    """Write a checkpoint as a pipeline's folder, whole or not at all.

    Weights keep float32. A class-conditional model becomes a folder that only ld3 opens, of parts
    that diffusers opens; the others are `LDMPipeline` and `StableDiffusionPipeline`.
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(f"{folder}: got a place that is not empty, expected a new folder")
    pipe = latent_pipeline(checkpoint)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            pipe.save_pretrained(str(made))
            made.chmod(0o755)
            os.replace(made, folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror or error}") from None
    return folder


def latent_facts(checkpoint: LatentCheckpoint) -> dict[str, str]:
    """What a checkpoint is, in words; no network is built."""
    kind = latent_kind(checkpoint)
    first, last = kind.betas
    heads = f"{kind.heads} heads" if kind.heads else f"heads of width {kind.head_width}"
    return {
        "network": f"{kind.title}: U-Net with {heads} and "
        + ("KL autoencoder" if kind.name == "sd" else "VQ autoencoder"),
        "weights": weights_note(checkpoint.tensors),
        "schedule": f"{kind.steps} steps, sqrt(beta) linear {first} to {last}",
        "prediction": "eps",
        "latents": f"{kind.size}x{kind.size}, divided by {kind.scale} before decoding",
        "conditions": CONDITIONS[kind.name],
        "licence": LICENCES[kind.name],
    }
