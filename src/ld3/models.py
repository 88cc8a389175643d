"""Models: one pre-trained network each, with what sampling needs to know about it.

A model gives the raw output of its network at (x, t); :func:`bind` turns that once into the form
all solvers speak, `denoise(x, t) -> x0`, with the condition and classifier-free guidance inside:

    D = D_null + g (D_cond - D_null)            g = 1: the condition alone

One guided evaluation counts as one network evaluation (NFE), although it runs the network on two
batches.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as rematerialise

from ld3.errors import ModelError
from ld3.predictions import PREDICTIONS, Prediction, to_x0
from ld3.schedules import Schedule
from ld3.seeds import noise
from ld3.solvers.base import Denoise

Cond = Tensor | Mapping[str, Tensor] | None
"""A condition: tensors whose first dimension is the batch, or None."""


class Model(Protocol):
    """One pre-trained network."""

    @property
    def schedule(self) -> Schedule: ...
    @property
    def prediction(self) -> Prediction: ...
    @property
    def shape(self) -> tuple[int, ...]: ...  # of one x, without the batch
    @property
    def dtype(self) -> torch.dtype | None: ...  # of the network; None: takes any

    def forward(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        """The raw output at x (B, *shape) and time t ()."""
        ...

    def conditions(self, seeds: Sequence[int]) -> Cond:
        """The condition that goes with each seed; None for an unconditional model."""
        ...

    def null(self, cond: Cond) -> Cond:
        """The empty condition of the same batch size, for guidance."""
        ...

    def decode(self, x: Tensor) -> Tensor:
        """From the space of x to that of samples: the identity but for latent models."""
        ...


class Unconditional:
    """The part of a model that has neither conditions nor a decoder."""

    def conditions(self, seeds: Sequence[int]) -> Cond:
        return None

    def null(self, cond: Cond) -> Cond:
        raise ModelError("guidance: got a model without a null condition, wanted guidance 1")

    def decode(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class FunctionModel(Unconditional):
    """A model made of functions: the short way to bring a network of your own.

    `function(x, t, cond)` is the network; the rest has the meaning it has in :class:`Model`.
    """

    function: Callable[[Tensor, Tensor, Cond], Tensor]
    schedule: Schedule
    prediction: Prediction
    shape: tuple[int, ...]
    dtype: torch.dtype | None = torch.float32
    make_conditions: Callable[[Sequence[int]], Cond] | None = None
    make_null: Callable[[Cond], Cond] | None = None
    decoder: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        return self.function(x, t, cond)

    def conditions(self, seeds: Sequence[int]) -> Cond:
        return None if self.make_conditions is None else self.make_conditions(seeds)

    def null(self, cond: Cond) -> Cond:
        return super().null(cond) if self.make_null is None else self.make_null(cond)

    def decode(self, x: Tensor) -> Tensor:
        return x if self.decoder is None else self.decoder(x)


def bind_network(
    model: Model,
    cond: Cond = None,
    *,
    guidance: float = 1.0,
    guide_by: Literal["batch", "calls"] = "batch",
    checkpoint: bool = False,
) -> Denoise:
    """Close a model over its condition: (x, t) -> the network's own output, in the dtype of x.

    Guidance other than 1 runs the network on a batch of 2B (`guide_by="batch"`, fast) or twice on B
    (`"calls"`, less memory). `checkpoint=True` keeps only x and t of each call and runs the network
    again for the gradients, so that memory does not grow with the number of steps; the network must
    be deterministic (in eval mode).
    """
    null = model.null(cond) if guidance != 1 else None
    both = _cat(cond, null) if guidance != 1 and guide_by == "batch" else None

    def guided(x: Tensor, t: Tensor) -> Tensor:
        if guidance == 1:
            return model.forward(x, t, cond)
        if guide_by == "batch":
            with_cond, without = model.forward(torch.cat([x, x]), t, both).chunk(2)
        else:
            with_cond, without = model.forward(x, t, cond), model.forward(x, t, null)
        return torch.lerp(without, with_cond, guidance)

    def network(x: Tensor, t: Tensor) -> Tensor:
        inner, told = _to_network(model, x, t)
        if checkpoint and torch.is_grad_enabled():
            out: Tensor = rematerialise(
                guided, inner, told, use_reentrant=False, preserve_rng_state=False
            )
        else:
            out = guided(inner, told)
        _check_output(out, x)
        return out.to(x.dtype)

    return network


def bind(
    model: Model,
    cond: Cond = None,
    *,
    guidance: float = 1.0,
    guide_by: Literal["batch", "calls"] = "batch",
    checkpoint: bool = False,
) -> Denoise:
    """Like :func:`bind_network`, but with the output turned into x0: what solvers ask for."""
    network = bind_network(model, cond, guidance=guidance, guide_by=guide_by, checkpoint=checkpoint)

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        out = network(x, t)
        if model.prediction == "x0":
            return out
        alpha, sigma = model.schedule.log_alpha(t).exp(), model.schedule.log_sigma(t).exp()
        return to_x0(model.prediction, out, x, alpha, sigma)

    return denoise


class CountedDenoise:
    """A denoiser that counts its evaluations."""

    def __init__(self, denoise: Denoise) -> None:
        self._denoise = denoise
        self.calls = 0

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        self.calls += 1
        return self._denoise(x, t)


def count_calls(denoise: Denoise) -> CountedDenoise:
    """Count network evaluations: `counted.calls` after use. A guided evaluation counts once."""
    return CountedDenoise(denoise)


def prior(model: Model, seeds: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """x at t_max for these seeds: noise in the spread the model starts from."""
    dtype = (
        torch.float32 if model.dtype is None else torch.promote_types(model.dtype, torch.float32)
    )
    return model.schedule.prior_std * noise(seeds, model.shape, dtype, device)


def check_model(model: Model, *, learn: bool = True, device: torch.device | str = "cpu") -> None:
    """One dry evaluation at the door: shape, dtype, finite, and that a gradient reaches the time.

    Raises :class:`ModelError` with one line. `learn=False` leaves the gradient out, for models that
    only sample.
    """
    if model.prediction not in PREDICTIONS:
        raise ModelError(
            f"model: got prediction {model.prediction!r}, wanted one of {', '.join(PREDICTIONS)}"
        )
    x = prior(model, [0, 1], device)
    ends = torch.tensor(
        [model.schedule.t_min, model.schedule.t_max], dtype=torch.float64, device="cpu"
    )
    middle = model.schedule.time_at(model.schedule.lam(ends).mean())
    inner, told = _to_network(model, x, middle)
    told.requires_grad_(learn)
    with torch.set_grad_enabled(learn):
        out = model.forward(inner, told, model.conditions([0, 1]))
    _check_output(out, x)
    if not bool(torch.isfinite(out).all()):
        raise ModelError(
            f"model: got NaN or infinite values at t = {middle:.4g}, wanted finite; check the "
            "weights, the scale of x and the dtype"
        )
    if not learn:
        return
    slope = None
    if out.requires_grad:
        probe = (out * noise([2, 3], model.shape, out.dtype, device)).sum()
        slope = torch.autograd.grad(probe, told, allow_unused=True)[0]
    if slope is None or bool(slope == 0):
        raise ModelError(
            "model: got no gradient from the network's output to its time, wanted one; do not "
            "round the time, look it up in a table by index or run the network under no_grad"
        )
    if not bool(torch.isfinite(slope)):
        raise ModelError(
            f"model: got a gradient in the time that is not finite at t = {middle:.4g}, "
            "wanted finite"
        )


@torch.no_grad()
def fingerprint(model: Model, device: torch.device | str = "cpu") -> str:
    """A name for the weights of a model that does not tell: what it answers, to three digits.

    Coarse enough to be the same on another machine, fine enough to notice other weights.
    """
    x = prior(model, [0, 1], device)
    ends = torch.tensor(
        [model.schedule.t_max, model.schedule.t_min], dtype=torch.float64, device="cpu"
    )
    first, last = model.schedule.lam(ends)
    answers = []
    for share in (0.3, 0.5, 0.7):
        t = model.schedule.time_at(torch.lerp(first, last, share))
        inner, told = _to_network(model, x * (1 - share), t)
        out = model.forward(inner, told, model.conditions([0, 1])).double()
        answers += [f"{out.square().mean().sqrt():.3g}", f"{(out * x).mean():.3g}"]
    return hashlib.sha256(" ".join(answers).encode()).hexdigest()[:16]


def _to_network(model: Model, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """x in the network's dtype, t beside it in at least float32; as it is, in float64, for a model
    that says `exact_time`, because it turns t into something larger first."""
    inner = x if model.dtype is None else x.to(model.dtype)
    if getattr(model, "exact_time", False):
        return inner, t
    return inner, t.to(x.device, torch.promote_types(inner.dtype, torch.float32))


def _check_output(out: Tensor, x: Tensor) -> None:
    if out.shape != x.shape:
        raise ModelError(
            f"model: got an output of shape {tuple(out.shape)} for x of shape {tuple(x.shape)}, "
            "wanted the same; a network with learned variance returns twice the channels: keep the "
            "first half"
        )
    if not out.is_floating_point():
        raise ModelError(f"model: got an output of dtype {out.dtype}, wanted floating point")


def _cat(a: Cond, b: Cond) -> Cond:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.cat([a, b])
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return {name: torch.cat([a[name], b[name]]) for name in a}
    raise ModelError("guidance: the null condition is of another kind than the condition")
