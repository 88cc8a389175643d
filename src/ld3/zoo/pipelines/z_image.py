"""Z-Image: transformer(x, 1 - t, text), x in latents; its output points from noise to data.

Texts have their own lengths. The pipeline counts its guidance from zero: D_cond + s (D_cond -
D_null), which is our guidance g = 1 + s.
"""

from typing import Any

import torch
from torch import Tensor

from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import image_decoder, pixels
from ld3.zoo.pipelines.model import Parts, Rows
from ld3.zoo.pipelines.texts import encoded, tokens

SIDE = 1024  # pixels, if the user gives no size


def parts(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    net, factor = pipe.transformer, pipe.vae_scale_factor
    height, width = pixels(options, (SIDE // factor, SIDE // factor), factor, patch=2)

    def encode(prompts: list[str]) -> Rows:
        texts, _ = pipe.encode_prompt(
            list(prompts), device, do_classifier_free_guidance=False,
            max_sequence_length=tokens(pipe, options),
        )  # fmt: skip
        mask = [torch.ones(len(text), dtype=torch.bool, device=device) for text in texts]
        fill = torch.nn.utils.rnn.pad_sequence
        return {"text": fill(texts, batch_first=True), "mask": fill(mask, batch_first=True)}

    rows, null = encoded(encode, options, net.dtype)

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        texts = [text[mask] for text, mask in zip(rows["text"], rows["mask"], strict=True)]
        frames = list(x[:, :, None].unbind(0))  # videos of one frame
        outs = net(frames, (1000 - told) / 1000, texts, return_dict=False)[0]
        return -torch.stack(list(outs))[:, :, 0]

    coder, decode = image_decoder(pipe.vae, options)
    shape = (net.in_channels, height, width)
    said = f"{len(options.prompts)} prompts"
    length = (height // 2) * (width // 2)
    return Parts(shape, call, {"transformer": net}, decode, coder, rows, null, said, length)
