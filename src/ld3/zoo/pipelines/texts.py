"""Prompts, embedded once: after that the text encoders are not needed."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ld3.options import PipelineOptions
from ld3.zoo.pipelines.model import Rows

AT_ONCE = 8  # prompts through the text encoders


@torch.no_grad()
def embedded(
    embed: Callable[[list[str]], tuple[Rows, Rows]],
    prompts: Sequence[str],
    dtype: torch.dtype,
) -> tuple[Rows, Rows]:
    """Rows of conditions, one a prompt, and the row of the empty condition, in the network's dtype.

    `embed` gives both for some prompts.
    """
    parts = [
        embed(list(prompts[first : first + AT_ONCE])) for first in range(0, len(prompts), AT_ONCE)
    ]
    rows = {name: torch.cat([part[name] for part, _ in parts]) for name in parts[0][0]}
    return _cast(rows, dtype), _cast(parts[0][1], dtype)


def _cast(rows: Rows, dtype: torch.dtype) -> Rows:
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in rows.items()
    }


def default(pipe: Any, word: str) -> Any:
    """What a pipeline takes for an argument that is not given."""
    return inspect.signature(type(pipe).__call__).parameters[word].default


def tokens(pipe: Any, options: PipelineOptions) -> int:
    """The length to which prompts are padded."""
    return options.tokens or int(default(pipe, "max_sequence_length"))
