"""Pipelines around UNets: DDPM, latent diffusion with a VQ decoder, Stable Diffusion 1, 2, XL."""

from typing import Any

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import image_decoder, pixels, sides
from ld3.zoo.pipelines.model import Parts, Rows
from ld3.zoo.pipelines.texts import answer, embedded_prompts, text_parts


def ddpm(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """unet(x, t), unconditional, x in pixels."""
    return _plain(pipe.unet)


def ldm(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """The same in the latent space of a vector-quantised autoencoder."""
    coder, decode = image_decoder(pipe.vqvae, options)
    return _plain(pipe.unet, decode, coder)


def stable_diffusion(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """unet(x, t, text), x in latents."""
    unet, shape = _whole(pipe, options)
    conditions = embedded_prompts(
        pipe, options, unet, "text -text", empty=None, device=device, num_images_per_prompt=1,
        do_classifier_free_guidance=True,
    )  # fmt: skip

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        return answer(unet, x, t, encoder_hidden_states=rows["text"])

    return text_parts(pipe, options, {"unet": unet}, shape, call, conditions)


def stable_diffusion_xl(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """unet(x, t, text; pooled text, sizes): sizes are those of the image, without a crop."""
    unet, shape = _whole(pipe, options)
    rows, null = embedded_prompts(
        pipe, options, unet, "text -text pooled -pooled", empty=None, device=device,
        num_images_per_prompt=1, do_classifier_free_guidance=True,
    )  # fmt: skip
    size = torch.tensor([[*shape[1:], 0, 0, *shape[1:]]]) * pipe.vae_scale_factor
    size = size.to(rows["text"])
    rows = {**rows, "sizes": size.expand(len(rows["text"]), -1)}

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        added = {"text_embeds": rows["pooled"], "time_ids": rows["sizes"]}
        return answer(unet, x, t, encoder_hidden_states=rows["text"], added_cond_kwargs=added)

    conditions = rows, {**null, "sizes": size}
    return text_parts(pipe, options, {"unet": unet}, shape, call, conditions)


def _plain(unet: Any, decode: Any = None, coder: Any = None) -> Parts:
    """unet(x, t); what these pipelines would not hand over is refused."""
    kind = unet.config.get("time_embedding_type", "positional")
    if kind != "positional":
        raise ModelError(
            f"unet: got time_embedding_type {kind!r}, expected positional: others take no time "
            "between trained steps"
        )
    if unet.config.get("num_class_embeds") or unet.config.get("class_embed_type"):
        raise ModelError("unet: got one with classes, which its pipeline does not hand over")

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        return answer(unet, x, t)[:, : x.shape[1]]  # without a learned variance

    shape = (unet.config.in_channels, *sides(unet.config.sample_size))
    return Parts(shape, call, {"unet": unet}, decode, coder)


def _whole(pipe: Any, options: PipelineOptions) -> tuple[Any, tuple[int, ...]]:
    """The network and the shape of x; networks that were distilled to take few steps of another
    kind are refused."""
    config = pipe.unet.config
    if config.get("time_cond_proj_dim") is not None:
        raise ModelError(
            "unet: got time_cond_proj_dim, a latent consistency model, expected a network that "
            "solves an ODE"
        )
    size = pixels(options, sides(config.sample_size), pipe.vae_scale_factor)
    return pipe.unet, (config.in_channels, *size)
