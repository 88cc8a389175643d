"""Models and distances by name: shipped ones, diffusers pipelines, and a function of one's own."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import torch

from ld3 import zoo
from ld3.distances import DISTANCES, Distance
from ld3.distances.lpips import load_lpips
from ld3.errors import ModelError, SpecError, unknown
from ld3.models import Model, check_model, fingerprint
from ld3.options import PipelineOptions
from ld3.zoo.pipelines import of_pipeline
from ld3.zoo.pipelines.folder import open_pipeline
from ld3.zoo.pipelines.model import PipelineModel

PIPELINE = "diffusers:"  # what names of pipelines begin with


@dataclass(frozen=True)
class Loaded:
    """A model with its name and the digest of its weights."""

    model: Model
    name: str
    digest: str
    conditions: str
    options: PipelineOptions | None = None

    @property
    def identity(self) -> str:
        """Of all that samples depend on but noise and times: weights, and what is asked of them."""
        return str(getattr(self.model, "identity", self.digest))


def load_model(
    name: str,
    device: str = "cpu",
    dtype: str | None = None,
    learn: bool = True,
    options: PipelineOptions | None = None,
) -> Loaded:
    """A shipped model by name, `diffusers:` with a folder or a hub id, or `package.module:function`
    that returns a model.

    `options` are those of a pipeline. A function is given `device` and `dtype` if it takes
    arguments of these names.
    """
    check_device(device)
    wanted = None if dtype is None else getattr(torch, dtype)
    if name.startswith(PIPELINE):
        return _load_pipeline(name, device, wanted, learn, options or PipelineOptions())
    if options is not None:
        raise SpecError(
            f"model: got {name} with {', '.join(options.said()) or 'options of a pipeline'}, "
            f"wanted these only for {PIPELINE}PATH"
        )
    if name in zoo.SHIPPED:
        card = zoo.SHIPPED[name]
        model: Model = zoo.load(name, device, wanted or torch.float32)
        return Loaded(model, name, card.digest, card.conditions)
    module, _, function = name.partition(":")
    if not function:
        raise unknown("model", name, [*zoo.SHIPPED, "package.module:function", f"{PIPELINE}PATH"])
    sys.path.insert(0, "")
    try:
        make: Callable[..., Model] = getattr(import_module(module), function)
        takes = inspect.signature(make).parameters
        given = {"device": device, **({"dtype": wanted} if wanted else {})}
        model = make(**{key: value for key, value in given.items() if key in takes})
    except (ImportError, AttributeError) as error:
        raise ModelError(f"model {name}: {error}") from None
    finally:
        sys.path.remove("")
    loaded = of_model(model, name, device, learn)
    if wanted is not None and model.dtype != wanted:
        raise SpecError(
            f"dtype: got {dtype}, but the model runs in {model.dtype}; let {function} take an "
            "argument dtype"
        )
    return loaded


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
    check_model(model, learn=learn, device=device)
    return Loaded(model, name, model.digest, model.parts.conditions, options)


@lru_cache(maxsize=1)
def _opened(
    path: str, stamp: int, device: str, dtype: torch.dtype | None, options: PipelineOptions
) -> PipelineModel:
    """A pipeline of which network, decoder and embedded prompts are kept; the last one stays open,
    so that learning and the pictures after it hold large weights once."""
    return of_pipeline(open_pipeline(path, dtype), options, device)


def of_model(model: Model, name: str, device: str = "cpu", learn: bool = True) -> Loaded:
    """A model of one's own, tried at the door. Its weights are named by its attribute `digest`, or
    else by what it answers. `learn` asks for gradients, too."""
    check_device(device)
    check_model(model, learn=learn, device=device)
    return Loaded(model, name, getattr(model, "digest", None) or fingerprint(model, device), "")


def check_device(device: str) -> None:
    """A device that is not there is said in one line."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0][:120]
        raise SpecError(f"device: got {device!r}, wanted one that torch has ({reason})") from None


def make_distance(name: str, loaded: Loaded, device: str = "cpu") -> Distance:
    """By name; `auto` is perceptual for shipped models and l2 for all others;
    `perceptual` takes any model of 1x28x28 pictures."""
    shipped = loaded.name in zoo.SHIPPED
    if name == "auto":
        name = "perceptual" if shipped else "l2"
    if name == "perceptual" and (shipped or loaded.model.shape == (1, 28, 28)):
        return zoo.perceptual(device)
    if name in ("lpips-vgg", "lpips-alex"):
        return load_lpips("vgg" if name == "lpips-vgg" else "alex").to(device)
    if name not in DISTANCES:
        raise unknown("distance", name, ["auto", "lpips-alex", "lpips-vgg", *DISTANCES])
    return DISTANCES[name]
