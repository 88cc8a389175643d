"""LTX-Video: transformer(x, 1000 t, text), x a video in latents, one token a patch.

Decoders that take a time are given 0, as the pipeline does unless it is told otherwise.
"""

from typing import Any

import torch
from torch import Tensor

from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import tile
from ld3.zoo.pipelines.model import Parts, Rows
from ld3.zoo.pipelines.texts import default, encoded, frames_and_sides, tokens


def parts(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    net, vae = pipe.transformer, pipe.vae
    each, factor = pipe.vae_temporal_compression_ratio, pipe.vae_spatial_compression_ratio
    patch, deep = pipe.transformer_spatial_patch_size, pipe.transformer_temporal_patch_size
    frames, height, width = frames_and_sides(pipe, options, each, factor, patch)
    length = (frames // deep) * (height // patch) * (width // patch)
    rope = (each / int(default(pipe, "frame_rate")), factor, factor)

    def encode(prompts: list[str]) -> Rows:
        text, mask, _, _ = pipe.encode_prompt(
            prompts, do_classifier_free_guidance=False, device=device,
            max_sequence_length=tokens(pipe, options),
        )  # fmt: skip
        return {"text": text, "mask": mask}

    rows, null = encoded(encode, options, net.dtype)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = net(
            hidden_states=x,
            encoder_hidden_states=rows["text"],
            timestep=told,
            encoder_attention_mask=rows["mask"],
            num_frames=frames,
            height=height,
            width=width,
            rope_interpolation_scale=rope,
            return_dict=False,
        )[0]
        return out

    tile(vae, options)

    def decode(x: Tensor) -> Tensor:
        grid = x.reshape(len(x), frames, height, width, -1, deep, patch, patch)
        video = grid.permute(0, 4, 1, 5, 2, 6, 3, 7).flatten(6, 7).flatten(4, 5).flatten(2, 3)
        centre, spread = (v.view(1, -1, 1, 1, 1).to(x) for v in (vae.latents_mean, vae.latents_std))
        video = (video * spread / vae.config.scaling_factor + centre).to(vae.dtype)
        now = video.new_zeros(len(x)) if vae.config.timestep_conditioning else None
        out: Tensor = vae.decode(video, now, return_dict=False)[0]
        return out

    shape = (length, net.config.in_channels * deep * patch**2)
    said = f"{len(options.prompts)} prompts"
    return Parts(shape, call, {"transformer": net}, decode, vae, rows, null, said, length)
