"""Diffusers pipelines as models.

>>> pipe = diffusers.StableDiffusionPipeline.from_pretrained(...)   # doctest: +SKIP
>>> model = ld3.zoo.from_pipeline(pipe, prompts=["a dog"])          # doctest: +SKIP

A family says how the network of one class of pipelines is called; the noise schedule comes from the
pipeline's scheduler.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from ld3.errors import SpecError
from ld3.offloading import content_of, entrance_of, is_spread
from ld3.options import CAPTIONS, NetTime, PipelineOptions
from ld3.predictions import Prediction
from ld3.schedules import Flow, Schedule
from ld3.store import digest
from ld3.zoo.pipelines import class_latents, dits, unets, videos
from ld3.zoo.pipelines.model import Parts, PipelineModel, check_net_time
from ld3.zoo.pipelines.noise import read_noise

PIXEL = frozenset({"net_time", "batch", "latents"})
LATENT = PIXEL | {"tiling"}
TEXT = LATENT | {"prompts", "negative_prompt", "height", "width"}
FLOW = TEXT | {"tokens"}


@dataclass(frozen=True)
class Family:
    """How the network of a class of pipelines is called, and which options it takes."""

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
    "WanPipeline": Family(videos.wan, FLOW | {"frames"}),
    "QwenImagePipeline": Family(dits.qwen_image, FLOW),
    "Flux2Pipeline": Family(dits.flux2, FLOW | {"embedded_guidance"}),
    "Flux2KleinPipeline": Family(partial(dits.flux2, klein=True), FLOW),
    "ZImagePipeline": Family(dits.z_image, FLOW),
    "Lumina2Pipeline": Family(dits.lumina2, FLOW),
    "HunyuanVideoPipeline": Family(videos.hunyuan_video, FLOW | {"frames", "embedded_guidance"}),
    "LTXPipeline": Family(videos.ltx, FLOW | {"frames"}),
}
"""By class of pipeline. Subclasses count, too."""

PROBED = 16  # weights of each tensor that name it
ASKED = ("prompts", "negative_prompt", "classes", "tokens", "embedded_guidance", "tiling")


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

    Seed s has prompt (or class) number s mod their number. The text is embedded now, after that the
    pipeline's text encoders may go. Sizes are in pixels and are the pipeline's own if they
    are not given; `tokens` is the length to which prompts are padded. Classifier-free guidance is
    an argument of `bind`; `embedded_guidance` is that of networks that take it as a condition.
    `rectified` reads the network as a rectified flow from noise to data, whatever its scheduler
    says; InstaFlow's own class is always read so. `latents` leaves samples in the space of x;
    `tiling` decodes large ones in tiles. `net_time` imitates tools that round times. `batch` limits
    the samples in one call of the network.
    """
    given = {**locals(), "prompts": tuple(prompts)}
    given["classes"] = None if classes is None else tuple(classes)
    return of_pipeline(given.pop("pipe"), PipelineOptions.checked(given))


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
        for kind in ("unet", "transformer", "vae", "vqvae")
        for name, part in pipe.components.items()
        if isinstance(part, nn.Module) and name.startswith(kind)
    ]
    for part in (*workers, *encoders.values()):
        part.eval().requires_grad_(False)
    for part in workers if device is not None else ():
        part.to(device)
    place = entrance_of(workers[0]) if device is None else torch.device(device)
    guests = [part for part in encoders.values() if not is_spread(part)]
    homes = [next(part.parameters()).device for part in guests]
    for part in guests:
        part.to(place)
    parts = family.parts(pipe, options, place)
    for part, home in zip(guests, homes, strict=True):
        part.to(home)
    check_net_time(parts, options.net_time)
    schedule: Schedule = Flow()
    prediction: Prediction = "reverse-flow"
    if not (options.rectified or family.rectified):
        schedule, prediction = read_noise(pipe.scheduler, parts.tokens, parts.mu)
    null = {f"null {name}": value for name, value in (parts.null or {}).items()}
    return PipelineModel(
        parts,
        schedule,
        prediction,
        _digest(_weights(parts)),
        _asked(_digest(sorted({**(parts.rows or {}), **null}.items())), options),
        options.latents,
        options.net_time,
        options.batch,
    )


def _asked(conditions: str, options: PipelineOptions) -> str:
    """A name of the conditions and of what else samples depend on: some values of their tensors,
    which know the text encoder, and the options themselves, which know every text and class."""
    said = {name: value for name, value in options.said().items() if name in ASKED}
    return digest([conditions, said]) if said else conditions


def _family(pipe: Any, options: PipelineOptions) -> Family:
    names = [kind.__name__ for kind in type(pipe).__mro__ if kind.__name__ in FAMILIES]
    if not names:
        raise unsupported(type(pipe).__name__)
    family = FAMILIES[names[0]]
    idle = set(options.said()) - family.takes
    if idle:
        raise SpecError(
            f"{', '.join(sorted(idle))}: says nothing to {names[0]}, expected none but "
            f"{', '.join(sorted(family.takes))}"
        )
    return family


def unsupported(name: str) -> SpecError:
    """For a pipeline without a family. Its name is that of a class, not a typed word: a near name
    is no help."""
    fault = "which is not supported"
    try:
        diffusers = import_module("diffusers")
    except ImportError:
        pass
    else:
        if name in dir(diffusers):
            fault = "known to diffusers but not supported yet"
        else:
            fault = f"which diffusers {diffusers.__version__} does not have and ld3 cannot read"
    return SpecError(
        f"pipeline: got {name}, {fault}; supported: "
        f"{', '.join(sorted(FAMILIES))}; or bring its network as a model of your own"
    )


def _weights(parts: Parts) -> Iterator[tuple[str, Tensor]]:
    """All tensors of networks and decoder in the order of names, one in memory at a time."""
    modules = {**parts.networks, **({} if parts.coder is None else {"coder": parts.coder})}
    states = {part: module.state_dict() for part, module in modules.items()}
    names = sorted((f"{part}.{name}", part, name) for part in states for name in states[part])
    for whole, part, name in names:
        yield whole, content_of(modules[part], name, states[part][name])


def _digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A name for tensors: shapes, and some values of each in bfloat16, so that it is the same for
    the same checkpoint in float32 and bfloat16."""
    found = hashlib.sha256()
    for name, tensor in tensors:
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // PROBED)][:PROBED].to("cpu", torch.bfloat16)
        found.update(f"{name} {tuple(tensor.shape)}".encode())
        found.update(some.view(torch.int16).numpy().tobytes())
    return found.hexdigest()[:16]
