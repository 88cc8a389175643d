"""What a kind of checkpoint must tell, to be inspected, loaded and converted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ld3.models import Model
from ld3.options import PipelineOptions
from ld3.zoo.checkpoints.tensors import Checkpoint


@dataclass(frozen=True)
class Description:
    """What a file is; nothing of it was run."""

    network: str
    parameters: int
    shape: tuple[int, ...]  # of x
    schedule: str
    prediction: str
    conditions: str
    licence: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """One kind of checkpoint.

    `takes` are the options that mean something to it. A family is converted to safetensors if it
    has `settings`, its configuration as JSON, enough to load the converted file; to a folder if it
    has `write_folder`.
    """

    name: str
    takes: frozenset[str]
    matches: Callable[[Checkpoint], bool]
    describe: Callable[[Checkpoint, PipelineOptions], Description]
    load: Callable[[Checkpoint, torch.device, torch.dtype, PipelineOptions], Model]
    settings: Callable[[Checkpoint, PipelineOptions], dict[str, Any]] | None = None
    write_folder: Callable[[Checkpoint, Path, PipelineOptions], Path] | None = None
