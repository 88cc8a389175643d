"""Models when they come in: does a model keep its contract, and which model is it?

Two names of a model. The *fingerprint* is coarse, the same on another machine, and stands in plans.
The *identity* is exact: it changes with anything that samples depend on, and names what is stored
on this machine.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import torch
from torch import Tensor, nn

from ld3.errors import ModelError, call_own
from ld3.models import Cond, Model, check_output, prior, to_network
from ld3.offloading import content_of
from ld3.predictions import PREDICTIONS
from ld3.schedule_json import schedule_to_json
from ld3.schedules import ends
from ld3.seeds import noise
from ld3.spaces import space_of
from ld3.store import digest, tensor_checksum

MEMBERS = (
    "schedule", "prediction", "shape", "dtype", "exact_time", "digest", "identity", "forward",
    "conditions", "null", "decode",
)  # fmt: skip
OF_SCHEDULE = ("t_min", "t_max", "prior_std", "log_alpha", "log_sigma", "lam", "time_at")
PROBES = (0, 1, 2, 3)  # seeds whose answers are measured
CONDITIONS = range(64)  # seeds whose conditions are compared
SHARES = (0.2, 0.5, 0.8)  # of the way from noise to data in lam
SAME = 0.02  # relative difference of two answers that rounding may make, in half precision on a GPU
DEPTH = 6  # of objects inside objects that are searched for tensors


def check_model(model: Model, *, learn: bool = True, device: torch.device | str = "cpu") -> None:
    """Two dry evaluations: shape, dtype, finite values, the same answer to the same input, and that
    a gradient reaches the time.

    Raises :class:`ModelError` with one line. `learn=False` leaves the gradient out, for models that
    only sample.
    """
    missing = _without(model, MEMBERS)
    if missing:
        raise ModelError(
            f"model: got {type(model).__name__} without {', '.join(missing)}, expected an "
            "ld3.FunctionModel around your network, or a class that inherits from "
            "ld3.models.ModelDefaults and has these"
        )
    if model.dtype is not None and not getattr(model.dtype, "is_floating_point", False):
        raise ModelError(
            f"model: got dtype {model.dtype!r}, expected that of its network: torch.float32, "
            "torch.float64, torch.bfloat16 or torch.float16"
        )
    if model.prediction not in PREDICTIONS:
        raise ModelError(
            f"model: got prediction {model.prediction!r}, expected one of {', '.join(PREDICTIONS)}"
        )
    if isinstance(model.schedule, type):
        raise ModelError(
            f"model: got the class {model.schedule.__name__} as its schedule, expected an object "
            "of it, such as ld3.EDM()"
        )
    missing = _without(model.schedule, OF_SCHEDULE)
    if missing:
        raise ModelError(
            f"model: got {type(model.schedule).__name__} as its schedule, without "
            f"{', '.join(missing)}; expected a schedule such as ld3.EDM()"
        )
    shape = model.shape
    if not isinstance(shape, Sequence) or not shape or not all(map(_is_size, shape)):
        raise ModelError(
            f"model: got shape {shape!r}, expected the sizes of one sample, such as (3, 32, 32)"
        )
    x = prior(model, [0, 1], device)
    middle = _time_at(model, 0.5)
    inner, told = to_network(model, x, middle)
    told.requires_grad_(learn)
    with torch.set_grad_enabled(learn):
        cond = call_own("model: conditions", model.conditions, [0, 1])
        _check_condition(cond, len(x))
        out = call_own("model", model.forward, inner, told, cond)
    check_output(out, x, space_of(model))
    if not bool(torch.isfinite(out).all()):
        raise ModelError(
            f"model: got NaN or infinite values at t = {middle:.4g}, expected finite; check the "
            "weights, the scale of x and the dtype"
        )
    with torch.no_grad():
        again = call_own("model", model.forward, inner, told, cond)
    if bool((again - out).float().norm() > SAME * out.float().norm()):
        raise ModelError(
            "model: got two different answers to the same input, expected one; switch dropout and "
            "noise off, such as by network.eval()"
        )
    sample = call_own("model: decode", model.decode, x)
    if not isinstance(sample, Tensor) or sample.ndim < 1 or len(sample) != len(x):
        got = tuple(sample.shape) if isinstance(sample, Tensor) else type(sample).__name__
        raise ModelError(f"model: decode: got {got} for two samples, expected a tensor (2, ...)")
    if not learn:
        return
    slope = None
    if out.requires_grad:
        probe = (out * noise([2, 3], out.shape[1:], out.dtype, device)).sum()
        slope = torch.autograd.grad(probe, told, allow_unused=True)[0]
    if slope is None or bool(slope == 0):
        raise ModelError(
            "model: got no gradient from the network's output to its time, expected one; do not "
            "round the time, look it up in a table by index or run the network under no_grad"
        )
    if not bool(torch.isfinite(slope)):
        raise ModelError(
            f"model: got a gradient in the time that is not finite at t = {middle:.4g}, "
            "expected finite"
        )


def _without(value: object, members: Sequence[str]) -> list[str]:
    """The members that a value does not have; looking at one may run code of the user."""
    return [name for name in members if not call_own(f"model: {name}", hasattr, value, name)]


def _is_size(value: object) -> bool:
    return isinstance(value, int) and value >= 1


def _check_condition(cond: Cond, count: int) -> None:
    for part in cond.values() if isinstance(cond, Mapping) else [cond]:
        if cond is not None and (not isinstance(part, Tensor) or len(part) != count):
            got = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
            raise ModelError(
                f"model: conditions: got {got} for {count} seeds, expected None, a tensor with "
                f"{count} rows, or a dictionary of such"
            )


@torch.no_grad()
def fingerprint(model: Model, device: torch.device | str = "cpu") -> str:
    """A name for the weights of a model that does not tell: what it answers, to three digits.

    Coarse enough to be the same on another machine, fine enough to notice other weights.
    """
    x = prior(model, [0, 1], device)
    answers = []
    for share in (0.3, 0.5, 0.7):
        inner, told = to_network(model, _nearer(model, x, share), _time_at(model, share))
        out = model.forward(inner, told, model.conditions([0, 1])).double()
        other = x if out.shape == x.shape else noise([0, 1], out.shape[1:], out.dtype, device)
        answers += [f"{out.square().mean().sqrt():.3g}", f"{(out * other).mean():.3g}"]
    return hashlib.sha256(" ".join(answers).encode()).hexdigest()[:16]


@torch.no_grad()
def identity_of(model: Model, device: torch.device | str = "cpu") -> str:
    """A name of everything that samples depend on but noise, times, solver and guidance.

    Schedule, prediction, shape and dtype; and what the model says of itself (`identity`). A model
    that says nothing is measured: the content of all tensors that can be found in it, its answers
    at several seeds, times and conditions, with and without the null condition, and its decoder.
    Answers count in full precision on the CPU, by one thread, and to four digits elsewhere.
    """
    own = model.identity if model.identity is not None else _measured(model, device)
    parts = [schedule_to_json(model.schedule), model.prediction, list(model.shape)]
    return digest([*parts, str(model.dtype), own])


def identity_of_function(function: Callable[..., Tensor], *inputs: Tensor) -> str:
    """A name of a function, such as a distance: its tensors, and its answer to some inputs."""
    with torch.no_grad(), _one_thread():
        return digest([contents(function), _number(function(*inputs))])


def contents(value: object) -> list[str]:
    """Checksums of all tensors in an object, its attributes, closures and bound arguments."""
    return [tensor_checksum({"": tensor}) for tensor in _tensors(value, set(), DEPTH)]


def _measured(model: Model, device: torch.device | str) -> str:
    x = prior(model, PROBES, device)
    cond = model.conditions(PROBES)
    conds: list[Cond] = [cond]
    if cond is not None:
        with suppress(ModelError):  # there is no null condition
            conds.append(model.null(cond))
    answers = []
    with _one_thread():
        for share in SHARES:
            inner, t = to_network(model, _nearer(model, x, share), _time_at(model, share))
            answers += [_number(model.forward(inner, t, each)) for each in conds]
        answers.append(_number(model.decode(_nearer(model, x, 0.5))))
    return digest([contents(model), contents(model.conditions(CONDITIONS)), answers])


def _number(answer: Tensor) -> str:
    """Of an answer: every bit on the CPU, four digits of two sums elsewhere."""
    if answer.device.type == "cpu":
        return tensor_checksum({"": answer})
    wide = answer.double()
    spread = torch.linspace(-1, 1, wide.numel(), dtype=torch.float64, device=wide.device)
    return f"{wide.square().mean().sqrt():.4g} {(wide.flatten() * spread).mean():.4g}"


@contextmanager
def _one_thread() -> Iterator[None]:
    """The order of sums, and so the last bits, must not depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _tensors(value: object, seen: set[int], depth: int) -> Iterator[Tensor]:
    """Tensors inside an object, in a fixed order; each object is visited once."""
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, nn.Module):
        state = value.state_dict(keep_vars=True)
        for name in sorted(state) if depth > 1 else ():
            if id(state[name]) not in seen and isinstance(state[name], Tensor):
                seen.add(id(state[name]))
                yield content_of(value, name, state[name])
        return
    for inner in _inside(value):
        yield from _tensors(inner, seen, depth - 1)


def _inside(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, type) or value is None or isinstance(value, str | int | float | bytes):
        return []
    inner: list[object] = []
    if hasattr(value, "__self__"):
        inner.append(value.__self__)
    code = getattr(value, "__code__", None)
    for cell in getattr(value, "__closure__", None) or ():
        try:
            inner.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    if code is not None:  # modules and tensors that a function takes from its surroundings
        around = getattr(value, "__globals__", {})
        inner += [around[name] for name in code.co_names if _is_network(around.get(name))]
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and code is None:
        inner += list(own.values())
    return inner


def _is_network(value: object) -> bool:
    return isinstance(value, Tensor | nn.Module)


def _nearer(model: Model, x: Tensor, share: float) -> Tensor:
    """x with its noise taken back by a share; states that are not vectors as they are."""
    return x * (1 - share) if space_of(model) is None else x


def _time_at(model: Model, share: float) -> Tensor:
    """The time at a share of the way from noise to data in lam."""
    first, last = model.schedule.lam(ends(model.schedule))
    return model.schedule.time_at(torch.lerp(first, last, share))
