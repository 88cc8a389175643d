"""Latent diffusion checkpoints as models, and as folders of diffusers.

    model = latent_model(read_checkpoint("model.ckpt"))
    to_diffusers_folder(checkpoint, "lsun")  # then: --model diffusers:lsun

Three kinds: unconditional (LSUN-Bedroom), class-conditional (ImageNet, cin256-v2), and Stable
Diffusion 1.x. The number of attention heads and the size of an image are not in the file: they are
those of the published models, unless the configuration has `num_heads`, `num_head_channels` or
`image_size`.
"""

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ld3.errors import ModelError, StoreError
from ld3.options import PipelineOptions
from ld3.store import read_json
from ld3.zoo.checkpoints.families import Description, Family
from ld3.zoo.checkpoints.latent_names import FIRST_STAGE, UNET
from ld3.zoo.checkpoints.latent_parts import (
    CONDITION,
    LatentKind,
    check_names,
    recognise_latent,
    weights_note,
)
from ld3.zoo.checkpoints.ldm import class_pipeline, ldm_pipeline
from ld3.zoo.checkpoints.sd import clip_tokenizer, sd_pipeline
from ld3.zoo.checkpoints.tensors import Checkpoint
from ld3.zoo.pipelines import of_pipeline
from ld3.zoo.pipelines.model import PipelineModel

CONDITIONS = {"ldm": "none", "ldm-class": "classes", "sd": "text (CLIP ViT-L/14)"}
LICENCES = {
    "ldm": "MIT (CompVis)",
    "ldm-class": "MIT (CompVis)",
    "sd": "CreativeML Open RAIL-M",
}
TAKES = frozenset(
    {
        "prompts", "negative_prompt", "classes", "height", "width", "latents", "tiling", "net_time",
        "config",
    }
)  # fmt: skip


def latent_kind(checkpoint: Checkpoint, options: PipelineOptions | None = None) -> LatentKind:
    """The kind of a latent diffusion checkpoint, with what its configuration says.

    `options.config` names a JSON file that wins over the configuration in the checkpoint.
    """
    kind = recognise_latent(checkpoint.tensors)
    if kind is None:
        raise ModelError(f"{checkpoint.path}: got no latent U-Net, expected a latent checkpoint")
    kind = kind.configured(checkpoint.config)
    if options is None or options.config is None:
        return kind
    given = read_json(Path(options.config))
    if not isinstance(given, Mapping):
        raise ModelError(
            f"--config: got {options.config} without names, expected image_size, num_heads or "
            "num_head_channels"
        )
    return kind.configured(given)


def latent_pipeline(
    checkpoint: Checkpoint,
    dtype: torch.dtype | None = None,
    options: PipelineOptions | None = None,
) -> Any:
    """A checkpoint as a pipeline, on the CPU; float32 without a dtype."""
    kind, dtype = latent_kind(checkpoint, options), dtype or torch.float32
    check_names(checkpoint.tensors)
    if kind.name == "ldm":
        return ldm_pipeline(checkpoint.tensors, kind, dtype)
    if kind.name == "ldm-class":
        return class_pipeline(checkpoint.tensors, kind, dtype)
    beside = checkpoint.path.parent / "tokenizer"
    tokenizer = clip_tokenizer(beside if beside.is_dir() else None)
    return sd_pipeline(checkpoint.tensors, kind, dtype, tokenizer)


def latent_model(
    checkpoint: Checkpoint,
    options: PipelineOptions | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> PipelineModel:
    """A checkpoint as a model; its options are those of the pipeline it becomes."""
    said = options or PipelineOptions()
    pipe = latent_pipeline(checkpoint, dtype, said)
    return of_pipeline(pipe, said.model_copy(update={"config": None}), device)


def to_diffusers_folder(
    checkpoint: Checkpoint, out: str | Path, options: PipelineOptions | None = None
) -> Path:
    """Write a checkpoint as a pipeline's folder, whole or not at all.

    Weights become float32. A class-conditional model becomes a folder that only ld3 opens, of parts
    that diffusers opens; the others are `LDMPipeline` and `StableDiffusionPipeline`.
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreError(f"{folder}: got a place that is not empty, expected a new folder")
    pipe = latent_pipeline(checkpoint, None, options)
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


def describe(checkpoint: Checkpoint, options: PipelineOptions) -> Description:
    """What a checkpoint is; names are compared, no network is built."""
    kind, tensors = latent_kind(checkpoint, options), checkpoint.tensors
    check_names(tensors)
    first, last = kind.betas
    heads = f"{kind.heads} heads" if kind.heads else f"heads of width {kind.head_width}"
    coder = "KL autoencoder" if kind.name == "sd" else "VQ autoencoder"
    parts = [name for name in tensors if name.startswith((UNET, FIRST_STAGE, CONDITION))]
    channels = tensors.shape(f"{UNET}input_blocks.0.0.weight")[1]
    return Description(
        network=f"{kind.title}: U-Net with {heads}, {coder}",
        parameters=sum(math.prod(tensors.shape(n)) for n in parts if "position_ids" not in n),
        shape=(channels, kind.size, kind.size),
        schedule=f"{kind.steps} steps, sqrt(beta) linear {first} to {last}",
        prediction="eps",
        conditions=CONDITIONS[kind.name],
        licence=LICENCES[kind.name],
        notes=(
            f"weights of the U-Net: {weights_note(tensors)}",
            f"latents are divided by {kind.scale} before they are decoded",
            *(["the last class is the empty one, for --guidance"] * (kind.name == "ldm-class")),
        ),
    )


def settings(checkpoint: Checkpoint, options: PipelineOptions) -> dict[str, Any]:
    """What shapes do not tell, for a converted file."""
    kind = latent_kind(checkpoint, options)
    heads = {"num_heads": kind.heads, "num_head_channels": kind.head_width}
    given = {name: value for name, value in heads.items() if value is not None}
    return {"family": "latent", "image_size": kind.size, **given}


def load(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, options: PipelineOptions
) -> PipelineModel:
    return latent_model(checkpoint, options, device, dtype)


FAMILY = Family(
    name="latent diffusion (LDM, Stable Diffusion 1.x)",
    takes=TAKES,
    matches=lambda found: recognise_latent(found.tensors) is not None,
    describe=describe,
    load=load,
    settings=settings,
    write_folder=to_diffusers_folder,
)
