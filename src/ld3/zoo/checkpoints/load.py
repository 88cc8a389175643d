"""Checkpoints as models: which family a file belongs to, by its content, and what can be done."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ld3.errors import ModelError, SpecError
from ld3.models import Model
from ld3.options import PipelineOptions
from ld3.store import write_parts
from ld3.zoo.checkpoints import dmpg, edm_files, latent, openai_files
from ld3.zoo.checkpoints.families import Description, Family
from ld3.zoo.checkpoints.reader import read_checkpoint
from ld3.zoo.checkpoints.safetensors_files import CONFIG, SAFE_DTYPES
from ld3.zoo.checkpoints.tensors import Checkpoint

SUFFIXES = (".pkl", ".pt", ".pth", ".ckpt", ".safetensors")
FAMILIES: tuple[Family, ...] = (
    edm_files.FAMILY,
    openai_files.FAMILY,
    latent.FAMILY,
    dmpg.FAMILY,
)


def is_checkpoint(name: str) -> bool:
    """Whether a name of a model is a file that may be a checkpoint."""
    return Path(name).suffix.lower() in SUFFIXES and Path(name).expanduser().is_file()


def _flags(options: Iterable[str]) -> str:
    """Options of a pipeline as on the command line."""
    other = {"classes": "label", "prompts": "prompt", "height": "resolution", "width": "resolution"}
    names = {other.get(option, option).replace("_", "-") for option in options}
    return ", ".join(f"--{name}" for name in sorted(names))


def recognise(found: Checkpoint, options: PipelineOptions) -> Family:
    """The family of a file, by its content; options that mean nothing to it are refused."""
    for family in FAMILIES:
        if family.matches(found):
            idle = set(options.said()) - family.takes - {"batch"}
            if idle:
                raise SpecError(
                    f"{_flags(idle)}: got an option that a file of {family.name} does not take, "
                    f"expected {_flags(family.takes) or 'none'}; leave it out"
                )
            return family
    some = ", ".join(list(found.tensors)[:2])
    raise ModelError(
        f"{found.path}: got {len(found.tensors)} tensors of an unknown network ({some[:120]}, ...),"
        f" expected one of {', '.join(family.name for family in FAMILIES)}; write the network as a "
        "function of your own (docs/models.md)"
    )


def load_checkpoint(
    path: Path | str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    options: PipelineOptions | None = None,
) -> Model:
    """A published checkpoint as a model; nothing in the file is run.

    `dtype` is that of the network, float32 by default. `options` has `classes`, `net_time`,
    `config` and `clamp` for these files.
    """
    said = options or PipelineOptions()
    found, family = open_checkpoint(path, said)
    return family.load(found, torch.device(device), dtype or torch.float32, said)


def open_checkpoint(path: Path | str, options: PipelineOptions) -> tuple[Checkpoint, Family]:
    """A file and its family; its tensors stay unread."""
    found = read_checkpoint(Path(path).expanduser())
    return found, recognise(found, options)


def describe_checkpoint(
    path: Path | str, options: PipelineOptions | None = None
) -> tuple[Checkpoint, Description]:
    """What a file is: its tensors stay unread."""
    said = options or PipelineOptions()
    found, family = open_checkpoint(path, said)
    return found, family.describe(found, said)


def inspect_checkpoint(path: Path | str, options: PipelineOptions | None = None) -> dict[str, Any]:
    """What `ld3 inspect` prints, as JSON."""
    found, told = describe_checkpoint(path, options)
    dtypes = sorted({str(found.tensors.dtype(n)).removeprefix("torch.") for n in found.tensors})
    return {
        "file": str(found.path),
        "format": found.kind,
        "bytes": found.size,
        "sha256": found.sha256,
        **asdict(told),
        "shape": list(told.shape),
        "notes": list(told.notes),
        "tensors": len(found.tensors),
        "dtypes": dtypes,
        "left_as_names": list(found.ignored),
    }


def convert_checkpoint(
    path: Path | str, out: Path | str, options: PipelineOptions | None = None
) -> Path:
    """Write a checkpoint as safetensors, its configuration inside; tensors pass one at a time.

    The tensors are those of the file, so that the converted file is the same model. A family may
    write a folder instead, where OUT has no suffix.
    """
    said = options or PipelineOptions()
    (found, family), out = open_checkpoint(path, said), Path(out).expanduser()
    family.describe(found, said)  # refuses names and shapes that do not fit
    if out.exists() and os.path.samefile(out, found.path):
        raise SpecError(f"OUT: got {out}, which is the file to convert, expected another name")
    if family.write_folder is not None and not out.suffix:
        return family.write_folder(found, out, said)
    if family.settings is None or out.suffix != ".safetensors":
        forms = [".safetensors"] * (family.settings is not None)
        forms += ["no suffix, for a folder"] * (family.write_folder is not None)
        raise SpecError(f"OUT: got {out}, expected a name that ends in {' or '.join(forms)}")
    words = {**family.settings(found, said), "source_sha256": found.sha256}
    write_parts(out, _parts(found, words))
    return out


def _parts(found: Checkpoint, config: dict[str, Any]) -> Iterator[bytes | memoryview]:
    """A safetensors file in parts: header, then tensors in the order of their names."""
    codes = {dtype: code for code, dtype in SAFE_DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {CONFIG: json.dumps(config, sort_keys=True)}}
    place = 0
    for name in sorted(found.tensors):
        entry = found.tensors.entries[name]
        size = entry.numel * entry.dtype.itemsize
        header[name] = {
            "dtype": codes[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [place, place + size],
        }
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in found.tensors.each():
        yield tensor.reshape(-1).view(torch.uint8).numpy().data
