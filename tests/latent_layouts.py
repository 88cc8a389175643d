"""Small latent diffusion checkpoints in the layout of CompVis, with weights made from their names.

The weights are those of the fixtures in ../shared/fixtures: u(name, i) is splitmix64 of the CRC-32
of the name and i, in [-1, 1). A matrix or a kernel is u sqrt(3 / inputs), a scale 1 + 0.1 u, a bias
0.1 u, rounded to float32.
"""

import math
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]


def uniform(name: str, count: int) -> Tensor:
    """u(name, 0), ..., u(name, count - 1) in float64."""
    number = np.uint64
    with np.errstate(over="ignore"):
        z = number(zlib.crc32(name.encode())) * number(2**32) + np.arange(count, dtype=number)
        z = z + number(0x9E3779B97F4A7C15)
        z = (z ^ (z >> number(30))) * number(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> number(27))) * number(0x94D049BB133111EB)
        z = z ^ (z >> number(31))
    return torch.from_numpy((z >> number(11)).astype(np.float64) * 2.0**-52 - 1)


def weight(name: str, shape: Sequence[int]) -> Tensor:
    """The tensor of that name, float32."""
    u = uniform(name, math.prod(shape))
    if len(shape) > 1:
        u = u * math.sqrt(3 / math.prod(shape[1:]))
    else:
        u = 0.1 * u + (1.0 if name.endswith("weight") else 0.0)
    return u.reshape(tuple(shape)).float()


def weights(shapes: Shapes) -> dict[str, Tensor]:
    return {name: weight(name, shape) for name, shape in shapes.items()}


def inputs(name: str, *shape: int) -> Tensor:
    """Inputs of a fixture: sqrt(3) u, float32."""
    return (math.sqrt(3) * uniform(name, math.prod(shape))).reshape(shape).float()


def unet(
    channels: int = 3,
    base: int = 32,
    mult: Sequence[int] = (1, 2, 3),
    attention: Sequence[int] = (4, 2),
    context: int | None = None,
    prefix: str = "model.diffusion_model.",
) -> Shapes:
    """OpenAI's U-Net with two residual blocks a level; `attention` are factors of downsampling."""
    shapes: Shapes = {}
    time = 4 * base

    def add(name: str, *shape: int) -> None:
        shapes[f"{prefix}{name}.weight"] = shape
        shapes[f"{prefix}{name}.bias"] = shape[:1]

    def residual(name: str, start: int, end: int) -> None:
        add(f"{name}.in_layers.0", start)
        add(f"{name}.in_layers.2", end, start, 3, 3)
        add(f"{name}.emb_layers.1", end, time)
        add(f"{name}.out_layers.0", end)
        add(f"{name}.out_layers.3", end, end, 3, 3)
        if start != end:
            add(f"{name}.skip_connection", end, start, 1, 1)

    def attend(name: str, width: int) -> None:
        add(f"{name}.norm", width)
        if context is None:
            add(f"{name}.qkv", 3 * width, width, 1)
            add(f"{name}.proj_out", width, width, 1)
            return
        add(f"{name}.proj_in", width, width, 1, 1)
        block = f"{name}.transformer_blocks.0"
        for one, seen in (("attn1", width), ("attn2", context)):
            shapes[f"{prefix}{block}.{one}.to_q.weight"] = (width, width)
            shapes[f"{prefix}{block}.{one}.to_k.weight"] = (width, seen)
            shapes[f"{prefix}{block}.{one}.to_v.weight"] = (width, seen)
            add(f"{block}.{one}.to_out.0", width, width)
        add(f"{block}.ff.net.0.proj", 8 * width, width)
        add(f"{block}.ff.net.2", width, 4 * width)
        for norm in ("norm1", "norm2", "norm3"):
            add(f"{block}.{norm}", width)
        add(f"{name}.proj_out", width, width, 1, 1)

    add("time_embed.0", time, base)
    add("time_embed.2", time, time)
    add("input_blocks.0.0", base, channels, 3, 3)
    skips, width, block = [base], base, 1
    for level, factor in enumerate(mult):
        for _ in range(2):
            residual(f"input_blocks.{block}.0", width, factor * base)
            width = factor * base
            if 2**level in attention:
                attend(f"input_blocks.{block}.1", width)
            skips.append(width)
            block += 1
        if level < len(mult) - 1:
            add(f"input_blocks.{block}.0.op", width, width, 3, 3)
            skips.append(width)
            block += 1
    residual("middle_block.0", width, width)
    attend("middle_block.1", width)
    residual("middle_block.2", width, width)
    block = 0
    for level, factor in reversed(list(enumerate(mult))):
        for place in range(3):
            residual(f"output_blocks.{block}.0", width + skips.pop(), factor * base)
            width, element = factor * base, 1
            if 2**level in attention:
                attend(f"output_blocks.{block}.1", width)
                element = 2
            if place == 2 and level:
                add(f"output_blocks.{block}.{element}.conv", width, width, 3, 3)
            block += 1
    add("out.0", width)
    add("out.2", channels, width, 3, 3)
    return shapes


