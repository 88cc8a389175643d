"""Qwen-Image: transformer(x, t, text), x in latents packed two by two.

Its guidance keeps the norm of every token; see :func:`keeping_the_norm`.
"""

from typing import Any

import torch
from torch import Tensor

from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import image_decoder, pixels, unpacked
from ld3.zoo.pipelines.model import Parts, Rows, keeping_the_norm
from ld3.zoo.pipelines.texts import encoded, tokens


def parts(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    net, factor = pipe.transformer, pipe.vae_scale_factor
    size = pipe.default_sample_size
    height, width = pixels(options, (size, size), factor, patch=2)

    def encode(prompts: list[str]) -> Rows:
        text, mask = pipe.encode_prompt(
            prompts, device, max_sequence_length=tokens(pipe, options)
        )  # the mask is left out where no text is shorter
        whole = torch.ones(text.shape[:2], dtype=torch.long, device=device)
        return {"text": text, "mask": whole if mask is None else mask}

    rows, null = encoded(encode, options, net.dtype)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = net(
            hidden_states=x,
            timestep=told / 1000,
            encoder_hidden_states_mask=rows["mask"],
            encoder_hidden_states=rows["text"],
            img_shapes=[[(1, height // 2, width // 2)]] * len(x),
            return_dict=False,
        )[0]
        return out

    coder, plain = image_decoder(pipe.vae, options)

    def decode(x: Tensor) -> Tensor:  # a video of one frame
        return plain(unpacked(x, height, width)[:, :, None])[:, :, 0]

    length = (height // 2) * (width // 2)
    said = f"{len(options.prompts)} prompts"
    return Parts(
        (length, net.config.in_channels), call, {"transformer": net}, decode, coder, rows, null,
        said, length, halves=True, guide=keeping_the_norm,
    )  # fmt: skip
