"""CLIP's text encoder and tokenizer for files of Stable Diffusion 1.x.

The file has the U-Net, the autoencoder and CLIP's text encoder. It does not have the vocabulary of
the tokenizer: that is taken from a folder `tokenizer` beside the file, or from the hub.
"""

import re
from pathlib import Path
from typing import Any

import torch

from ld3.errors import ModelError, import_extra
from ld3.zoo.checkpoints.latent_names import Weights, below
from ld3.zoo.checkpoints.latent_parts import TEXT, built

TOKENIZER = "openai/clip-vit-large-patch14"  # whose text encoder Stable Diffusion 1.x uses
HEAD = 64  # width of an attention head of CLIP
INNER = "text_model."
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def make_text_encoder(tensors: Weights, tokenizer: Any, dtype: torch.dtype) -> Any:
    """CLIP's text encoder, with sizes from the shapes; without a tokenizer to see whether they
    fit."""
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
        **{word: getattr(tokenizer, word, 0) for word in SPECIAL},
    )
    if tokenizer is not None:
        if len(tokenizer) != len(table):
            raise _no_vocabulary(f"a tokenizer of {len(tokenizer)} tokens for {len(table)}")
        tokenizer.model_max_length = min(tokenizer.model_max_length, len(places))
    with torch.device("meta"):
        nested = any(n.startswith(INNER) for n in transformers.CLIPTextModel(config).state_dict())
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
    return import_extra("transformers", "model: Stable Diffusion wants the package transformers")
