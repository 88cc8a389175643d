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
import secrets
import shutil
import stat
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3.errors import ModelError, StoreError
from ld3.options import PipelineOptions
from ld3.store import read_json
from ld3.zoo.checkpoints.clip_text import clip_tokenizer, make_text_encoder
from ld3.zoo.checkpoints.families import Description, Family
from ld3.zoo.checkpoints.latent_names import FIRST_STAGE, UNET
from ld3.zoo.checkpoints.latent_parts import (
    CLASSES,
    CONDITION,
    LatentKind,
    check_names,
    fitting_layout,
    import_diffusers,
    make_coder,
    make_scheduler,
    make_unet,
    outlines,
    own_betas,
    recognise_latent,
    weights_note,
)
from ld3.zoo.checkpoints.tensors import Checkpoint, Tensors
from ld3.zoo.pipelines import of_pipeline
from ld3.zoo.pipelines.class_latents import ClassLatentPipeline
from ld3.zoo.pipelines.model import PipelineModel

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
    tensors, kind = checkpoint.tensors, latent_kind(checkpoint, options)
    dtype, beside = dtype or torch.float32, checkpoint.path.parent / "tokenizer"
    check_names(tensors, kind)
    if kind.name == "sd":
        tokenizer = clip_tokenizer(beside if beside.is_dir() else None)
    with fitting_layout():
        coder, unet = make_coder(tensors, kind, dtype), make_unet(tensors, kind, dtype)
        scheduler = make_scheduler(tensors, kind)
        if kind.name == "ldm":
            return import_diffusers().LDMPipeline(coder, unet, scheduler)
        if kind.name == "ldm-class":
            table = check_table(tensors[CLASSES].to(dtype), unet)
            return ClassLatentPipeline(unet, coder, scheduler, table)
        return import_diffusers().StableDiffusionPipeline(
            vae=coder,
            text_encoder=make_text_encoder(tensors, tokenizer, dtype),
            tokenizer=tokenizer,
            unet=unet,
            scheduler=scheduler,
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )


def check_table(table: Tensor, unet: Any) -> Tensor:
    """One row for each class, as wide as the tokens that the U-Net takes; the last is the empty
    class."""
    width = unet.config.get("cross_attention_dim")
    if table.ndim != 2 or len(table) < 2 or table.shape[1] != width:
        raise ModelError(
            f"checkpoint: got {CLASSES} of shape {tuple(table.shape)}, expected (classes, {width})"
        )
    return table


def check_shapes(checkpoint: Checkpoint, kind: LatentKind) -> None:
    """Networks without memory are built from the shapes; what does not fit is refused."""
    with fitting_layout():
        empty = outlines(checkpoint.tensors)
        unet = make_unet(empty, kind, torch.float32)
        make_coder(empty, kind, torch.float32)
        if kind.name == "ldm-class":
            check_table(empty[CLASSES], unet)
        if kind.name == "sd":
            make_text_encoder(empty, None, torch.float32)


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
        made = folder.parent / f".{secrets.token_hex(8)}.tmp"
        made.mkdir()  # with the rights that the umask leaves
        try:
            pipe.save_pretrained(str(made))
            rights = (made / "model_index.json").stat().st_mode  # safetensors leaves fewer
            for file in filter(Path.is_file, made.rglob("*")):
                file.chmod(stat.S_IMODE(rights))
            os.replace(made, folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror or error}") from None
    return folder


def describe(checkpoint: Checkpoint, options: PipelineOptions) -> Description:
    """What a checkpoint is; its names and shapes are those of its networks. Only its betas are
    read."""
    kind, tensors = latent_kind(checkpoint, options), checkpoint.tensors
    check_names(tensors, kind)
    sized = find_spec("diffusers") is not None
    if sized:
        check_shapes(checkpoint, kind)
    first, last = kind.betas
    betas = own_betas(tensors, kind)
    schedule = f"{kind.steps} steps, sqrt(beta) linear {first} to {last}"
    if betas is not None:
        schedule = f"{len(betas)} steps, betas of the file, {betas[0]:g} to {betas[-1]:g}"
    heads = f"{kind.heads} heads" if kind.heads else f"heads of width {kind.head_width}"
    coder = "KL autoencoder" if kind.name == "sd" else "VQ autoencoder"
    parts = [name for name in tensors if name.startswith((UNET, FIRST_STAGE, CONDITION))]
    channels = tensors.shape(f"{UNET}input_blocks.0.0.weight")[1]
    return Description(
        network=f"{kind.title}: U-Net with {'1 head' if kind.heads == 1 else heads}, {coder}",
        parameters=sum(math.prod(tensors.shape(n)) for n in parts if "position_ids" not in n),
        shape=(channels, kind.size, kind.size),
        schedule=schedule,
        prediction="eps",
        conditions=_conditions(kind, tensors),
        licence=LICENCES[kind.name],
        notes=(
            f"weights of the U-Net: {weights_note(tensors)}",
            f"latents are divided by {kind.scale} before they are decoded",
            *([] if sized else ["shapes were not compared, which wants the package diffusers"]),
        ),
    )


def _conditions(kind: LatentKind, tensors: Tensors) -> str:
    if kind.name == "ldm-class":
        return f"classes 0-{tensors.shape(CLASSES)[0] - 2}, and the empty class for --guidance"
    return "text (CLIP ViT-L/14)" if kind.name == "sd" else "none"


def settings(checkpoint: Checkpoint, options: PipelineOptions) -> dict[str, Any]:
    """What shapes do not tell, for a converted file; its shapes were compared by diffusers."""
    import_diffusers()
    kind = latent_kind(checkpoint, options)
    heads = {"num_heads": kind.heads, "num_head_channels": kind.head_width}
    given = {name: value for name, value in heads.items() if value is not None}
    return {"family": "latent", "image_size": kind.size, **given}


FAMILY = Family(
    name="latent diffusion (LDM, Stable Diffusion 1.x)",
    takes=TAKES,
    matches=lambda found: recognise_latent(found.tensors) is not None,
    describe=describe,
    load=lambda found, device, dtype, options: latent_model(found, options, device, dtype),
    settings=settings,
    write_folder=to_diffusers_folder,
)
