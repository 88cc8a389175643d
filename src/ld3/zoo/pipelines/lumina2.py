"""Lumina 2: transformer(x, 1 - t, text), x in latents; its output points from noise to data.

Its guidance keeps the norm of every row; see :func:`keeping_the_norm`.
"""

from typing import Any

import torch
from torch import Tensor

from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import image_decoder, pixels, sides
from ld3.zoo.pipelines.model import Parts, Rows, keeping_the_norm
from ld3.zoo.pipelines.texts import embedded, tokens


def parts(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    net, factor = pipe.transformer, pipe.vae_scale_factor
    height, width = pixels(options, sides(pipe.default_sample_size), factor, patch=2)

    negative = options.negative_prompt or ""

    def embed(prompts: list[str]) -> tuple[Rows, Rows]:
        text, mask, null, null_mask = pipe.encode_prompt(
            prompts,
            negative_prompt=[negative] * len(prompts),
            device=device,
            max_sequence_length=tokens(pipe, options),
        )
        return {"text": text, "mask": mask}, {"text": null[:1], "mask": null_mask[:1]}

    rows, null = embedded(embed, options.prompts, net.dtype)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = net(
            hidden_states=x,
            timestep=1 - told / 1000,
            encoder_hidden_states=rows["text"],
            encoder_attention_mask=rows["mask"],
            return_dict=False,
        )[0]
        return -out

    coder, decode = image_decoder(pipe.vae, options)
    shape = (net.config.in_channels, height, width)
    said = f"{len(options.prompts)} prompts"
    return Parts(
        shape, call, {"transformer": net}, decode, coder, rows, null, said,
        tokens=shape[0],  # what the pipeline takes for the length, if its shift depends on one
        guide=keeping_the_norm,
    )  # fmt: skip
