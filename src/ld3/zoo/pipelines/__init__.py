"""Diffusers pipelines as models.

>>> pipe = diffusers.StableDiffusionPipeline.from_pretrained(...)   # doctest: +SKIP
>>> model = ld3.zoo.from_pipeline(pipe, prompts=["a dog"])          # doctest: +SKIP

A family says how one class of pipelines speaks to its network; the noise schedule comes from the
pipeline's scheduler.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from ld3.errors import SpecError, unknown
from ld3.options import CAPTIONS, NetTime, PipelineOptions
from ld3.predictions import Prediction
from ld3.schedules import Flow, Schedule
from ld3.zoo.pipelines import (
    class_latents,
    dits,
    flux2,
    hunyuan_video,
    ltx,
    lumina2,
    qwen_image,
    unets,
    z_image,
)
from ld3.zoo.pipelines.model import Parts, PipelineModel, check_net_time
from ld3.zoo.pipelines.noise import read_noise

PIXEL = frozenset({"net_time", "batch", "latents"})
LATENT = PIXEL | {"tiling"}
TEXT = LATENT | {"prompts", "negative_prompt", "height", "width"}
FLOW = TEXT | {"tokens"}


@dataclass(frozen=True)
class Family:
    """How a class of pipelines speaks to its network, and which options say something to it."""

    parts: Callable[[Any, PipelineOptions, torch.device], Parts]
    takes: frozenset[str]
    rectified: bool = False  # the network is a rectified flow from noise to data


FAMILIES = {
    "DDPMPipeline": Family(unets.ddpm, PIXEL),
    "DDIMPipeline": Family(unets.ddpm, PIXEL),
    "LDMPipeline": Family(unets.ldm, LATENT),
    "ClassLatentPipeline": Family(class_latents.class_latents, LATENT | {"classes"}),
    "DiTPipeline": Family(dits.dit, LATENT | {"classes"}),
    "StableDiffusionPipeline": Family(unets.stable_diffusion, TEXT | {"rectified"}),
    "RectifiedFlowPipeline": Family(unets.stable_diffusion, TEXT | {"rectified"}, rectified=True),
    "InstaFlowPipeline": Family(unets.stable_diffusion, TEXT | {"rectified"}, rectified=True),
    "StableDiffusionXLPipeline": Family(unets.stable_diffusion_xl, TEXT | {"rectified"}),
    "StableDiffusion3Pipeline": Family(dits.stable_diffusion_3, FLOW),
    "FluxPipeline": Family(dits.flux, FLOW | {"embedded_guidance"}),
    "SanaPipeline": Family(dits.sana, FLOW),
    "WanPipeline": Family(dits.wan, FLOW | {"frames"}),
    "QwenImagePipeline": Family(qwen_image.parts, FLOW),
    "Flux2Pipeline": Family(flux2.distilled, FLOW | {"embedded_guidance"}),
    "Flux2KleinPipeline": Family(flux2.klein, FLOW),
    "ZImagePipeline": Family(z_image.parts, FLOW),
    "Lumina2Pipeline": Family(lumina2.parts, FLOW),
    "HunyuanVideoPipeline": Family(hunyuan_video.parts, FLOW | {"frames", "embedded_guidance"}),
    "LTXPipeline": Family(ltx.parts, FLOW | {"frames"}),
}
"""By class of pipeline. Subclasses count, too."""

PROBED = 16  # weights of each tensor that name it


def from_pipeline(
    pipe: Any,
    *,
    prompts: Sequence[str] = CAPTIONS,
    negative_prompt: str | None = None,
    classes: Sequence[int] | None = None,
    height: int | None = None,
    width: int | None = None,
    frames: int | None = None,
    tokens: int | None = None,
    embedded_guidance: float = 3.5,
    rectified: bool = False,
    latents: bool = False,
    tiling: bool = False,
    net_time: NetTime = "float",
    batch: int = 8,
) -> PipelineModel:
    """A diffusers pipeline as a model, where it is and in its dtype; its weights are frozen.

    Seed s asks for prompt (or class) number s mod their number. The text is embedded now, after
    that the pipeline's text encoders may go. Sizes are in pixels and are the pipeline's own if they
    are not given; `tokens` is the length to which prompts are padded. Classifier-free guidance is
    an argument of `bind`; `embedded_guidance` is that of networks that take it as a condition.
    `rectified` reads the network as a rectified flow from noise to data, whatever its scheduler
    says; InstaFlow's own class is always read so. `latents` leaves samples in the space of x;
    `tiling` decodes large ones in tiles. `net_time` imitates tools that round times. `batch` limits
    the samples in one call of the network.
    """
    words = {
        "prompts": tuple(prompts),
        "negative_prompt": negative_prompt,
        "classes": None if classes is None else tuple(classes),
        "height": height,
        "width": width,
        "frames": frames,
        "tokens": tokens,
        "embedded_guidance": embedded_guidance,
        "rectified": rectified,
        "latents": latents,
        "tiling": tiling,
        "net_time": net_time,
        "batch": batch,
    }
    return of_pipeline(pipe, PipelineOptions.checked(words))


def of_pipeline(
    pipe: Any, options: PipelineOptions, device: torch.device | str | None = None
) -> PipelineModel:
    """:func:`from_pipeline` with options in one; with a `device` network and decoder move there,
    and the text encoders only while they are needed."""
    family = _family(pipe, options)
    encoders = {
        name: part
        for name, part in pipe.components.items()
        if name.startswith("text_encoder") and isinstance(part, nn.Module)
    }
    workers = [
        part
        for name, part in pipe.components.items()
        if isinstance(part, nn.Module) and name.startswith(("unet", "transformer", "vae", "vqvae"))
    ]
    for part in (*workers, *encoders.values()):
        part.eval().requires_grad_(False)
    for part in workers if device is not None else ():
        part.to(device)
    weights = (weight for part in workers for weight in part.parameters())
    place = next(weights).device if device is None else torch.device(device)
    homes = {name: next(part.parameters()).device for name, part in encoders.items()}
    for part in encoders.values():
        part.to(place)
    parts = family.parts(pipe, options, place)
    for name, part in encoders.items():
        part.to(homes[name])
    check_net_time(parts, options.net_time)
    rectified = options.rectified or family.rectified
    schedule, prediction = _noise(pipe, rectified, parts)
    return PipelineModel(
        parts,
        schedule,
        prediction,
        _digest(_weights(parts)),
        _digest({**(parts.rows or {}), **{f"null {k}": v for k, v in (parts.null or {}).items()}}),
        options.latents,
        options.net_time,
        options.batch,
    )


def _family(pipe: Any, options: PipelineOptions) -> Family:
    names = [kind.__name__ for kind in type(pipe).__mro__ if kind.__name__ in FAMILIES]
    if not names:
        raise unsupported(type(pipe).__name__)
    family = FAMILIES[names[0]]
    idle = set(options.said()) - family.takes
    if idle:
        raise SpecError(
            f"{', '.join(sorted(idle))}: says nothing to {names[0]}, wanted none but "
            f"{', '.join(sorted(family.takes))}"
        )
    return family


def unsupported(name: str) -> SpecError:
    """For a pipeline without a family; a near name is no help for one that diffusers has."""
    try:
        known = name in dir(import_module("diffusers"))
    except ImportError:
        known = False
    if not known:
        return unknown("pipeline", name, FAMILIES)
    return SpecError(
        f"pipeline: got {name}, known to diffusers but not supported yet; supported: "
        f"{', '.join(sorted(FAMILIES))}; or bring its network as a model of your own"
    )


def _noise(pipe: Any, rectified: bool, parts: Parts) -> tuple[Schedule, Prediction]:
    if rectified:
        return Flow(), "reverse-flow"
    return read_noise(pipe.scheduler, parts.tokens, parts.mu)


def _weights(parts: Parts) -> dict[str, Tensor]:
    """All tensors of networks and decoder by name."""
    modules = {**parts.networks, **({} if parts.coder is None else {"coder": parts.coder})}
    return {
        f"{part}.{name}": weight
        for part, module in modules.items()
        for name, weight in module.state_dict().items()
    }


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """A name for tensors: shapes, and some values of each in bfloat16, so that it is the same for
    the same checkpoint in float32 and bfloat16."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // PROBED)][:PROBED].to("cpu", torch.bfloat16)
        found.update(f"{name} {tuple(tensor.shape)}".encode())
        found.update(some.view(torch.int16).numpy().tobytes())
    return found.hexdigest()[:16]
