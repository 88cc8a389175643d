"""Models and distances by name: shipped ones, and a function of one's own."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch

from ld3 import zoo
from ld3.distances import DISTANCES, Distance
from ld3.errors import ModelError, SpecError, unknown
from ld3.lpips import load_lpips
from ld3.models import Model, check_model, fingerprint


@dataclass(frozen=True)
class Loaded:
    """A model with its name and the digest of its weights."""

    model: Model
    name: str
    digest: str
    conditions: str


def load_model(
    name: str, device: str = "cpu", dtype: str | None = None, learn: bool = True
) -> Loaded:
    """A shipped model by name, or `package.module:function` that returns a model.

    The function is given `device` and `dtype` if it takes arguments of these names.
    """
    wanted = None if dtype is None else getattr(torch, dtype)
    if name in zoo.SHIPPED:
        card = zoo.SHIPPED[name]
        model: Model = zoo.load(name, device, wanted or torch.float32)
        return Loaded(model, name, card.digest, card.conditions)
    module, _, function = name.partition(":")
    if not function:
        raise unknown("model", name, [*zoo.SHIPPED, "package.module:function"])
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


def of_model(model: Model, name: str, device: str = "cpu", learn: bool = True) -> Loaded:
    """A model of one's own, tried at the door. Its weights are named by its attribute `digest`, or
    else by what it answers. `learn` asks for gradients, too."""
    check_model(model, learn=learn, device=device)
    return Loaded(model, name, getattr(model, "digest", None) or fingerprint(model, device), "")


def make_distance(name: str, loaded: Loaded) -> Distance:
    """By name; `auto` is perceptual for shipped models and l2 for all others;
    `perceptual` takes any model of 1x28x28 pictures."""
    shipped = loaded.name in zoo.SHIPPED
    if name == "auto":
        name = "perceptual" if shipped else "l2"
    if name == "perceptual" and (shipped or loaded.model.shape == (1, 28, 28)):
        return zoo.perceptual()
    if name in ("lpips-vgg", "lpips-alex"):
        return load_lpips("vgg" if name == "lpips-vgg" else "alex")
    if name not in DISTANCES:
        raise unknown("distance", name, ["auto", "lpips-alex", "lpips-vgg", *DISTANCES])
    return DISTANCES[name]