def coder(
    z: int = 3,
    ch: int = 32,
    mult: Sequence[int] = (1, 2, 4),
    codes: int | None = 64,
    prefix: str = "first_stage_model.",
) -> Shapes:
    """The autoencoder of CompVis: a VQ model, or a KL model without codes."""
    shapes: Shapes = {}

    def add(name: str, *shape: int) -> None:
        shapes[f"{prefix}{name}.weight"] = shape
        shapes[f"{prefix}{name}.bias"] = shape[:1]

    def residual(name: str, start: int, end: int) -> None:
        add(f"{name}.norm1", start)
        add(f"{name}.conv1", end, start, 3, 3)
        add(f"{name}.norm2", end)
        add(f"{name}.conv2", end, end, 3, 3)
        if start != end:
            add(f"{name}.nin_shortcut", end, start, 1, 1)

    def middle(side: str, width: int) -> None:
        residual(f"{side}.mid.block_1", width, width)
        add(f"{side}.mid.attn_1.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            add(f"{side}.mid.attn_1.{part}", width, width, 1, 1)
        residual(f"{side}.mid.block_2", width, width)

    def ends(side: str, start: int, first: int, last: int, end: int) -> None:
        add(f"{side}.conv_in", first, start, 3, 3)
        add(f"{side}.norm_out", last)
        add(f"{side}.conv_out", end, last, 3, 3)

    double, top = z * (1 if codes else 2), ch * mult[-1]
    ends("encoder", 3, ch, top, double)
    ends("decoder", z, top, ch * mult[0], 3)
    width = ch
    for level, factor in enumerate(mult):
        for block in range(2):
            residual(f"encoder.down.{level}.block.{block}", width, ch * factor)
            width = ch * factor
        if level < len(mult) - 1:
            add(f"encoder.down.{level}.downsample.conv", width, width, 3, 3)
    middle("encoder", width)
    middle("decoder", width)
    for level, factor in reversed(list(enumerate(mult))):
        for block in range(3):
            residual(f"decoder.up.{level}.block.{block}", width, ch * factor)
            width = ch * factor
        if level:
            add(f"decoder.up.{level}.upsample.conv", width, width, 3, 3)
    add("quant_conv", double, double, 1, 1)
    add("post_quant_conv", z, z, 1, 1)
    if codes:
        shapes[f"{prefix}quantize.embedding.weight"] = (codes, z)
    return shapes


def text_encoder(
    words: int, width: int = 16, layers: int = 2, length: int = 16,
    prefix: str = "cond_stage_model.transformer.text_model.",
) -> Shapes:  # fmt: skip
    """CLIP's text encoder as Stable Diffusion holds it."""
    shapes: Shapes = {
        f"{prefix}embeddings.token_embedding.weight": (words, width),
        f"{prefix}embeddings.position_embedding.weight": (length, width),
    }

    def add(name: str, *shape: int) -> None:
        shapes[f"{prefix}{name}.weight"] = shape
        shapes[f"{prefix}{name}.bias"] = shape[:1]

    for layer in range(layers):
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            add(f"encoder.layers.{layer}.self_attn.{part}", width, width)
        add(f"encoder.layers.{layer}.mlp.fc1", 4 * width, width)
        add(f"encoder.layers.{layer}.mlp.fc2", width, 4 * width)
        add(f"encoder.layers.{layer}.layer_norm1", width)
        add(f"encoder.layers.{layer}.layer_norm2", width)
    add("final_layer_norm", width)
    return shapes


def averages(shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names of the moving averages of a U-Net, as Lightning's files have them."""
    for name, shape in shapes.items():
        if name.startswith("model."):
            yield "model_ema." + name.removeprefix("model.").replace(".", ""), shape
