"""Names of latent diffusion checkpoints (CompVis) in the layout of diffusers' classes.

The U-Net is that of OpenAI: numbered blocks in order of execution, each a list of elements. In
diffusers the same elements are sorted by level and kind. The structure is read from the names and
the sizes from the shapes; only the number of attention heads is in neither.

    input_blocks.4.1 -> down_blocks.1.attentions.0
    output_blocks.2.2 -> up_blocks.0.upsamplers.0

The autoencoder counts levels of its decoder from the finest, diffusers from the deepest.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ld3.errors import ModelError

Weights = Mapping[str, Tensor]
Config = dict[str, object]

UNET = "model.diffusion_model."
EMA = "model_ema."
FIRST_STAGE = "first_stage_model."

RES = {
    "in_layers.0": "norm1", "in_layers.2": "conv1", "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2", "out_layers.3": "conv2", "skip_connection": "conv_shortcut",
}  # fmt: skip
ATTENTION = {"norm": "group_norm", "proj_out": "to_out.0"}  # and qkv, which is split
CODER_ATTENTION = {"norm": "group_norm", "q": "to_q", "k": "to_k", "v": "to_v"} | {
    "proj_out": "to_out.0"
}
ENDS = {
    "time_embed.0": "time_embedding.linear_1", "time_embed.2": "time_embedding.linear_2",
    "input_blocks.0.0": "conv_in", "out.0": "conv_norm_out", "out.2": "conv_out",
}  # fmt: skip
MARKS = {
    "in_layers.0.weight": "resnets", "qkv.weight": "attentions", "proj_in.weight": "transformers",
    "op.weight": "downsamplers", "conv.weight": "upsamplers",
}  # fmt: skip


def below(tensors: Weights, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}


def average_of(name: str) -> str:
    """The name of the moving average of `model.a.b`: `model_ema.ab`.

    Removing dots cannot be undone, so averages are looked up from the plain names.
    """
    return EMA + name.removeprefix("model.").replace(".", "")


def averaged(tensors: Weights) -> dict[str, Tensor]:
    """The U-Net's tensors: their moving averages where the file has them."""
    found = {}
    for name in tensors:
        if name.startswith(UNET):
            average = average_of(name)
            found[name.removeprefix(UNET)] = tensors[average if average in tensors else name]
    return found


def has_averages(tensors: Weights) -> bool:
    return any(name.startswith(f"{EMA}diffusion_model") for name in tensors)


@dataclass(frozen=True)
class Element:
    """A residual block, an attention, a transformer or a resampling, in both layouts."""

    old: str
    new: str
    kind: str


@dataclass
class UNetLayout:
    """What the names and shapes of a U-Net say."""

    elements: list[Element] = field(default_factory=list)
    channels: list[int] = field(default_factory=list)  # by level, finest first
    attends: list[bool] = field(default_factory=list)  # by level
    layers: int = 0  # residual blocks a level
    context: int | None = None  # width of the tokens that transformers look at; None: they do not


def read_unet(tensors: Weights) -> UNetLayout:
    """The layout of a U-Net, from names without a prefix."""
    if "input_blocks.0.0.weight" not in tensors or "out.2.weight" not in tensors:
        raise ModelError(
            f"checkpoint: got no {UNET}input_blocks.0.0 and .out.2, expected a latent U-Net"
        )
    layout = UNetLayout()
    level, place = 0, 0
    for block in _blocks(tensors, "input_blocks")[1:]:
        kinds = {kind: old for old, kind in block}
        if "downsamplers" in kinds:
            old = kinds["downsamplers"]
            layout.elements.append(
                Element(f"{old}.op", f"down_blocks.{level}.downsamplers.0.conv", "conv")
            )
            level, place = level + 1, 0
            continue
        layout.elements += _placed(block, f"down_blocks.{level}", place)
        place += 1
        if len(layout.channels) == level:
            layout.channels.append(len(tensors[f"{block[0][0]}.in_layers.2.bias"]))
            layout.attends.append(len(block) > 1)
        layout.layers = max(layout.layers, place)
    middle = [
        (f"middle_block.{n}", kind)
        for n in range(3)
        if (kind := _kind(tensors, f"middle_block.{n}"))
    ]
    for place, n in enumerate((0, 2)):
        layout.elements += _placed(middle[n : n + 1], "mid_block", place)
    layout.elements += _placed(middle[1:2], "mid_block", 0)
    level, place = 0, 0
    for block in _blocks(tensors, "output_blocks"):
        layout.elements += _placed(block, f"up_blocks.{level}", place)
        place += 1
        if block[-1][1] == "upsamplers":
            level, place = level + 1, 0
    keys = [name for name in tensors if name.endswith("attn2.to_k.weight")]
    layout.context = tensors[keys[0]].shape[1] if keys else None
    return layout


