"""Pipelines from disk or from the Hugging Face Hub, without running anything that comes with them.

`model_index.json` is read first: the class must be a family, and each part must be a class of
diffusers or transformers. Folders may hold other code; it is never imported. Weights are
safetensors.

A scheduler may also be `LD3Scheduler`, so that a pipeline saved with a plan can be learned from
again: the noise schedule is then the plan's.

InstaFlow is published with a class of its own, `RectifiedFlowPipeline`, around the parts of Stable
Diffusion. It is opened as a `StableDiffusionPipeline` of that name.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ld3.errors import NO_MEMORY, Ld3Error, ModelError, SpecError, import_extra, is_out_of_memory
from ld3.store import read_json
from ld3.zoo.pipelines import FAMILIES, unsupported
from ld3.zoo.pipelines.class_latents import ClassLatentPipeline

HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
LIBRARIES = ("diffusers", "transformers")
OURS = ["ld3.diffusers", "LD3Scheduler"]  # the one scheduler that is not diffusers'
UNUSED = ("safety_checker", "feature_extractor", "image_encoder")
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}


def open_pipeline(name: str, dtype: torch.dtype | None = None) -> Any:
    """The pipeline in a folder, or of a hub id (`owner/name`, `owner/name@revision`), on the CPU.

    Without a dtype it is float32.
    """
    diffusers = import_extra("diffusers", "model: a pipeline wants the package diffusers")
    path = Path(name).expanduser()
    folder = path if path.exists() else _fetched(diffusers, name)
    index = _index(folder, name)
    kind = index["_class_name"]
    if index.get("scheduler") == OURS:
        import_module(OURS[0])  # diffusers imports no module because an index names it
    given: dict[str, Any] = {part: None for part in UNUSED if part in index}
    if "requires_safety_checker" in index:
        given["requires_safety_checker"] = False
    version = tuple(int(part) for part in diffusers.__version__.split(".")[:2])
    given["dtype" if version >= (0, 40) else "torch_dtype"] = dtype or torch.float32
    with hushed(), damage_is_said(name):
        try:
            return _class(diffusers, kind).from_pretrained(
                str(folder), use_safetensors=True, local_files_only=True, **given
            )
        except ImportError as error:
            raise SpecError(
                f"diffusers:{name}: {kind} wants a package that is not there ({_line(error)}); "
                "pip install 'ld3[diffusers]'"
            ) from None


@contextmanager
def damage_is_said(name: str) -> Iterator[None]:
    """Configs of a folder that do not fit make diffusers, torch and our readers fail in any way."""
    try:
        yield
    except Ld3Error:
        raise
    except Exception as error:
        reason = NO_MEMORY if is_out_of_memory(error) else _line(error)
        raise ModelError(f"diffusers:{name}: cannot be loaded ({reason})") from error


def _class(diffusers: Any, kind: str) -> Any:
    """The class of a family by its name: one of diffusers, or ours."""
    if kind == ClassLatentPipeline.__name__:
        return ClassLatentPipeline
    if FAMILIES[kind].rectified:
        return type(kind, (diffusers.StableDiffusionPipeline,), {})
    return getattr(diffusers, kind)


def _fetched(diffusers: Any, name: str) -> Path:
    """The folder of a hub id, downloaded if need be and if there is a network."""
    found = HUB_ID.fullmatch(name)
    if found is None or name.startswith("."):
        raise ModelError(
            f"diffusers:{name}: no such folder; expected a folder with model_index.json, or a hub "
            "id such as owner/name"
        )
    with hushed():
        given: dict[str, Any] = {"use_safetensors": True, "trust_remote_code": False}
        given["revision"] = found["revision"]
        try:
            try:
                return Path(diffusers.DiffusionPipeline.download(found["repo"], **given))
            except AttributeError:  # a class that diffusers does not have: InstaFlow's
                return Path(diffusers.StableDiffusionPipeline.download(found["repo"], **given))
        except Exception as error:  # the hub has many, of several packages
            raise ModelError(
                f"diffusers:{name}: got neither a folder nor a pipeline in the cache of the hub, "
                f"and it cannot be fetched ({type(error).__name__}): no network, HF_HUB_OFFLINE, "
                "no such name or no access; download it elsewhere and give the folder"
            ) from None


def _index(folder: Path, name: str) -> Mapping[str, Any]:
    """model_index.json, if it names nothing but known classes and the weights are no pickles."""
    if folder.is_file():
        raise ModelError(
            f"diffusers:{name}: got a file, expected a folder with model_index.json; a checkpoint "
            "of one file is a model by its name alone, without diffusers:"
        )
    try:
        index: dict[str, Any] = read_json(folder / "model_index.json")
    except Ld3Error as error:
        raise ModelError(f"diffusers:{name}: expected a folder of a pipeline; {error}") from None
    index = index if isinstance(index, dict) else {}
    kind = index.get("_class_name")
    if not isinstance(kind, str):
        raise ModelError(
            f"diffusers:{name}: got the pipeline {kind!r}, expected the name of one of diffusers' "
            "own; code in a folder is never run"
        )
    if kind not in FAMILIES:
        raise unsupported(kind)
    for part, value in index.items():
        if part.startswith("_") or part in UNUSED or not isinstance(value, list):
            continue
        if part == "scheduler" and value == OURS:
            continue
        library = value[0] if value else None
        if library not in (None, *LIBRARIES):
            raise ModelError(
                f"diffusers:{name}: got a {part} from {library!r}, expected one of "
                f"{' or '.join(LIBRARIES)}; code in a folder is never run"
            )
        files = {file.suffix for file in (folder / part).glob("*") if file.is_file()}
        if files & PICKLES and ".safetensors" not in files:
            raise ModelError(
                f"diffusers:{name}: got pickled weights of {part}, expected safetensors; pickles "
                "can run code and are never opened: save the pipeline again with "
                "safe_serialization=True"
            )
    return index


@contextmanager
def hushed() -> Iterator[None]:
    """Without the chatter of both packages, errors included, which they also raise; bars only on a
    terminal."""
    talkers = []
    for name in LIBRARIES:
        with suppress(ImportError):
            talkers.append(import_module(f"{name}.utils.logging"))
    levels = [talker.get_verbosity() for talker in talkers]
    bars = [] if sys.stderr.isatty() else talkers
    try:
        for talker in talkers:
            talker.set_verbosity(logging.CRITICAL)
        for bar in bars:
            bar.disable_progress_bar()
        yield
    finally:
        for bar in bars:
            bar.enable_progress_bar()
        for talker, level in zip(talkers, levels, strict=True):
            talker.set_verbosity(level)


def _line(error: BaseException) -> str:
    """The first line of a message, and the second where the first leads to it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])[:300]
