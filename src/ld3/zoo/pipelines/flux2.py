"""Flux.2: transformer(x, t, text, guidance), x in latents packed two by two.

The large network takes guidance as a condition and has no other. The small ones, Klein, are guided
by a negative prompt. The shift depends on the length of the sequence and on the number of steps;
here it is that of the pipeline's own number of steps.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import image_decoder, pixels
from ld3.zoo.pipelines.model import Parts, Rows
from ld3.zoo.pipelines.texts import default, encoded, tokens, with_guidance


def distilled(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """Guidance is embedded; there is no negative prompt."""
    return _parts(pipe, options, device, embedded_guidance=options.embedded_guidance)


def klein(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """Guided by a negative prompt."""
    return _parts(pipe, options, device, embedded_guidance=None)


def _parts(
    pipe: Any, options: PipelineOptions, device: torch.device, embedded_guidance: float | None
) -> Parts:
    net, vae = pipe.transformer, pipe.vae
    size = pipe.default_sample_size
    height, width = (n // 2 for n in pixels(options, (size, size), pipe.vae_scale_factor, patch=2))
    channels = net.config.in_channels

    def encode(prompts: list[str]) -> Rows:
        text, ids = pipe.encode_prompt(prompts, device, max_sequence_length=tokens(pipe, options))
        return {"text": text, "ids": ids}

    rows, null = encoded(encode, options, net.dtype)
    if embedded_guidance is not None:
        rows, null = with_guidance(rows, null, embedded_guidance, device)
    places = [torch.arange(n, device=device) for n in (1, height, width, 1)]
    image_ids = torch.cartesian_prod(*places)[None]  # (1, H W, 4)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = net(
            hidden_states=x,
            timestep=told / 1000,
            guidance=rows.get("guidance"),
            encoder_hidden_states=rows["text"],
            txt_ids=rows["ids"],
            img_ids=image_ids.expand(len(x), -1, -1),
            return_dict=False,
        )[0]
        return out[:, : x.shape[1]]

    coder, plain = image_decoder(vae, options)

    def decode(x: Tensor) -> Tensor:
        axes = (1, -1, 1, 1)
        spread = (vae.bn.running_var + vae.config.batch_norm_eps).sqrt().view(axes).to(x)
        grid = x.transpose(1, 2).reshape(-1, channels, height, width)
        grid = grid * spread + vae.bn.running_mean.view(axes).to(x)
        blocks = grid.reshape(-1, channels // 4, 2, 2, height, width)
        return plain(
            blocks.permute(0, 1, 4, 2, 5, 3).reshape(-1, channels // 4, 2 * height, 2 * width)
        )

    length = height * width
    rule = sys.modules[type(pipe).__module__].compute_empirical_mu
    said = f"{len(options.prompts)} prompts"
    return Parts(
        (length, channels), call, {"transformer": net}, decode, coder, rows,
        null if embedded_guidance is None else None, said, length, halves=True,
        mu=rule(image_seq_len=length, num_steps=int(default(pipe, "num_inference_steps"))),
    )  # fmt: skip
