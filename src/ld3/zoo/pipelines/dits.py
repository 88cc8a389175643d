"""Pipelines of images around transformers: DiT, Stable Diffusion 3, Flux, Flux.2, Sana, Qwen-Image,
Z-Image, Lumina 2."""

import sys
from typing import Any

import torch
from torch import Tensor

from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import image_decoder, pixels, sides, unpacked
from ld3.zoo.pipelines.model import Parts, Rows, keeping_the_norm
from ld3.zoo.pipelines.texts import (
    Decode,
    answer,
    class_rows,
    default,
    embedded_prompts,
    encoded,
    sides_in_latents,
    text_parts,
    tokens,
    with_guidance,
)

Z_IMAGE_SIDE = 1024  # pixels, if the user gives no size


def dit(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, t, class), x in latents; the class after the last is none."""
    net, channels = pipe.transformer, pipe.transformer.config.in_channels
    count = int(net.config.num_embeds_ada_norm)
    classes, said = class_rows(options, count)

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        out = answer(net, x, timestep=t, class_labels=rows["label"])
        return out[:, :channels]  # without a learned variance

    coder, decode = image_decoder(pipe.vae, options)
    rows, null = ({"label": torch.tensor(some, device=device)} for some in (classes, [count]))
    shape = (channels, *sides(net.config.sample_size))
    return Parts(shape, call, {"transformer": net}, decode, coder, rows, null, said)


def stable_diffusion_3(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, 1000 t, text, pooled text), x in latents."""
    net, patch = pipe.transformer, pipe.transformer.config.patch_size
    size = sides(net.config.sample_size)
    height, width = pixels(options, size, pipe.vae_scale_factor, patch)
    names, others = "text -text pooled -pooled", {"prompt_2": None, "prompt_3": None}
    conditions = embedded_prompts(pipe, options, net, names, device=device, **others)

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        text, pooled = rows["text"], rows["pooled"]
        return answer(net, x, timestep=t, encoder_hidden_states=text, pooled_projections=pooled)

    shape, nets = (net.config.in_channels, height, width), {"transformer": net}
    length = (height // patch) * (width // patch)
    return text_parts(pipe, options, nets, shape, call, conditions, tokens=length)


def flux(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, t, text, pooled text, guidance), x in latents packed two by two: (tokens, 4C).

    The guidance that a distilled network embeds is a condition like the text.
    """
    net, (height, width) = pipe.transformer, _packed_sides(pipe, options)
    rows, null = embedded_prompts(pipe, options, net, "text pooled", prompt_2=None, device=device)
    if net.config.guidance_embeds:
        rows, null = with_guidance(rows, null, options.embedded_guidance, device)
    text_ids = torch.zeros(rows["text"].shape[1], 3, device=device, dtype=net.dtype)
    image_ids = _places(1, height, width, device=device).to(net.dtype)

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        return answer(
            net,
            hidden_states=x,
            timestep=t / 1000,
            guidance=rows.get("guidance"),
            pooled_projections=rows["pooled"],
            encoder_hidden_states=rows["text"],
            txt_ids=text_ids,
            img_ids=image_ids,
        )

    def decode(plain: Decode, x: Tensor) -> Tensor:
        return plain(unpacked(x, 2 * height, 2 * width))

    length, nets = height * width, {"transformer": net}
    shape = (length, net.config.in_channels)
    more = {"tokens": length, "halves": True}
    return text_parts(pipe, options, nets, shape, call, (rows, null), decode, **more)


def flux2(pipe: Any, options: PipelineOptions, device: torch.device, klein: bool = False) -> Parts:
    """transformer(x, t, text, guidance), x in latents packed two by two.

    The large network takes guidance as a condition and has no other. The small ones, Klein, are
    guided by a negative prompt. The shift depends on the length of the sequence and on the number
    of steps; here it is that of the pipeline's own number of steps.
    """
    net, vae, (height, width) = pipe.transformer, pipe.vae, _packed_sides(pipe, options)
    rows, null = embedded_prompts(pipe, options, net, "text ids", device=device)
    if not klein:
        rows, null = with_guidance(rows, null, options.embedded_guidance, device)
    image_ids = _places(1, height, width, 1, device=device)[None]  # (1, H W, 4)

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        out = answer(
            net,
            hidden_states=x,
            timestep=t / 1000,
            guidance=rows.get("guidance"),
            encoder_hidden_states=rows["text"],
            txt_ids=rows["ids"],
            img_ids=image_ids.expand(len(x), -1, -1),
        )
        return out[:, : x.shape[1]]

    def decode(plain: Decode, x: Tensor) -> Tensor:
        mean, var = vae.bn.running_mean, vae.bn.running_var
        x = x * (var + vae.config.batch_norm_eps).sqrt().to(x) + mean.to(x)
        return plain(unpacked(x, 2 * height, 2 * width))

    length, nets = height * width, {"transformer": net}
    shape = (length, net.config.in_channels)
    shift = sys.modules[type(pipe).__module__].compute_empirical_mu
    mu = shift(image_seq_len=length, num_steps=int(default(pipe, "num_inference_steps")))
    conditions = (rows, null if klein else None)
    more = {"tokens": length, "halves": True, "mu": mu}
    return text_parts(pipe, options, nets, shape, call, conditions, decode, **more)


def sana(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, 1000 t, text, which tokens are text), x in latents."""
    net, config = pipe.transformer, pipe.transformer.config
    size = sides_in_latents(pipe, options, pipe.vae_scale_factor, config.patch_size)
    more = {"complex_human_instruction": default(pipe, "complex_human_instruction")}
    conditions = embedded_prompts(
        pipe, options, net, "text mask -text -mask", device=device,
        do_classifier_free_guidance=True, **more,
    )  # fmt: skip

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        t, text, mask = t * config.timestep_scale, rows["text"], rows["mask"]
        out = answer(net, x, encoder_hidden_states=text, encoder_attention_mask=mask, timestep=t)
        return out[:, : config.in_channels]  # without a learned variance

    shape = (config.in_channels, *size)
    return text_parts(pipe, options, {"transformer": net}, shape, call, conditions)


def lumina2(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, 1 - t, text), x in latents; its output points from noise to data.

    Its guidance keeps the norm of every row; see :func:`keeping_the_norm`.
    """
    net, size = pipe.transformer, sides(pipe.default_sample_size)
    shape = (net.config.in_channels, *pixels(options, size, pipe.vae_scale_factor, patch=2))
    conditions = embedded_prompts(pipe, options, net, "text mask -text -mask", device=device)

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        t, text, mask = 1 - t / 1000, rows["text"], rows["mask"]
        out = answer(net, x, timestep=t, encoder_hidden_states=text, encoder_attention_mask=mask)
        return -out

    more = {"guide": keeping_the_norm, "tokens": shape[0]}  # what the pipeline takes for the length
    return text_parts(pipe, options, {"transformer": net}, shape, call, conditions, **more)


def qwen_image(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, t, text), x in latents packed two by two.

    Its guidance keeps the norm of every token; see :func:`keeping_the_norm`.
    """
    net, (height, width) = pipe.transformer, _packed_sides(pipe, options)

    def encode(prompts: list[str]) -> Rows:
        text, mask = pipe.encode_prompt(
            prompts, device, max_sequence_length=tokens(pipe, options)
        )  # the mask is left out where no text is shorter
        whole = torch.ones(text.shape[:2], dtype=torch.long, device=device)
        return {"text": text, "mask": whole if mask is None else mask}

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        return answer(
            net,
            hidden_states=x,
            timestep=t / 1000,
            encoder_hidden_states_mask=rows["mask"],
            encoder_hidden_states=rows["text"],
            img_shapes=[[(1, height, width)]] * len(x),
        )

    def decode(plain: Decode, x: Tensor) -> Tensor:  # a video of one frame
        return plain(unpacked(x, 2 * height, 2 * width)[:, :, None])[:, :, 0]

    length, nets = height * width, {"transformer": net}
    shape, conditions = (length, net.config.in_channels), encoded(encode, options, net.dtype)
    more = {"tokens": length, "halves": True, "guide": keeping_the_norm}
    return text_parts(pipe, options, nets, shape, call, conditions, decode, **more)


def z_image(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """transformer(x, 1 - t, text), x in latents; its output points from noise to data.

    Texts have their own lengths. The pipeline counts its guidance from zero: D_cond + s (D_cond -
    D_null), which is our guidance g = 1 + s.
    """
    net, side = pipe.transformer, Z_IMAGE_SIDE // pipe.vae_scale_factor
    height, width = pixels(options, (side, side), pipe.vae_scale_factor, patch=2)

    def encode(prompts: list[str]) -> Rows:
        length = tokens(pipe, options)
        texts, _ = pipe.encode_prompt(
            prompts, device, do_classifier_free_guidance=False, max_sequence_length=length
        )
        mask = [torch.ones(len(text), dtype=torch.bool, device=device) for text in texts]
        fill = torch.nn.utils.rnn.pad_sequence
        return {"text": fill(texts, batch_first=True), "mask": fill(mask, batch_first=True)}

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        texts = [text[mask] for text, mask in zip(rows["text"], rows["mask"], strict=True)]
        frames = list(x[:, :, None].unbind(0))  # videos of one frame
        outs = net(frames, (1000 - t) / 1000, texts, return_dict=False)[0]
        return -torch.stack(list(outs))[:, :, 0]

    shape, nets = (net.in_channels, height, width), {"transformer": net}
    conditions, length = encoded(encode, options, net.dtype), (height // 2) * (width // 2)
    return text_parts(pipe, options, nets, shape, call, conditions, tokens=length)


def _packed_sides(pipe: Any, options: PipelineOptions) -> tuple[int, int]:
    """Height and width in tokens of two by two latents."""
    size = pipe.default_sample_size
    height, width = pixels(options, (size, size), pipe.vae_scale_factor, patch=2)
    return height // 2, width // 2


def _places(*counts: int, device: torch.device) -> Tensor:
    """All places of a grid of that many cells, (cells, dimensions), the last changing first."""
    return torch.cartesian_prod(*(torch.arange(n, device=device) for n in counts))
