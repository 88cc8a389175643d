"""Pipelines of videos around transformers: Wan, HunyuanVideo, LTX-Video."""

from typing import Any

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import tile
from ld3.zoo.pipelines.model import Parts, Rows
from ld3.zoo.pipelines.texts import (
    answer,
    default,
    embedded_prompts,
    frames_and_sides,
    text_parts,
    with_guidance,
)


def wan(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, 1000 t, text), x a video in latents (C, F, H, W).

    Of two networks the first runs at times from the boundary on, the second below it.
    """
    found = {name: getattr(pipe, name, None) for name in ("transformer", "transformer_2")}
    nets = {name: net for name, net in found.items() if net is not None}
    first, last = next(iter(nets.values())), list(nets.values())[-1]
    ratio = pipe.config.boundary_ratio
    if (len(nets) == 2) != (ratio is not None):
        raise ModelError(
            f"pipeline: got {len(nets)} networks with boundary_ratio {ratio}, expected one "
            "network, or two and a boundary"
        )
    boundary = 0.0 if ratio is None else 1000 * float(ratio)
    each, factor = pipe.vae_scale_factor_temporal, pipe.vae_scale_factor_spatial
    frames, *size = frames_and_sides(pipe, options, each, factor, first.config.patch_size[1])
    length = frames * (size[0] // 2) * (size[1] // 2)
    conditions = embedded_prompts(pipe, options, first, "text -text", device=device)
    per_token = bool(pipe.config.expand_timesteps)

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        net = first if float(t[0].detach()) >= boundary else last
        t = t[:, None].expand(-1, length) if per_token else t
        return answer(net, hidden_states=x, timestep=t, encoder_hidden_states=rows["text"])

    shape = (first.config.in_channels, frames, *size)
    return text_parts(pipe, options, nets, shape, call, conditions)


def hunyuan_video(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, 1000 t, text, pooled text, guidance), x a video in latents."""
    net, patch = pipe.transformer, pipe.transformer.config.patch_size
    each, factor = pipe.vae_scale_factor_temporal, pipe.vae_scale_factor_spatial
    shape = (net.config.in_channels, *frames_and_sides(pipe, options, each, factor, patch))
    rows, null = embedded_prompts(pipe, options, net, "text pooled mask", device=device)
    conditions = with_guidance(rows, null, 1000 * options.embedded_guidance, device)

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        return answer(
            net,
            hidden_states=x,
            timestep=t,
            encoder_hidden_states=rows["text"],
            encoder_attention_mask=rows["mask"].to(net.dtype),
            pooled_projections=rows["pooled"],
            guidance=rows["guidance"].to(x.dtype),
        )

    return text_parts(pipe, options, {"transformer": net}, shape, call, conditions)


def ltx(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, 1000 t, text), x a video in latents, one token a patch.

    Decoders that take a time get 0, which is the default of the pipeline.
    """
    net, vae = pipe.transformer, pipe.vae
    each, factor = pipe.vae_temporal_compression_ratio, pipe.vae_spatial_compression_ratio
    patch, deep = pipe.transformer_spatial_patch_size, pipe.transformer_temporal_patch_size
    frames, height, width = frames_and_sides(pipe, options, each, factor, patch)
    length = (frames // deep) * (height // patch) * (width // patch)
    rope = (each / int(default(pipe, "frame_rate")), factor, factor)
    rows, null = embedded_prompts(
        pipe, options, net, "text mask", device=device, do_classifier_free_guidance=False
    )

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        return answer(
            net,
            hidden_states=x,
            encoder_hidden_states=rows["text"],
            timestep=t,
            encoder_attention_mask=rows["mask"],
            num_frames=frames,
            height=height,
            width=width,
            rope_interpolation_scale=rope,
        )

    def decode(x: Tensor) -> Tensor:
        grid = x.reshape(len(x), frames, height, width, -1, deep, patch, patch)
        video = grid.permute(0, 4, 1, 5, 2, 6, 3, 7).flatten(6, 7).flatten(4, 5).flatten(2, 3)
        centre, spread = (v.view(1, -1, 1, 1, 1).to(x) for v in (vae.latents_mean, vae.latents_std))
        video = (video * spread / vae.config.scaling_factor + centre).to(vae.dtype)
        now = video.new_zeros(len(x)) if vae.config.timestep_conditioning else None
        out: Tensor = vae.decode(video, now, return_dict=False)[0]
        return out

    tile(vae, options)
    shape, nets = (length, net.config.in_channels * deep * patch**2), {"transformer": net}
    said = f"{len(options.prompts)} prompts"
    return Parts(shape, call, nets, decode, vae, rows, null, said, length)
