"""Latent diffusion checkpoints: which one a file is, and its networks as diffusers' classes."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ld3.errors import ModelError, import_extra, one_line
from ld3.zoo.checkpoints.latent_names import (
    EMA,
    FIRST_STAGE,
    UNET,
    Weights,
    average_of,
    averaged,
    below,
    coder_config,
    coder_levels,
    has_averages,
    read_unet,
    rename_coder,
    rename_unet,
    unet_config,
)
from ld3.zoo.checkpoints.tensors import Tensors

CONDITION = "cond_stage_model."
CLASSES = f"{CONDITION}embedding.weight"
TEXT = f"{CONDITION}transformer."
CODES = f"{FIRST_STAGE}quantize.embedding.weight"
EMA_NUMBERS = (f"{EMA}decay", f"{EMA}num_updates")
COUNTERS = (".position_ids", ".num_updates", ".num_batches_tracked")  # whole numbers


@dataclass(frozen=True)
class LatentKind:
    """What the names and shapes of a checkpoint do not say."""

    name: Literal["ldm", "ldm-class", "sd"]
    title: str
    betas: tuple[float, float]  # first and last; their square roots are evenly spaced
    scale: float  # latents are divided by it before they are decoded
    heads: int | None  # of every transformer; None: heads have a width
    head_width: int | None = None
    size: int = 64  # of a latent image
    steps: int = 1000

    def configured(self, config: Mapping[str, Any]) -> "LatentKind":
        """With `image_size`, `num_heads` and `num_head_channels` of a U-Net's configuration."""
        names = {"image_size": "size", "num_heads": "heads", "num_head_channels": "head_width"}
        own = {"head_width"} if self.heads is None else {"heads"}
        given = {
            field: int(config[word])
            for word, field in names.items()
            if isinstance(config.get(word), int) and config[word] > 0 and field in {"size", *own}
        }
        return replace(self, **given)  # type: ignore[arg-type]


LDM = LatentKind("ldm", "latent diffusion (LDM-4)", (0.0015, 0.0195), 1.0, None, 32)
LDM_CLASS = LatentKind("ldm-class", "class-conditional latent diffusion", LDM.betas, 1.0, 1)
SD = LatentKind("sd", "Stable Diffusion 1.x", (0.00085, 0.012), 0.18215, 8)


def recognise_latent(tensors: Weights) -> LatentKind | None:
    """The kind of a latent diffusion checkpoint by its names; None: it is something else."""
    if f"{UNET}input_blocks.0.0.weight" not in tensors:
        return None
    if f"{FIRST_STAGE}decoder.conv_in.weight" not in tensors:
        raise ModelError(
            f"checkpoint: got a latent U-Net without {FIRST_STAGE}decoder, expected both in one "
            "file"
        )
    if any(name.startswith(f"{CONDITION}model.") for name in tensors):
        raise ModelError(
            "checkpoint: got the text encoder of Stable Diffusion 2, expected 1.x; use its "
            "diffusers folder: --model diffusers:FOLDER"
        )
    crossed = any(name.startswith(UNET) and ".attn2." in name for name in tensors)
    text = any(name.startswith(TEXT) for name in tensors)
    if (CLASSES in tensors or text) and not crossed:
        raise ModelError(
            f"checkpoint: got {CONDITION} and a U-Net that attends to no condition, expected both "
            "or neither"
        )
    if CLASSES in tensors:
        return LDM_CLASS
    if text:
        return SD
    if CODES in tensors and not crossed:
        return LDM
    raise ModelError(
        f"checkpoint: got a latent diffusion model without {TEXT} and {CLASSES}, expected an "
        "unconditional, a class-conditional or a Stable Diffusion 1.x model"
    )


def check_names(tensors: Tensors, kind: LatentKind) -> None:
    """Nothing but the known parts, in floating point; single buffers, such as the betas, may stand
    beside them. All weights of the U-Net have a moving average, or none of them."""
    known = (UNET, EMA, FIRST_STAGE, CONDITION)
    condition = {"ldm": "", "ldm-class": CLASSES, "sd": TEXT}[kind.name]
    for name in tensors:
        if "." not in name:
            continue
        if not name.startswith(known) or (
            name.startswith(CONDITION) and not (condition and name.startswith(condition))
        ):
            expected = [UNET, EMA, FIRST_STAGE, condition]
            raise ModelError(
                f"checkpoint: got {name}, expected names below {', '.join(filter(None, expected))} "
                "only"
            )
        if not tensors.dtype(name).is_floating_point and not name.endswith(COUNTERS):
            raise ModelError(
                f"checkpoint: got {name} of {tensors.dtype(name)}, expected floating point"
            )
    averages = {average_of(name): name for name in tensors if name.startswith(UNET)}
    for name in tensors:
        if name.startswith(EMA) and name not in averages and name not in EMA_NUMBERS:
            raise ModelError(f"checkpoint: got {name}, expected averages of the U-Net's weights")
    for average, name in averages.items() if has_averages(tensors) else ():
        if average not in tensors or tensors.shape(average) != tensors.shape(name):
            got = list(tensors.shape(average)) if average in tensors else "none"
            raise ModelError(
                f"checkpoint: got {got} as the average {average}, expected the shape "
                f"{list(tensors.shape(name))} of {name}"
            )


def outlines(tensors: Tensors) -> dict[str, Tensor]:
    """Tensors without memory, of the names, shapes and dtypes of a file."""
    return {
        name: torch.empty(tensors.shape(name), dtype=tensors.dtype(name), device="meta")
        for name in tensors
    }


