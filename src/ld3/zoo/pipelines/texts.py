"""Prompts, embedded once: after that the text encoders are not needed."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.options import PipelineOptions
from ld3.zoo.pipelines.coders import pixels
from ld3.zoo.pipelines.model import Rows

AT_ONCE = 8  # prompts through the text encoders


@torch.no_grad()
def embedded(
    embed: Callable[[list[str]], tuple[Rows, Rows]],
    prompts: Sequence[str],
    dtype: torch.dtype,
) -> tuple[Rows, Rows]:
    """Rows of conditions, one a prompt, and the row of the empty condition, in the network's dtype.

    `embed` gives both for some prompts. Texts of different lengths are filled up with zeros.
    """
    parts = [
        embed(list(prompts[first : first + AT_ONCE])) for first in range(0, len(prompts), AT_ONCE)
    ]
    rows, null = {}, {}
    for name, empty in parts[0][1].items():
        *found, empty = _filled_up([*(part[name] for part, _ in parts), empty])
        rows[name], null[name] = torch.cat(found), empty
    return _cast(rows, dtype), _cast(null, dtype)


def _filled_up(values: list[Tensor]) -> list[Tensor]:
    """(B, L, ...) each, with zeros after the text up to the largest L."""
    if values[0].ndim < 2:
        return values
    longest = max(value.shape[1] for value in values)
    return [
        torch.cat(
            [value, value.new_zeros(len(value), longest - value.shape[1], *value.shape[2:])], 1
        )
        for value in values
    ]


@torch.no_grad()
def encoded(
    encode: Callable[[list[str]], Rows],
    options: PipelineOptions,
    dtype: torch.dtype,
) -> tuple[Rows, Rows]:
    """:func:`embedded` for pipelines that embed one list of prompts at a time."""
    null = encode([options.negative_prompt or ""])
    return embedded(lambda prompts: (encode(prompts), null), options.prompts, dtype)


def with_guidance(rows: Rows, null: Rows, scale: float, device: torch.device) -> tuple[Rows, Rows]:
    """The guidance that a distilled network embeds, as a condition beside the text."""
    one = torch.tensor([scale], dtype=torch.float32, device=device)
    count = len(next(iter(rows.values())))
    return {**rows, "guidance": one.expand(count)}, {**null, "guidance": one}


def _cast(rows: Rows, dtype: torch.dtype) -> Rows:
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in rows.items()
    }


def default(pipe: Any, word: str) -> Any:
    """What a pipeline takes for an argument that is not given."""
    return inspect.signature(type(pipe).__call__).parameters[word].default


def frames_and_sides(
    pipe: Any, options: PipelineOptions, each: int, factor: int, patch: int
) -> tuple[int, int, int]:
    """Frames, height and width of a video in latents: `each` frames and `factor` pixels a latent,
    `patch` latents a token."""
    usual = int(default(pipe, "height")) // factor, int(default(pipe, "width")) // factor
    height, width = pixels(options, usual, factor, patch)
    frames = options.frames or int(default(pipe, "num_frames"))
    if frames % each != 1 % each:
        raise SpecError(f"frames: got {frames}, wanted 1 more than a multiple of {each}")
    return (frames - 1) // each + 1, height, width


def tokens(pipe: Any, options: PipelineOptions) -> int:
    """The length to which prompts are padded."""
    return options.tokens or int(default(pipe, "max_sequence_length"))