def _blocks(tensors: Weights, part: str) -> list[list[tuple[str, str]]]:
    """(prefix, kind) of the elements of each numbered block, in order."""
    pattern = re.compile(rf"{part}\.(\d+)\.(\d+)\.")
    numbers = sorted({(int(m[1]), int(m[2])) for name in tensors if (m := pattern.match(name))})
    blocks: list[list[tuple[str, str]]] = [[] for _ in range(numbers[-1][0] + 1 if numbers else 0)]
    for block, element in numbers:
        old = f"{part}.{block}.{element}"
        blocks[block].append((old, _kind(tensors, old)))
    return blocks


def _kind(tensors: Weights, old: str) -> str:
    return next((kind for mark, kind in MARKS.items() if f"{old}.{mark}" in tensors), "")


def _placed(block: list[tuple[str, str]], where: str, place: int) -> Iterator[Element]:
    for old, kind in block:
        if kind == "upsamplers":
            yield Element(f"{old}.conv", f"{where}.upsamplers.0.conv", "conv")
        elif kind == "downsamplers":
            raise ModelError(f"checkpoint: got {old}.op, expected it alone in its block")
        elif kind:
            new = "attentions" if kind == "transformers" else kind
            yield Element(old, f"{where}.{new}.{place}", kind)


def rename_unet(tensors: Weights, layout: UNetLayout, head_width: int | None) -> dict[str, Tensor]:
    """Tensors by diffusers' names; `head_width` is that of attention blocks with one `qkv`."""
    prefixes = {f"{old}.": Element(old, new, "conv") for old, new in ENDS.items()}
    prefixes |= {f"{one.old}.": one for one in layout.elements}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        element = next((prefixes[p] for p in _prefixes(name) if p in prefixes), None)
        if element is None:
            raise _unexpected(UNET + name)
        rest = name.removeprefix(f"{element.old}.")
        inner, _, end = rest.rpartition(".")
        if element.kind in ("conv", "transformers"):
            found[f"{element.new}.{rest}"] = tensor
        elif element.kind == "resnets" and inner in RES:
            found[f"{element.new}.{RES[inner]}.{end}"] = tensor
        elif element.kind == "attentions" and inner == "qkv":
            for to, part in zip("qkv", split_legacy(tensor, head_width or 0), strict=True):
                found[f"{element.new}.to_{to}.{end}"] = part
        elif element.kind == "attentions" and inner in ATTENTION:
            found[f"{element.new}.{ATTENTION[inner]}.{end}"] = flat(tensor)
        else:
            raise _unexpected(UNET + name)
    return found


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:n]) + "." for n in range(1, len(parts)))


def split_legacy(qkv: Tensor, head_width: int) -> list[Tensor]:
    """q, k and v from one tensor whose rows are ordered by head, then q, k, v, then channel."""
    rows = len(qkv)
    if head_width < 1 or rows % (3 * head_width):
        raise ModelError(
            f"checkpoint: got an attention of {rows // 3} channels, expected a multiple of its "
            f"head width {head_width}"
        )
    parts = qkv.reshape(-1, 3, head_width, *qkv.shape[1:2])
    return [parts[:, n].flatten(0, 1) for n in range(3)]


def flat(tensor: Tensor) -> Tensor:
    """A convolution of size 1 as a matrix."""
    return tensor.reshape(tensor.shape[:2]) if tensor.ndim > 2 else tensor


def unet_config(tensors: Weights, layout: UNetLayout, size: int) -> Config:
    """Arguments of both of diffusers' U-Net classes, but for attention."""
    return {
        "sample_size": size,
        "in_channels": tensors["input_blocks.0.0.weight"].shape[1],
        "out_channels": tensors["out.2.weight"].shape[0],
        "block_out_channels": tuple(layout.channels),
        "layers_per_block": layout.layers,
        "norm_num_groups": 32,
        "norm_eps": 1e-5,
        "downsample_padding": 1,
        "flip_sin_to_cos": True,
        "freq_shift": 0,
    }


