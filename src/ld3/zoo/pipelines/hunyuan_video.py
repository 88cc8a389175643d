"""HunyuanVideo: transformer(x, 1000 t, text, pooled text, guidance), x a video in latents."""

from typing import Any

import torch
from torch import Tensor

from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import image_decoder
from ld3.zoo.pipelines.model import Parts, Rows
from ld3.zoo.pipelines.texts import encoded, frames_and_sides, tokens, with_guidance


def parts(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    net, patch = pipe.transformer, pipe.transformer.config.patch_size
    each, factor = pipe.vae_scale_factor_temporal, pipe.vae_scale_factor_spatial
    shape = (net.config.in_channels, *frames_and_sides(pipe, options, each, factor, patch))

    def encode(prompts: list[str]) -> Rows:
        text, pooled, mask = pipe.encode_prompt(
            prompts, device=device, max_sequence_length=tokens(pipe, options)
        )
        return {"text": text, "pooled": pooled, "mask": mask.to(net.dtype)}

    rows, null = encoded(encode, options, net.dtype)
    rows, null = with_guidance(rows, null, 1000 * options.embedded_guidance, device)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = net(
            hidden_states=x,
            timestep=told,
            encoder_hidden_states=rows["text"],
            encoder_attention_mask=rows["mask"],
            pooled_projections=rows["pooled"],
            guidance=rows["guidance"].to(x.dtype),
            return_dict=False,
        )[0]
        return out

    coder, decode = image_decoder(pipe.vae, options)
    said = f"{len(options.prompts)} prompts"
    return Parts(shape, call, {"transformer": net}, decode, coder, rows, null, said)