@contextmanager
def fitting_layout() -> Iterator[None]:
    """Names and shapes that no such network has are refused in one line."""
    try:
        yield
    except (LookupError, ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        reason = one_line(f"{type(error).__name__}: {error}")[:100]
        raise ModelError(
            f"checkpoint: got names and shapes that make no network ({reason}), expected those of "
            "a published file"
        ) from None


def make_unet(tensors: Weights, kind: LatentKind, dtype: torch.dtype) -> Any:
    """The U-Net, with averaged weights where the file has them."""
    diffusers = import_diffusers()
    weights = averaged(tensors)
    layout = read_unet(weights)
    config = unet_config(weights, layout, kind.size)
    if config["in_channels"] != config["out_channels"]:
        raise ModelError(
            f"checkpoint: got a U-Net from {config['in_channels']} to {config['out_channels']} "
            "channels, expected as many out as in; inpainting models are not supported"
        )
    crossed = layout.context is not None
    cross = "CrossAttn" if crossed else "Attn"
    config |= {
        "down_block_types": tuple(f"{cross if a else ''}DownBlock2D" for a in layout.attends),
        "up_block_types": tuple(f"{cross if a else ''}UpBlock2D" for a in layout.attends[::-1]),
    }
    if crossed:  # diffusers calls the number of heads attention_head_dim
        config |= {"cross_attention_dim": layout.context, "attention_head_dim": kind.heads}
        network = diffusers.UNet2DConditionModel
    else:
        config |= {"attention_head_dim": kind.head_width}
        network = diffusers.UNet2DModel
    weights = rename_unet(weights, layout, kind.head_width)
    unet = built(network, config, weights, dtype)
    unet.time_proj = TimeWaves(layout.channels[0])
    return unet


class TimeWaves(nn.Module):
    """cos(t w_i), sin(t w_i) with w_i = 10000^(-2i/width), in the precision of t; diffusers' own
    has float32 whatever t is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, t: Tensor) -> Tensor:
        t = t.to(torch.promote_types(t.dtype, torch.float32))
        half = self.width // 2
        places = torch.arange(half, dtype=t.dtype, device=t.device)
        angles = t[:, None] * torch.exp(-math.log(10000) / half * places)
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


def make_coder(tensors: Weights, kind: LatentKind, dtype: torch.dtype) -> Any:
    """The autoencoder: `VQModel` if it has a codebook, else `AutoencoderKL`."""
    diffusers = import_diffusers()
    weights = below(tensors, FIRST_STAGE)
    pixels = kind.size * 2 ** (coder_levels(weights) - 1)
    config = coder_config(weights, pixels, kind.scale)
    network = diffusers.VQModel if CODES in tensors else diffusers.AutoencoderKL
    weights = rename_coder(weights)
    return built(network, config, weights, dtype)


def make_scheduler(tensors: Weights, kind: LatentKind) -> Any:
    """DDIM with the betas of the kind, or of the file where it has others."""
    config: dict[str, Any] = {
        "num_train_timesteps": kind.steps,
        "beta_start": kind.betas[0],
        "beta_end": kind.betas[1],
        "beta_schedule": "scaled_linear",
        "clip_sample": False,
        "set_alpha_to_one": False,
        "steps_offset": 1,
    }
    own = own_betas(tensors, kind)
    if own is not None:
        config |= {"num_train_timesteps": len(own), "trained_betas": own.double().tolist()}
    return import_diffusers().DDIMScheduler(**config)


def own_betas(tensors: Weights, kind: LatentKind) -> Tensor | None:
    """The betas of a file, None where it has none or those of its kind."""
    own = tensors.get("betas")
    if own is None:
        return None
    if own.ndim != 1 or len(own) < 2 or not bool(((own > 0) & (own < 1)).all()):
        raise ModelError(
            f"checkpoint: got betas of shape {list(own.shape)}, expected a list of numbers between "
            "0 and 1; the file is damaged"
        )
    first, last = (math.sqrt(beta) for beta in kind.betas)
    usual = torch.linspace(first, last, kind.steps, dtype=torch.float64).square()
    same = own.shape == usual.shape and bool((own.double() / usual - 1).abs().max() < 1e-5)
    return None if same else own


def built(
    network: Any, config: Mapping[str, Any], weights: dict[str, Tensor], dtype: torch.dtype
) -> Any:
    """A network of these weights, which are taken out of their dictionary one by one, and not
    copied where they have the dtype."""
    with torch.device("meta"):
        made: nn.Module = network(**config)
    wanted = made.state_dict()
    for name in wanted:
        if name not in weights:
            raise ModelError(f"checkpoint: got no weights for {name} of {network.__name__}")
        got, shape = tuple(weights[name].shape), tuple(wanted[name].shape)
        if got != shape:
            raise ModelError(
                f"checkpoint: got {name} of {network.__name__} of shape {got}, expected {shape}"
            )
    extra = next((name for name in weights if name not in wanted), None)
    if extra is not None:
        raise ModelError(f"checkpoint: got weights for {extra}, which {network.__name__} lacks")
    made.load_state_dict({name: weights.pop(name).to(dtype) for name in wanted}, assign=True)
    return made.eval().requires_grad_(False)


def weights_note(tensors: Weights) -> str:
    """Which of two sets of weights is used."""
    return "moving averages" if has_averages(tensors) else "as trained"


def import_diffusers() -> Any:
    reason = "model: a latent diffusion checkpoint wants the package diffusers"
    return import_extra("diffusers", reason)
