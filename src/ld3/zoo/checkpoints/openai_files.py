"""Files of improved-diffusion and guided-diffusion: bare weights, recognised by their shapes.

Shapes tell widths, blocks, attention, classes and resampling. They do not tell heads, the order of
attention channels, image size and noise schedule: these come from the list of published files, or
from a JSON file with the flags of the training script.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ld3.errors import ModelError, unknown
from ld3.models import ClampedModel, Model
from ld3.options import PipelineOptions
from ld3.schedules import Discrete
from ld3.store import read_json
from ld3.zoo.checkpoints.families import Description, Family
from ld3.zoo.checkpoints.layers import check_counts
from ld3.zoo.checkpoints.model import (
    CheckpointModel,
    chosen_classes,
    fitting,
    seen_in,
    with_weights,
)
from ld3.zoo.checkpoints.openai_unet import OpenAIUNet, UNetConfig
from ld3.zoo.checkpoints.tensors import Checkpoint, Tensors
from ld3.zoo.pipelines.model import rounded

LICENCE = "weights and code of OpenAI's improved-diffusion and guided-diffusion: MIT"


@dataclass(frozen=True)
class OpenAIConfig:
    """A network with its noise: K trained steps, times K t - 1 or 1000/K of it."""

    unet: UNetConfig
    size: int  # pixels
    steps: int
    betas: Literal["linear", "cosine"]
    rescaled: bool = False  # the network's time runs to 1000 whatever K is

    @property
    def factor(self) -> float:
        return 1000 / self.steps if self.rescaled else 1.0

    @property
    def schedule(self) -> Discrete:
        if self.betas == "cosine":
            return Discrete.cosine(self.steps)
        return Discrete.linear(0.1 / self.steps, 20 / self.steps, self.steps)


_improved = partial(UNetConfig, num_heads=4, scale_shift=True)
_guided = partial(UNetConfig, num_head_channels=64, scale_shift=True, resblock_updown=True)
_LSUN = (1, 1, 2, 2, 4, 4)
PUBLISHED = {
    "imagenet64_uncond": OpenAIConfig(
        _improved(128, (1, 2, 3, 4), 3, (4, 8)), 64, 4000, "cosine", True
    ),
    "cifar10_uncond": OpenAIConfig(
        _improved(128, (1, 2, 2, 2), 3, (2, 4)), 32, 4000, "cosine", True
    ),
    "imagenet64_cond": OpenAIConfig(
        _improved(192, (1, 2, 3, 4), 3, (4, 8), num_classes=1000), 64, 4000, "cosine"
    ),
    "lsun_uncond": OpenAIConfig(
        _improved(128, _LSUN, 2, (16,), num_heads=1, scale_shift=False), 256, 1000, "linear"
    ),
    "guided_lsun": OpenAIConfig(_guided(256, _LSUN, 2, (8, 16, 32)), 256, 1000, "linear"),
    "guided_imagenet64": OpenAIConfig(
        _guided(192, (1, 2, 3, 4), 3, (2, 4, 8), num_classes=1000, new_order=True),
        64, 1000, "cosine",
    ),
    "guided_imagenet256": OpenAIConfig(
        _guided(256, _LSUN, 2, (8, 16, 32), num_classes=1000), 256, 1000, "linear"
    ),
}  # fmt: skip
"""By name, for --config; a file of these shapes is recognised without it."""

SEEN = (
    "model_channels", "channel_mult", "num_res_blocks", "attention", "in_channels", "out_channels",
    "num_classes", "scale_shift", "resblock_updown",
)  # fmt: skip
"""What shapes tell of a network."""

FLAGS = frozenset(
    {
        "image_size", "num_channels", "num_res_blocks", "num_heads", "num_heads_upsample",
        "num_head_channels", "attention_resolutions", "channel_mult", "dropout", "class_cond",
        "use_checkpoint", "use_scale_shift_norm", "resblock_updown", "use_fp16",
        "use_new_attention_order", "learn_sigma", "sigma_small", "diffusion_steps",
        "noise_schedule", "timestep_respacing", "use_kl", "predict_xstart", "rescale_timesteps",
        "rescale_learned_sigmas",
    }
)  # fmt: skip


def matches(found: Checkpoint) -> bool:
    return found.config.get("family") == "openai" or (
        "time_embed.0.weight" in found.tensors and "input_blocks.0.0.weight" in found.tensors
    )


def config_of(found: Checkpoint, options: PipelineOptions) -> OpenAIConfig:
    """From a converted file, from --config, or from the shapes of a published file."""
    if found.config.get("family") == "openai":
        return from_json(found.config)
    seen = seen_in(from_shapes, found.tensors)
    if options.config is not None and options.config.endswith(".json"):
        return from_flags(seen, read_json(Path(options.config)))
    if options.config is not None:
        if options.config not in PUBLISHED:
            raise unknown("configuration", options.config, [*PUBLISHED, "FILE.json"])
        return PUBLISHED[options.config]
    for config in PUBLISHED.values():
        if all(getattr(config.unet, name) == getattr(seen, name) for name in SEEN):
            return config
    told = f"{seen.model_channels} channels, multiples {list(seen.channel_mult)}"
    raise ModelError(
        f"{found.path}: got a U-Net of OpenAI's kind with {told}, which is none of the published "
        "files, expected its flags: --config FILE.json with image_size, num_heads or "
        "num_head_channels, diffusion_steps and noise_schedule"
    )


def from_shapes(tensors: Tensors) -> UNetConfig:
    """All that names and shapes tell."""

    def shape(name: str) -> tuple[int, ...]:
        if name not in tensors:
            raise ModelError(f"checkpoint: got a U-Net without {name}, expected all of its tensors")
        return tensors.shape(name)

    base = shape("time_embed.0.weight")[1]
    inputs = [int(m[1]) for name in tensors if (m := re.match(r"input_blocks\.(\d{1,3})\.", name))]
    mult: list[int] = []
    attention: list[int] = []
    counts = [0]
    updown = False
    for index in range(1, max(inputs) + 1):
        block = f"input_blocks.{index}.0"
        plain = f"{block}.op.weight" in tensors
        out = shape(f"{block}.op.weight" if plain else f"{block}.out_layers.3.weight")[0]
        if plain or _resamples(tensors, index):
            updown = updown or not plain
            counts.append(0)
            continue
        counts[-1] += 1
        if len(mult) < len(counts):
            mult.append(out // base)
            if f"input_blocks.{index}.1.qkv.weight" in tensors:
                attention.append(2 ** (len(counts) - 1))
    emb = shape("middle_block.0.emb_layers.1.weight")
    after = shape("middle_block.0.out_layers.0.weight")
    return UNetConfig(
        base,
        tuple(mult),
        counts[0],
        tuple(attention),
        shape("input_blocks.0.0.weight")[1],
        shape("out.2.weight")[0],
        num_classes=shape("label_emb.weight")[0] if "label_emb.weight" in tensors else 0,
        scale_shift=emb[0] == 2 * after[0],
        resblock_updown=updown,
    )


def _resamples(tensors: Tensors, index: int) -> bool:
    """Whether input block `index` is a resampling ResBlock: without attention where its level has
    some, or the blocks of its level are complete. Both follow from the decoder, whose last block of
    a level, counted from the end, has an element more."""
    deepest = max(
        int(m[1]) for name in tensors if (m := re.match(r"output_blocks\.(\d{1,3})\.", name))
    )
    mirror = f"output_blocks.{deepest - index}."
    parts = {m[1] for name in tensors if (m := re.match(re.escape(mirror) + r"(\d{1,2})\.", name))}
    attention = f"{mirror}1.qkv.weight" in tensors
    return len(parts) > (2 if attention else 1)


def from_flags(seen: UNetConfig, flags: object) -> OpenAIConfig:
    """The flags of OpenAI's scripts around what the shapes tell."""
    if not isinstance(flags, dict):
        raise ModelError("--config: got JSON that is no dictionary, expected flags and values")
    for name in flags:
        if name not in FLAGS:
            raise unknown("flag in --config", str(name), FLAGS)
    missing = [n for n in ("image_size", "diffusion_steps", "noise_schedule") if n not in flags]
    if "num_heads" not in flags and "num_head_channels" not in flags:
        missing.append("num_heads or num_head_channels")
    if missing:
        raise ModelError(f"--config: got no {', '.join(missing)}, expected these flags as well")
    if flags.get("predict_xstart"):
        raise ModelError("--config: got predict_xstart, expected a network that predicts noise")
    unet = replace(
        seen,
        num_heads=flags.get("num_heads", 1),
        num_head_channels=max(flags.get("num_head_channels", 0), 0),
        new_order=bool(flags.get("use_new_attention_order", False)),
    )
    return checked(
        OpenAIConfig(
            unet,
            flags["image_size"],
            flags["diffusion_steps"],
            flags["noise_schedule"],
            bool(flags.get("rescale_timesteps", False)),
        )
    )


