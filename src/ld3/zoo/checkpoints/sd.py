"""Stable Diffusion 1.x in one file, as diffusers' pipeline.

The file has the U-Net, the autoencoder and CLIP's text encoder. It does not have the vocabulary of
the tokenizer: that is taken from a folder `tokenizer` beside the file, or from the hub.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ld3.errors import ModelError, SpecError
from ld3.zoo.checkpoints.latent_names import Weights, below
from ld3.zoo.checkpoints.latent_parts import (
    TEXT,
    LatentKind,
    built,
    import_diffusers,
    make_coder,
    make_scheduler,
    make_unet,
)

TOKENIZER = "openai/clip-vit-large-patch14"  # whose text encoder Stable Diffusion 1.x uses
HEAD = 64  # width of an attention head of CLIP
INNER = "text_model."


def sd_pipeline(
    tensors: Weights, kind: LatentKind, dtype: torch.dtype, tokenizer: Any = None
) -> Any:
    """A Stable Diffusion 1.x model as `StableDiffusionPipeline`, without a safety checker.

    `tokenizer` is one of transformers; None: CLIP's, from the hub.
    """
    words = clip_tokenizer(None) if tokenizer is None else tokenizer
    return import_diffusers().StableDiffusionPipeline(
        vae=make_coder(tensors, kind, dtype),
        text_encoder=make_text_encoder(tensors, words, dtype),
        tokenizer=words,
        unet=make_unet(tensors, kind, dtype),
        scheduler=make_scheduler(tensors, kind),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def make_text_encoder(tensors: Weights, tokenizer: Any, dtype: torch.dtype) -> Any:
    """CLIP's text encoder, with sizes from the shapes."""
    transformers = _transformers()
    weights = {
        name.removeprefix(INNER): tensor
        for name, tensor in below(tensors, TEXT).items()
        if not name.endswith("position_ids")  # 0, 1, 2, ...: a buffer
    }
    table = weights.get("embeddings.token_embedding.weight")
    places = weights.get("embeddings.position_embedding.weight")
    inner = weights.get("encoder.layers.0.mlp.fc1.bias")
    if table is None or places is None or inner is None:
        raise ModelError(
            f"checkpoint: got no embeddings and layers below {TEXT}{INNER}, expected CLIP's text "
            "encoder"
        )
    layers = {int(m[1]) for name in weights if (m := re.match(r"encoder\.layers\.(\d+)\.", name))}
    config = transformers.CLIPTextConfig(
        vocab_size=table.shape[0],
        hidden_size=table.shape[1],
        projection_dim=table.shape[1],
        intermediate_size=len(inner),
        num_hidden_layers=len(layers),
        num_attention_heads=max(1, table.shape[1] // HEAD),
        max_position_embeddings=len(places),
        hidden_act="quick_gelu",
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.device("meta"):
        nested = any(n.startswith(INNER) for n in transformers.CLIPTextModel(config).state_dict())
    if len(tokenizer) != len(table):
        raise _no_vocabulary(f"a tokenizer of {len(tokenizer)} words for {len(table)}")
    tokenizer.model_max_length = min(tokenizer.model_max_length, len(places))
    if nested:  # transformers before 5
        weights = {INNER + name: tensor for name, tensor in weights.items()}
    encoder = built(transformers.CLIPTextModel, {"config": config}, weights, dtype)
    inside = encoder.text_model if nested else encoder
    inside.embeddings.position_ids = torch.arange(len(places))[None]
    return encoder


def clip_tokenizer(folder: Path | None) -> Any:
    """CLIP's tokenizer from a folder, or from the hub and its cache."""
    kind = _transformers().CLIPTokenizer
    where = TOKENIZER if folder is None else str(folder)
    try:
        return kind.from_pretrained(where)
    except Exception as error:  # the hub has many, of several packages
        raise _no_vocabulary(f"{where} cannot be loaded ({type(error).__name__})") from None


def _no_vocabulary(why: str) -> ModelError:
    return ModelError(
        f"checkpoint: got Stable Diffusion, whose file lacks the vocabulary, and {why}; put "
        f"vocab.json and merges.txt of {TOKENIZER} into a folder named tokenizer beside the file"
    )


def _transformers() -> Any:
    try:
        return import_module("transformers")
    except ImportError:
        raise SpecError(
            "model: Stable Diffusion wants the package transformers; pip install 'ld3[diffusers]'"
        ) from None
