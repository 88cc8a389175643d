"""Models and distances by name: shipped models, checkpoints, pipelines, functions of one's own."""

import inspect
import os
import re
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path, PureWindowsPath
from types import ModuleType

import torch

from ld3 import zoo
from ld3.distances import DISTANCES, Distance
from ld3.errors import ModelError, SpecError, call_own, unknown
from ld3.images import is_image
from ld3.model_checks import check_model, contents, fingerprint, identity_of, identity_of_function
from ld3.models import Model, prior
from ld3.options import PipelineOptions
from ld3.store import digest as digest_of
from ld3.zoo.checkpoints.load import SUFFIXES, is_checkpoint, open_checkpoint
from ld3.zoo.lpips import load_lpips, lpips_is_here
from ld3.zoo.pipelines import of_pipeline
from ld3.zoo.pipelines.folder import damage_is_said, open_pipeline
from ld3.zoo.pipelines.model import PipelineModel

PIPELINE = "diffusers:"  # what names of pipelines begin with


@dataclass(frozen=True)
class Loaded:
    """A model with its names."""

    model: Model
    name: str
    digest: str  # of the weights, for plans
    identity: str  # of all that samples depend on but noise, times, solver and guidance
    conditions: str = ""
    options: PipelineOptions | None = None


@dataclass(frozen=True)
class Measure:
    """A distance with its names."""

    name: str
    distance: Distance
    identity: str
    reason: str = ""  # why `auto` took it

    @property
    def title(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


def load_model(
    name: str,
    device: str = "cpu",
    dtype: str | None = None,
    learn: bool = True,
    options: PipelineOptions | None = None,
) -> Loaded:
    """A shipped model by name, the file of a published checkpoint, `diffusers:` with a folder or a
    hub id, or `package.module:function` that returns a model.

    `options` are those of a pipeline or a checkpoint. A function is given `device` and `dtype` if
    it takes arguments of these names.
    """
    check_device(device)
    wanted = None if dtype is None else getattr(torch, dtype)
    if name.startswith(PIPELINE):
        return _load_pipeline(name, device, wanted, learn, options or PipelineOptions())
    if is_checkpoint(name):
        return _load_checkpoint(name, device, wanted, learn, options or PipelineOptions())
    if is_missing_file(name):
        raise ModelError(f"model: got {name}, which is no file, expected a checkpoint")
    if options is not None:
        raise SpecError(
            f"model: got {name} with {', '.join(options.said()) or 'options of a pipeline'}, "
            f"expected these only for {PIPELINE}PATH and for files"
        )
    if name in zoo.SHIPPED:
        card = zoo.SHIPPED[name]
        model: Model = zoo.load(name, device, wanted or torch.float32)
        return Loaded(model, name, card.digest, identity_of(model, device), card.conditions)
    return _load_function(name, device, wanted, learn)


def _load_function(name: str, device: str, dtype: torch.dtype | None, learn: bool) -> Loaded:
    """`package.module:function`, looked for in the current folder and among installed packages."""
    path = re.sub(r"^[A-Za-z]:(?=[/\\])", "", name)  # of Windows: the colon after the drive
    module, _, function = path.partition(":")
    if not function:
        if name.endswith(".py"):
            raise SpecError(
                f"model: got {name!r}, expected module:function, such as {_module_of(name)}:make"
            )
        hint = f" (a folder or hub id is {PIPELINE}{name})" if set("/\\") & set(name) else ""
        if os.path.lexists(name) and not hint:
            raise SpecError(
                f"model: got {name!r}, expected a file that ends in {', '.join(SUFFIXES)}; "
                f"a folder of a pipeline is {PIPELINE}{name}"
            )
        known = [*zoo.SHIPPED, "package.module:function", f"{PIPELINE}PATH", "FILE"]
        raise SpecError(f"{unknown('model', name, known)}{hint}")
    if module.endswith(".py") or set("/\\") & set(module):
        raise SpecError(
            f"model: got {name!r}, expected a module, not a path: {_module_of(module)}:{function}"
        )
    if not module or module.startswith("."):
        raise SpecError(
            f"model: got {name!r}, expected package.module:function, such as my_model:make"
        )
    sys.path.insert(0, "")
    try:
        own_module = _imported(name, module)
        make = getattr(own_module, function, None)
        if not callable(make):
            raise ModelError(
                f"model {name}: got no function {function!r} in {module}, expected "
                f"{_functions_of(own_module) or 'one that returns a model'}"
            )
        takes = inspect.signature(make).parameters
        given = {"device": device, **({"dtype": dtype} if dtype else {})}
        own = {key: value for key, value in given.items() if key in takes}
        model: Model = call_own(f"model {name}", make, **own)
    finally:
        sys.path.remove("")
    loaded = of_model(model, name, device, learn)
    if dtype is not None and model.dtype != dtype:
        raise SpecError(
            f"dtype: got {dtype}, but the model runs in {model.dtype}; let {function} take an "
            "argument dtype"
        )
    return loaded


def _imported(name: str, module: str) -> ModuleType:
    try:
        return call_own(f"model {name}", import_module, module)
    except ModelError as error:
        lacks = error.__cause__
        if isinstance(lacks, ModuleNotFoundError) and f"{module}.".startswith(f"{lacks.name}."):
            raise ModelError(
                f"model {name}: got no module {lacks.name!r}, expected {_file_of(module)} in the "
                "current folder or an installed package; `ld3 init my_model.py` writes a file to "
                "begin with"
            ) from error
        raise


def _file_of(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def _module_of(file: str) -> str:
    """The module of a file of Python: models/mine.py is models.mine; of files elsewhere the last
    name."""
    parts = PureWindowsPath(file.removesuffix(".py")).parts  # both kinds of slashes
    return ".".join(parts if all(part.isidentifier() for part in parts) else parts[-1:])


def _functions_of(module: ModuleType) -> str:
    """The functions that a module defines itself, the first five."""
    found = vars(module).items()
    names = [
        name
        for name, value in found
        if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]
    return " or ".join(names[:5])


def is_missing_file(name: str) -> bool:
    """Whether a name is that of a checkpoint which is not there."""
    return Path(name).suffix.lower() in SUFFIXES and not is_checkpoint(name)


def is_safe_to_open(name: str) -> bool:
    """Whether loading a model runs no code but ours and fetches nothing: one that is shipped, a
    file, or a folder here."""
    folder = name.removeprefix(PIPELINE)
    if PureWindowsPath(folder).drive.startswith("\\\\"):
        return False  # on Windows a name such as \\host\file connects to that host
    here = name.startswith(PIPELINE) and Path(folder).expanduser().is_dir()
    return name in zoo.SHIPPED or is_checkpoint(name) or here


def _load_checkpoint(
    name: str, device: str, dtype: torch.dtype | None, learn: bool, options: PipelineOptions
) -> Loaded:
    stamp = Path(name).expanduser().stat().st_mtime_ns
    whole = options.model_copy(update={"batch": PipelineOptions().batch})
    model, conditions = _opened_file(name, stamp, device, dtype, whole)
    said = None if whole == PipelineOptions() else options
    return of_model(model, name, device, learn, conditions, said)


@lru_cache(maxsize=1)
def _opened_file(
    name: str, stamp: int, device: str, dtype: torch.dtype | None, options: PipelineOptions
) -> tuple[Model, str]:
    """The model of a file, and its conditions as text; the last one stays open."""
    found, family = open_checkpoint(name, options)
    said = family.describe(found, options).conditions
    model = family.load(found, torch.device(device), dtype or torch.float32, options)
    return model, "" if said == "none" else said


def with_batch(
    options: PipelineOptions | None, batch: int | None, name: str
) -> PipelineOptions | None:
    """The options of a pipeline with another batch; of other models None stays None."""
    if batch is None or (options is None and not name.startswith(PIPELINE)):
        return options
    return (options or PipelineOptions()).model_copy(update={"batch": batch})


def _load_pipeline(
    name: str, device: str, dtype: torch.dtype | None, learn: bool, options: PipelineOptions
) -> Loaded:
    path = name.removeprefix(PIPELINE)
    files = Path(path).expanduser().rglob("*")
    stamp = max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0)
    whole = options.model_copy(update={"latents": False})
    model = replace(_opened(path, stamp, device, dtype, whole), latents=options.latents)
    if dtype not in (None, model.dtype):
        raise SpecError(f"dtype: got {dtype}, but the network was loaded in {model.dtype}")
    return of_model(model, name, device, learn, model.parts.conditions, options)


@lru_cache(maxsize=1)
def _opened(
    path: str, stamp: int, device: str, dtype: torch.dtype | None, options: PipelineOptions
) -> PipelineModel:
    """A pipeline of which network, decoder and embedded prompts are kept; the last one stays open,
    so that learning and the images after it hold large weights once."""
    pipe = open_pipeline(path, dtype)
    with damage_is_said(path):
        return of_pipeline(pipe, options, device)


def of_model(
    model: Model,
    name: str,
    device: str = "cpu",
    learn: bool = True,
    conditions: str = "",
    options: PipelineOptions | None = None,
) -> Loaded:
    """A model that is at hand, checked; with `learn` gradients are checked, too."""
    check_device(device)
    check_model(model, learn=learn, device=device)
    digest = fingerprint(model, device) if model.digest is None else model.digest
    return Loaded(model, name, digest, identity_of(model, device), conditions, options)


def check_device(device: str) -> None:
    """A device that is not there is said in one line."""
    try:
        if torch.empty(0, device=device).device.type == "meta":
            raise RuntimeError("meta holds no numbers")
    except Exception as error:  # of each kind of device another
        reason = str(error).splitlines()[0][:120]
        raise SpecError(f"device: got {device!r}, expected one that torch has ({reason})") from None


def make_measure(distance: str | Distance, loaded: Loaded, device: str = "cpu") -> Measure:
    """A distance by name, or one's own function (B, *S), (B, *S) -> (B,).

    `auto` is perceptual where it can be: for shipped models of images, and for images where the
    weights of LPIPS are on this machine; else l2. `perceptual` takes any model of 1x28x28 images,
    and `lpips-vgg:FILE` its weights from a file.
    """
    if not isinstance(distance, str):
        return _own_measure(distance, loaded.model, device)
    name, reason = _choose_distance(loaded, device) if distance == "auto" else (distance, "")
    if name == "perceptual" and (
        zoo.has_features(loaded.name) or loaded.model.shape == (1, 28, 28)
    ):
        known = f"perceptual {zoo.checksum('perceptual')}"
        return Measure(name, zoo.perceptual(device), known, reason)
    if name == "perceptual":
        raise SpecError(
            f"--distance: got perceptual for {loaded.name} of shape {list(loaded.model.shape)}, "
            "expected 1x28x28 images; take lpips-vgg for other images, or l2"
        )
    kind, _, file = name.partition(":")
    if kind in ("lpips-vgg", "lpips-alex"):
        lpips = load_lpips("vgg" if kind == "lpips-vgg" else "alex", file or None).to(device)
        return Measure(kind, lpips, f"{kind} {digest_of(contents(lpips))}", reason)
    if name == "chamfer" and (len(loaded.model.shape) != 2 or loaded.model.shape[-1] != 3):
        raise SpecError(
            f"--distance: got chamfer for {loaded.name} of shape {list(loaded.model.shape)}, "
            "expected point clouds (points, 3); take l2"
        )
    if name not in DISTANCES:
        raise unknown(
            "distance", name, ["auto", "perceptual", "lpips-alex", "lpips-vgg", *DISTANCES]
        )
    return Measure(name, DISTANCES[name], name, reason)


@torch.no_grad()
def _choose_distance(loaded: Loaded, device: str) -> tuple[str, str]:
    """The distance that `auto` stands for, and why."""
    own = zoo.SHIPPED[loaded.name].distance if loaded.name in zoo.SHIPPED else None
    if own is not None:
        return own, "the one of this model in the package"
    if not is_image(loaded.model.decode(prior(loaded.model, [0], device))):
        return "l2", "samples are no images"
    if lpips_is_here("vgg"):
        return "lpips-vgg", "samples are images, and the weights of LPIPS are here"
    return "l2", "no weights of LPIPS are here; --distance lpips-vgg:FILE takes them from a file"


@torch.no_grad()
def _own_measure(distance: Distance, model: Model, device: str) -> Measure:
    """Checked on two samples: one value each, finite, zero for equal samples."""
    x, y = (model.decode(prior(model, seeds, device)) for seeds in ((0, 1), (2, 3)))
    name = getattr(distance, "__name__", type(distance).__name__)
    found, same = distance(x, y), distance(x, x)
    if not isinstance(found, torch.Tensor) or found.shape != (2,):
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ModelError(
            f"distance {name}: got {got} for two samples, expected one value per sample, (2,)"
        )
    if not bool(torch.isfinite(found).all()) or bool((same.abs() > 1e-6 * found.abs().max()).any()):
        raise ModelError(
            f"distance {name}: got {found.tolist()} for two pairs and {same.tolist()} for equal "
            "samples, expected finite values and zero"
        )
    return Measure(name, distance, f"{name} {identity_of_function(distance, x, y)}")