def from_json(words: Mapping[str, Any]) -> OpenAIConfig:
    """The configuration of a converted file."""
    try:
        inner: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in words["unet"].items()
        }
        outer = {f.name: words[f.name] for f in fields(OpenAIConfig) if f.name != "unet"}
        return checked(OpenAIConfig(UNetConfig(**inner), **outer))
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"checkpoint: got a configuration that is not whole ({error}), expected what "
            "ld3 convert writes; convert the file again"
        ) from None


def checked(config: OpenAIConfig) -> OpenAIConfig:
    """Numbers that a network can be built from."""
    unet = config.unet
    counts = {
        "image_size": (config.size, 4, 4096),
        "diffusion_steps": (config.steps, 2, 100_000),
        "num_heads": (unet.num_heads, 1, 1024),
        "num_head_channels": (unet.num_head_channels, 0, 4096),
        "num_channels": (unet.model_channels, 32, 4096),
        "num_res_blocks": (unet.num_res_blocks, 1, 64),
        "len(channel_mult)": (len(unet.channel_mult), 1, 12),
        "num_classes": (unet.num_classes, 0, 100_000),
        "in_channels": (unet.in_channels, 1, 64),
        "out_channels": (unet.out_channels, unet.in_channels, 128),
    }
    counts |= {f"channel_mult[{i}]": (n, 1, 64) for i, n in enumerate(unet.channel_mult)}
    check_counts("--config", counts)
    if config.betas not in ("linear", "cosine"):
        raise ModelError(
            f"--config: got noise_schedule {config.betas!r}, expected linear or cosine"
        )
    for mult in unet.channel_mult:
        width = unet.model_channels * mult
        if width % unet.heads(width) if unet.heads(width) else True:
            raise ModelError(
                f"--config: got {unet.heads(width)} heads for {width} channels, expected a "
                "divisor; check num_heads and num_head_channels"
            )
    return config