# ---- the autoencoder


def rename_coder(tensors: Weights) -> dict[str, Tensor]:
    """An autoencoder's tensors by diffusers' names; its training loss is left out."""
    levels = coder_levels(tensors)
    found = {}
    for name, tensor in tensors.items():
        if name.startswith("loss."):
            continue
        if name.startswith(("quant_conv.", "post_quant_conv.", "quantize.embedding.")):
            found[name] = tensor
            continue
        side, _, rest = name.partition(".")
        new = _coder_name(rest, levels)
        if side not in ("encoder", "decoder") or new is None:
            raise _unexpected(FIRST_STAGE + name)
        attends = ".attentions." in f".{new}" and name.endswith("weight")
        found[f"{side}.{new}"] = flat(tensor) if attends else tensor
    return found


def coder_levels(tensors: Weights) -> int:
    found = [int(m[1]) for name in tensors if (m := re.match(r"decoder\.up\.(\d+)\.", name))]
    if not found:
        raise ModelError(f"checkpoint: got no {FIRST_STAGE}decoder.up, expected an autoencoder")
    return max(found) + 1


def _coder_name(rest: str, levels: int) -> str | None:
    if m := re.fullmatch(r"(conv_in|conv_out)\.(\w+)", rest):
        return rest
    if m := re.fullmatch(r"norm_out\.(\w+)", rest):
        return f"conv_norm_out.{m[1]}"
    if m := re.fullmatch(r"mid\.block_([12])\.(.+)", rest):
        return f"mid_block.resnets.{int(m[1]) - 1}.{_shortcut(m[2])}"
    if (m := re.fullmatch(r"mid\.attn_1\.(\w+)\.(\w+)", rest)) and m[1] in CODER_ATTENTION:
        return f"mid_block.attentions.0.{CODER_ATTENTION[m[1]]}.{m[2]}"
    if m := re.fullmatch(r"(down|up)\.(\d+)\.block\.(\d+)\.(.+)", rest):
        return f"{_level(m[1], int(m[2]), levels)}.resnets.{m[3]}.{_shortcut(m[4])}"
    if m := re.fullmatch(r"(down|up)\.(\d+)\.(down|up)sample\.(conv\.\w+)", rest):
        return f"{_level(m[1], int(m[2]), levels)}.{m[3]}samplers.0.{m[4]}"
    return None


def _level(way: str, level: int, levels: int) -> str:
    return f"down_blocks.{level}" if way == "down" else f"up_blocks.{levels - 1 - level}"


def _shortcut(name: str) -> str:
    return name.replace("nin_shortcut.", "conv_shortcut.")


def coder_config(tensors: Weights, size: int, scale: float) -> Config:
    """Arguments of diffusers' autoencoders; `size` is in pixels."""
    levels = coder_levels(tensors)
    widths = [len(tensors[f"encoder.down.{level}.block.0.conv1.bias"]) for level in range(levels)]
    blocks = sum(
        name.startswith("encoder.down.0.block.") and name.endswith("conv1.bias") for name in tensors
    )
    config: Config = {
        "in_channels": tensors["encoder.conv_in.weight"].shape[1],
        "out_channels": tensors["decoder.conv_out.weight"].shape[0],
        "block_out_channels": tuple(widths),
        "down_block_types": ("DownEncoderBlock2D",) * levels,
        "up_block_types": ("UpDecoderBlock2D",) * levels,
        "layers_per_block": blocks,
        "latent_channels": tensors["decoder.conv_in.weight"].shape[1],
        "norm_num_groups": 32,
        "sample_size": size,
        "scaling_factor": scale,
    }
    if "quantize.embedding.weight" in tensors:
        codes = tensors["quantize.embedding.weight"].shape
        config |= {"num_vq_embeddings": codes[0], "vq_embed_dim": codes[1]}
    return config


def _unexpected(name: str) -> ModelError:
    return ModelError(
        f"checkpoint: got {name}, which a latent diffusion model of the known layouts does not have"
    )
