"""Conditions of pipelines: classes, and prompts, which are embedded once: after that the text
encoders are not needed."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import image_decoder, pixels
from ld3.zoo.pipelines.model import Call, Parts, Rows

AT_ONCE = 8  # prompts through the text encoders
Decode = Callable[[Tensor], Tensor]


def embedded_prompts(
    pipe: Any,
    options: PipelineOptions,
    net: Any,
    names: str,
    *,
    empty: str | None = "",
    **given: Any,
) -> tuple[Rows, Rows]:
    """Rows of conditions from `encode_prompt`, and the row of the negative prompt, which is `empty`
    where none is given; `names` are those of what `encode_prompt` returns, in order.

    A name such as `-text` is the same condition for the negative prompt. If there is none, the
    negative prompt is embedded by itself.
    """
    negative = empty if options.negative_prompt is None else options.negative_prompt
    both = "-" in names
    if "max_sequence_length" in inspect.signature(pipe.encode_prompt).parameters:
        given["max_sequence_length"] = tokens(pipe, options)

    def encode(prompts: list[str]) -> dict[str, Tensor]:
        if both:
            given["negative_prompt"] = None if negative is None else [negative] * len(prompts)
        return dict(zip(names.split(), pipe.encode_prompt(prompts, **given), strict=False))

    def embed(prompts: list[str]) -> tuple[Rows, Rows]:
        found = encode(prompts)
        return (
            {name: value for name, value in found.items() if name[0] != "-"},
            {name[1:]: value[:1] for name, value in found.items() if name[0] == "-"},
        )

    return embedded(embed, options, net.dtype) if both else encoded(encode, options, net.dtype)


@torch.no_grad()
def embedded(
    embed: Callable[[list[str]], tuple[Rows, Rows]], options: PipelineOptions, dtype: torch.dtype
) -> tuple[Rows, Rows]:
    """Rows of conditions, one a prompt, and the row of the empty condition, in the network's dtype.

    `embed` gives both for some prompts. Texts of different lengths are filled up with zeros. Every
    part is copied into the whole and forgotten: prompts may be tens of thousands.
    """
    prompts = list(options.prompts)
    rows: dict[str, Tensor] = {}
    null: Rows = {}
    for first in range(0, len(prompts), AT_ONCE):
        part, empty = embed(prompts[first : first + AT_ONCE])
        null = null or _cast(empty, dtype)
        part = _cast(part, dtype)
        for name, one in null.items():
            value, whole = part[name], rows.get(name)
            if whole is None:
                whole = value.new_zeros(len(prompts), *value.shape[1:])
            whole = _filled_up(_filled_up(whole, value), one)
            whole[first : first + len(value)] = _filled_up(value, whole)
            rows[name] = whole
    return rows, {name: _filled_up(value, rows[name]) for name, value in null.items()}


def _cast(rows: Rows, dtype: torch.dtype) -> Rows:
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in rows.items()
    }


def _filled_up(value: Tensor, other: Tensor) -> Tensor:
    """(B, L, ...) with zeros after the text, up to the L of another if that is larger."""
    missing = other.shape[1] - value.shape[1] if value.ndim > 1 else 0
    if missing <= 0:
        return value
    return torch.cat([value, value.new_zeros(len(value), missing, *value.shape[2:])], 1)


@torch.no_grad()
def encoded(
    encode: Callable[[list[str]], Rows], options: PipelineOptions, dtype: torch.dtype
) -> tuple[Rows, Rows]:
    """:func:`embedded` for pipelines that embed one list of prompts at a time."""
    null = encode([options.negative_prompt or ""])
    return embedded(lambda prompts: (encode(prompts), null), options, dtype)


def with_guidance(rows: Rows, null: Rows, scale: float, device: torch.device) -> tuple[Rows, Rows]:
    """The guidance that a distilled network embeds, as a condition beside the text."""
    one = torch.tensor([scale], dtype=torch.float32, device=device)
    count = len(next(iter(rows.values())))
    return {**rows, "guidance": one.expand(count)}, {**null, "guidance": one}


def text_parts(
    pipe: Any,
    options: PipelineOptions,
    networks: Mapping[str, Any],
    shape: tuple[int, ...],
    call: Call,
    conditions: tuple[Rows, Rows | None],
    decode: Callable[[Decode, Tensor], Tensor] | None = None,
    **more: Any,
) -> Parts:
    """The parts of a pipeline with prompts and a VAE; `decode(vae_decode, x)` where x is not yet
    what the decoder takes."""
    coder, plain = image_decoder(pipe.vae, options)
    whole: Decode = plain if decode is None else partial(decode, plain)
    said = f"{len(options.prompts)} prompts"
    return Parts(shape, call, networks, whole, coder, *conditions, said, **more)


def class_rows(options: PipelineOptions, count: int) -> tuple[list[int], str]:
    """The chosen classes of `count`, and what to call them."""
    classes = list(options.classes or range(count))
    if not all(0 <= label < count for label in classes):
        raise SpecError(f"classes: got {classes[:8]}, expected 0 to {count - 1}")
    return classes, f"{len(classes)} classes"


def answer(net: Any, *args: Any, **given: Any) -> Tensor:
    """The output of a network of diffusers."""
    out: Tensor = net(*args, **given, return_dict=False)[0]
    return out


def default(pipe: Any, word: str) -> Any:
    """What a pipeline takes for an argument that is not given."""
    return inspect.signature(type(pipe).__call__).parameters[word].default


def sides_in_latents(
    pipe: Any, options: PipelineOptions, factor: int, patch: int
) -> tuple[int, int]:
    """Height and width in latents; those of the pipeline's call where none are given."""
    usual = int(default(pipe, "height")) // factor, int(default(pipe, "width")) // factor
    return pixels(options, usual, factor, patch)


def frames_and_sides(
    pipe: Any, options: PipelineOptions, each: int, factor: int, patch: int
) -> tuple[int, int, int]:
    """Frames, height and width of a video in latents: `each` frames and `factor` pixels a latent,
    `patch` latents a token."""
    frames = options.frames or int(default(pipe, "num_frames"))
    sides = sides_in_latents(pipe, options, factor, patch)
    if frames % each != 1 % each:
        raise SpecError(f"frames: got {frames}, expected 1 more than a multiple of {each}")
    return (frames - 1) // each + 1, *sides


def tokens(pipe: Any, options: PipelineOptions) -> int:
    """The length to which prompts are padded."""
    return options.tokens or int(default(pipe, "max_sequence_length"))