def describe(found: Checkpoint, options: PipelineOptions) -> Description:
    config = config_of(found, options)
    unet = config.unet
    network = fitting(lambda: OpenAIUNet(unet), found.tensors)
    names = [name for name, other in PUBLISHED.items() if other == config]
    time = "K t - 1" if config.factor == 1 else f"{config.factor:g} (K t - 1)"
    notes = [f"time of the network: {time}, fractions allowed"]
    if unet.out_channels > unet.in_channels:
        notes.append("the learned variance is dropped")
    if options.clamp:
        notes.append("x0 is clamped to [-1, 1], which has no gradient where it acts")
    return Description(
        f"OpenAI U-Net{f' ({names[0]})' if names else ''}",
        sum(weight.numel() for weight in network.parameters()),
        (unet.in_channels, config.size, config.size),
        f"{config.steps} steps, betas {config.betas}"
        + (f", the first {len(config.schedule.log_alphas)}" if config.betas == "cosine" else ""),
        "x0" if options.clamp else "eps",
        f"classes 0-{unet.num_classes - 1}" if unet.num_classes else "none",
        LICENCE,
        tuple(notes),
    )


def load(
    found: Checkpoint, device: torch.device, dtype: torch.dtype, options: PipelineOptions
) -> Model:
    config = config_of(found, options)
    unet, schedule = config.unet, config.schedule
    if options.net_time == "bfloat16":
        raise ModelError("--net-time: got bfloat16, expected float or integer")
    network, digest = with_weights(lambda: OpenAIUNet(unet), found.tensors, device, dtype)

    def call(x: Tensor, t: Tensor, label: Tensor | None) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        index = rounded(schedule.index(t), options.net_time)
        time = (config.factor * index).to(x.device, wide).expand(len(x))
        inner = x.to(dtype).contiguous(memory_format=torch.channels_last)
        out = cast(Tensor, network(inner, time, label))
        return out[:, : unet.in_channels].to(x.dtype)

    model = CheckpointModel(
        call,
        schedule,
        "eps",
        (unet.in_channels, config.size, config.size),
        dtype,
        digest,
        device,
        chosen_classes(unet.num_classes, options.classes),
        (config, options.net_time),
        exact_time=True,
        network=network,
    )
    return ClampedModel(model) if options.clamp else model


def settings(found: Checkpoint, options: PipelineOptions) -> dict[str, Any]:
    words: dict[str, Any] = json.loads(json.dumps(asdict(config_of(found, options))))
    return {"family": "openai", **words}


FAMILY = Family(
    "OpenAI",
    frozenset({"classes", "net_time", "config", "clamp"}),
    matches,
    describe,
    load,
    settings,
)
