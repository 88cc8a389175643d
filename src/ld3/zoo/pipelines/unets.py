"""Pipelines around UNets: DDPM, latent diffusion with a VQ decoder, Stable Diffusion 1, 2, XL."""

from typing import Any

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import image_decoder, pixels, sides
from ld3.zoo.pipelines.model import Parts, Rows
from ld3.zoo.pipelines.texts import embedded


def ddpm(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """unet(x, t), unconditional, x in pixels."""
    unet = _plain(pipe.unet)
    return Parts(_shape(unet), _plain_call(unet), {"unet": unet})


def ldm(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """The same in the latent space of a vector-quantised autoencoder."""
    unet = _plain(pipe.unet)
    coder, decode = image_decoder(pipe.vqvae, options)
    return Parts(_shape(unet), _plain_call(unet), {"unet": unet}, decode, coder)


def stable_diffusion(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """unet(x, t, text), x in latents."""
    unet, negative = _whole(pipe.unet), options.negative_prompt
    height, width = pixels(options, sides(unet.config.sample_size), pipe.vae_scale_factor)

    def embed(prompts: list[str]) -> tuple[Rows, Rows]:
        text, null = pipe.encode_prompt(
            prompts, device, 1, True, None if negative is None else [negative] * len(prompts)
        )
        return {"text": text}, {"text": null[:1]}

    rows, null = embedded(embed, options.prompts, unet.dtype)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = unet(x, told, encoder_hidden_states=rows["text"], return_dict=False)[0]
        return out

    coder, decode = image_decoder(pipe.vae, options)
    shape = (unet.config.in_channels, height, width)
    said = f"{len(options.prompts)} prompts"
    return Parts(shape, call, {"unet": unet}, decode, coder, rows, null, said)


def stable_diffusion_xl(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """unet(x, t, text; pooled text, sizes): sizes are those of the picture, without a crop."""
    unet = _whole(pipe.unet)
    factor, negative = pipe.vae_scale_factor, options.negative_prompt
    height, width = pixels(options, sides(unet.config.sample_size), factor)
    sizes = torch.tensor([[height, width, 0, 0, height, width]]) * factor

    def embed(prompts: list[str]) -> tuple[Rows, Rows]:
        text, null, pooled, null_pooled = pipe.encode_prompt(
            prompts,
            device=device,
            num_images_per_prompt=1,
            do_classifier_free_guidance=True,
            negative_prompt=None if negative is None else [negative] * len(prompts),
        )
        size = sizes.to(text.device, text.dtype)
        return (
            {"text": text, "pooled": pooled, "sizes": size.expand(len(prompts), -1)},
            {"text": null[:1], "pooled": null_pooled[:1], "sizes": size},
        )

    rows, null = embedded(embed, options.prompts, unet.dtype)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        added = {"text_embeds": rows["pooled"], "time_ids": rows["sizes"]}
        text = rows["text"]
        out: Tensor = unet(
            x, told, encoder_hidden_states=text, added_cond_kwargs=added, return_dict=False
        )[0]
        return out

    coder, decode = image_decoder(pipe.vae, options)
    shape = (unet.config.in_channels, height, width)
    said = f"{len(options.prompts)} prompts"
    return Parts(shape, call, {"unet": unet}, decode, coder, rows, null, said)


def _plain(unet: Any) -> Any:
    """Refuse what these pipelines would not hand over."""
    kind = unet.config.get("time_embedding_type", "positional")
    if kind != "positional":
        raise ModelError(
            f"unet: got time_embedding_type {kind!r}, wanted positional: others take no time "
            "between trained steps"
        )
    if unet.config.get("num_class_embeds") or unet.config.get("class_embed_type"):
        raise ModelError("unet: got one with classes, which its pipeline does not hand over")
    return unet


def _plain_call(unet: Any) -> Any:
    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = unet(x, told, return_dict=False)[0]
        return out[:, : x.shape[1]]  # without a learned variance

    return call


def _shape(unet: Any) -> tuple[int, ...]:
    return (unet.config.in_channels, *sides(unet.config.sample_size))


def _whole(unet: Any) -> Any:
    """Refuse networks that were distilled to take few steps of another kind."""
    if unet.config.get("time_cond_proj_dim") is not None:
        raise ModelError(
            "unet: got time_cond_proj_dim, a latent consistency model, wanted a network that "
            "solves an ODE"
        )
    return unet
