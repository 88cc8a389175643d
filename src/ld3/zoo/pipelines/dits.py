"""Pipelines around transformers: DiT, Stable Diffusion 3, Flux, Sana, Wan."""

from typing import Any

import torch
from torch import Tensor

from ld3.errors import ModelError, SpecError
from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import image_decoder, pixels, sides, unpacked
from ld3.zoo.pipelines.model import Parts, Rows
from ld3.zoo.pipelines.texts import (
    default,
    embedded,
    encoded,
    frames_and_sides,
    tokens,
    with_guidance,
)


def dit(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, t, class), x in latents; the class after the last is none."""
    net = pipe.transformer
    count = int(net.config.num_embeds_ada_norm)
    classes = options.classes or tuple(range(count))
    if not all(0 <= label < count for label in classes):
        raise SpecError(f"classes: got {list(classes)[:8]}, wanted 0 to {count - 1}")
    channels = net.config.in_channels

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = net(x, timestep=told, class_labels=rows["label"], return_dict=False)[0]
        return out[:, :channels]  # without a learned variance

    coder, decode = image_decoder(pipe.vae, options)
    rows = {"label": torch.tensor(classes, device=device)}
    null = {"label": torch.tensor([count], device=device)}
    shape = (channels, *sides(net.config.sample_size))
    said = f"{len(classes)} classes"
    return Parts(shape, call, {"transformer": net}, decode, coder, rows, null, said)


def stable_diffusion_3(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, 1000 t, text, pooled text), x in latents."""
    net, patch = pipe.transformer, pipe.transformer.config.patch_size
    size = sides(net.config.sample_size)
    height, width = pixels(options, size, pipe.vae_scale_factor, patch)
    negative = options.negative_prompt or ""

    def embed(prompts: list[str]) -> tuple[Rows, Rows]:
        text, null, pooled, null_pooled = pipe.encode_prompt(
            prompts,
            None,
            None,
            device=device,
            negative_prompt=[negative] * len(prompts),
            max_sequence_length=tokens(pipe, options),
        )
        return {"text": text, "pooled": pooled}, {"text": null[:1], "pooled": null_pooled[:1]}

    rows, null = embedded(embed, options.prompts, net.dtype)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = net(
            hidden_states=x,
            timestep=told,
            encoder_hidden_states=rows["text"],
            pooled_projections=rows["pooled"],
            return_dict=False,
        )[0]
        return out

    coder, decode = image_decoder(pipe.vae, options)
    shape = (net.config.in_channels, height, width)
    length = (height // patch) * (width // patch)
    said = f"{len(options.prompts)} prompts"
    return Parts(shape, call, {"transformer": net}, decode, coder, rows, null, said, length)


def flux(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, t, text, pooled text, guidance), x in latents packed two by two: (tokens, 4C).

    The guidance that a distilled network embeds is a condition like the text.
    """
    net, factor = pipe.transformer, pipe.vae_scale_factor
    size = pipe.default_sample_size
    height, width = pixels(options, (size, size), factor, patch=2)
    channels = net.config.in_channels

    def encode(prompts: list[str]) -> Rows:
        text, pooled, _ = pipe.encode_prompt(
            prompts, None, device=device, max_sequence_length=tokens(pipe, options)
        )
        return {"text": text, "pooled": pooled}

    rows, null = encoded(encode, options, net.dtype)
    if net.config.guidance_embeds:
        rows, null = with_guidance(rows, null, options.embedded_guidance, device)
    text_ids = torch.zeros(rows["text"].shape[1], 3, device=device, dtype=net.dtype)
    down, along = torch.meshgrid(
        torch.arange(height // 2, device=device),
        torch.arange(width // 2, device=device),
        indexing="ij",
    )
    image_ids = torch.stack([0 * down, down, along], dim=-1).flatten(0, 1).to(net.dtype)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = net(
            hidden_states=x,
            timestep=told / 1000,
            guidance=rows.get("guidance"),
            pooled_projections=rows["pooled"],
            encoder_hidden_states=rows["text"],
            txt_ids=text_ids,
            img_ids=image_ids,
            return_dict=False,
        )[0]
        return out

    coder, plain = image_decoder(pipe.vae, options)

    def decode(x: Tensor) -> Tensor:
        return plain(unpacked(x, height, width))

    length = len(image_ids)
    said = f"{len(options.prompts)} prompts"
    shape, nets = (length, channels), {"transformer": net}
    return Parts(shape, call, nets, decode, coder, rows, null, said, length, halves=True)


def sana(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, 1000 t, text, which tokens are text), x in latents."""
    net, factor = pipe.transformer, pipe.vae_scale_factor
    usual = int(default(pipe, "height")) // factor, int(default(pipe, "width")) // factor
    height, width = pixels(options, usual, factor, net.config.patch_size)
    channels, scale = net.config.in_channels, net.config.timestep_scale
    negative = options.negative_prompt or ""

    def embed(prompts: list[str]) -> tuple[Rows, Rows]:
        text, mask, null, null_mask = pipe.encode_prompt(
            prompts,
            True,
            negative_prompt=negative,
            device=device,
            max_sequence_length=tokens(pipe, options),
            complex_human_instruction=default(pipe, "complex_human_instruction"),
        )
        return {"text": text, "mask": mask}, {"text": null[:1], "mask": null_mask[:1]}

    rows, null = embedded(embed, options.prompts, net.dtype)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = net(
            x,
            encoder_hidden_states=rows["text"],
            encoder_attention_mask=rows["mask"],
            timestep=told * scale,
            return_dict=False,
        )[0]
        return out[:, :channels]  # without a learned variance

    coder, decode = image_decoder(pipe.vae, options)
    said = f"{len(options.prompts)} prompts"
    nets = {"transformer": net}
    return Parts((channels, height, width), call, nets, decode, coder, rows, null, said)


def wan(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, 1000 t, text), x a video in latents (C, F, H, W).

    With two networks the first is asked for times from the boundary on, the second below it.
    """
    nets = {
        name: getattr(pipe, name)
        for name in ("transformer", "transformer_2")
        if getattr(pipe, name, None) is not None
    }
    first, last = next(iter(nets.values())), list(nets.values())[-1]
    ratio = pipe.config.boundary_ratio
    if (len(nets) == 2) != (ratio is not None):
        raise ModelError(
            f"pipeline: got {len(nets)} networks with boundary_ratio {ratio}, wanted one network, "
            "or two and a boundary"
        )
    boundary = 0.0 if ratio is None else 1000 * float(ratio)
    patch, factor = first.config.patch_size, pipe.vae_scale_factor_spatial
    each = pipe.vae_scale_factor_temporal
    shape = (first.config.in_channels, *frames_and_sides(pipe, options, each, factor, patch[1]))
    height, width = shape[2:]
    length = shape[1] * (height // 2) * (width // 2)
    negative = options.negative_prompt or ""

    def embed(prompts: list[str]) -> tuple[Rows, Rows]:
        text, null = pipe.encode_prompt(
            prompts,
            negative_prompt=[negative] * len(prompts),
            max_sequence_length=tokens(pipe, options),
            device=device,
        )
        return {"text": text}, {"text": null[:1]}

    rows, null = embedded(embed, options.prompts, first.dtype)
    per_token = bool(pipe.config.expand_timesteps)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        net = first if float(told[0].detach()) >= boundary else last
        out: Tensor = net(
            hidden_states=x,
            timestep=told[:, None].expand(-1, length) if per_token else told,
            encoder_hidden_states=rows["text"],
            return_dict=False,
        )[0]
        return out

    coder, decode = image_decoder(pipe.vae, options)
    said = f"{len(options.prompts)} prompts"
    return Parts(shape, call, nets, decode, coder, rows, null, said)
