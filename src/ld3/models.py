"""Models: one pre-trained network each, with what sampling needs to know about it.

A model gives the raw output of its network at (x, t); :func:`bind` turns that once into the form
all solvers speak, `denoise(x, t) -> x0`, with the condition and classifier-free guidance inside:

    D = D_null + g (D_cond - D_null)            g = 1: the condition alone

One guided evaluation counts as one network evaluation (NFE), although it runs the network on two
batches. These are its two *passes*. :func:`bind_passes` keeps them apart, for plans that leave some
of them out.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as rematerialise

from ld3.errors import ModelError, call_own
from ld3.predictions import Prediction, to_x0
from ld3.schedules import Schedule
from ld3.seeds import noise
from ld3.solvers.base import Denoise
from ld3.spaces import Space, space_of
from ld3.store import digest

Cond = Tensor | Mapping[str, Tensor] | None
"""A condition: tensors whose first dimension is the batch, or None."""


class _Meter:
    """Reports network evaluations on one sample to listeners; with gradients three each."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[float], None]] = []
        self._samples = self._told = 0.0  # of the evaluation that runs

    def begin(self, samples: int) -> None:
        self._samples, self._told = samples * (3.0 if torch.is_grad_enabled() else 1.0), 0.0

    def tell(self, share: float) -> None:
        """So much of the evaluation is done."""
        count, self._told = share * self._samples - self._told, share * self._samples
        if count > 0:
            for listen in self.listeners:
                listen(count)

    def end(self) -> None:
        self.tell(1.0)
        self._samples = self._told = 0.0


METER = _Meter()


@contextmanager
def on_evaluation(listen: Callable[[float], None]) -> Iterator[None]:
    """Call `listen` with the number of samples, while inside, whenever a network was evaluated."""
    METER.listeners.append(listen)
    try:
        yield
    finally:
        METER.listeners.remove(listen)


class Model(Protocol):
    """One pre-trained network.

    A model whose states are not vectors also has `space`, a :class:`ld3.spaces.Space`; its network
    predicts eps, as a tangent. `shape` is then that of the noise.
    """

    @property
    def schedule(self) -> Schedule: ...
    @property
    def prediction(self) -> Prediction: ...
    @property
    def shape(self) -> tuple[int, ...]: ...  # of one x, without the batch
    @property
    def dtype(self) -> torch.dtype | None: ...  # of the network; None: takes any
    @property
    def exact_time(self) -> bool: ...  # t is passed on in float64, because the model scales it
    @property
    def digest(self) -> str | None: ...  # a short name of the weights for plans; None: measured
    @property
    def identity(self) -> str | None: ...  # of weights, conditions and decoder; None: measured

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


class ModelDefaults:
    """What a model has unless it says otherwise: inherit from it and write the rest of
    :class:`Model`, at least `schedule`, `prediction`, `shape`, `dtype` and `forward`."""

    exact_time: ClassVar[bool] = False
    digest: ClassVar[str | None] = None
    identity: ClassVar[str | None] = None
    space: ClassVar[Space | None] = None

    def conditions(self, seeds: Sequence[int]) -> Cond:
        return None

    def null(self, cond: Cond) -> Cond:
        raise ModelError("guidance: got a model without a null condition, expected guidance 1")

    def decode(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class FunctionModel(ModelDefaults):
    """A model made of functions: the short way to bring a network of your own.

    `function(x, t, cond)` is the network; the rest has the meaning it has in :class:`Model`. What
    the others raise becomes a :class:`ModelError` here, what the network raises in
    :func:`bind_network`.
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
        make = self.make_conditions
        return None if make is None else call_own("model: conditions", make, seeds)

    def null(self, cond: Cond) -> Cond:
        make = self.make_null
        return super().null(cond) if make is None else call_own("model: null", make, cond)

    def decode(self, x: Tensor) -> Tensor:
        return x if self.decoder is None else call_own("model: decode", self.decoder, x)


@dataclass(frozen=True)
class ClampedModel:
    """A model whose data estimate is clamped, x0 -> min(max(x0, low), high), at every evaluation.

    DDIM as OpenAI's repositories run it clamps to [-1, 1] by default and takes the noise estimate
    from the clamped x0; with this model every solver does. Where the clamp acts, x0 is constant:
    the gradients with respect to x, time and network time are zero there, so learning gets no
    signal from these pixels. The originals clamp after guidance, so guidance must be 1 here.
    """

    model: Model
    low: float = -1.0
    high: float = 1.0
    prediction: ClassVar[Prediction] = "x0"
    exact_time: ClassVar[bool] = True  # alpha and sigma are taken at t in float64

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ModelError(f"clamp: got {self.low} to {self.high}, expected low below high")

    @property
    def schedule(self) -> Schedule:
        return self.model.schedule

    @property
    def shape(self) -> tuple[int, ...]:
        return self.model.shape

    @property
    def dtype(self) -> torch.dtype | None:
        return self.model.dtype

    @property
    def digest(self) -> str | None:
        return self._named(self.model.digest)

    @property
    def identity(self) -> str | None:
        return self._named(self.model.identity)

    def forward(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        inner, told = to_network(self.model, x, t)
        out = self.model.forward(inner, told, cond)
        check_output(out, x)
        x0 = _to_x0(self.model, out.to(torch.promote_types(x.dtype, torch.float32)), x, t)
        return x0.clamp(self.low, self.high)

    def conditions(self, seeds: Sequence[int]) -> Cond:
        return self.model.conditions(seeds)

    def null(self, cond: Cond) -> Cond:
        raise ModelError(
            "guidance: got a model with clamped x0, expected guidance 1; a clamp comes after "
            "guidance, and this model clamps before it"
        )

    def decode(self, x: Tensor) -> Tensor:
        return self.model.decode(x)

    def _named(self, name: str | None) -> str | None:
        return None if name is None else digest([name, "clamped", self.low, self.high])


def _to_x0(model: Model, out: Tensor, x: Tensor, t: Tensor) -> Tensor:
    if model.prediction == "x0" or space_of(model) is not None:
        return out
    alpha, sigma = model.schedule.log_alpha(t).exp(), model.schedule.log_sigma(t).exp()
    return to_x0(model.prediction, out, x, alpha, sigma)


def bind_network(
    model: Model,
    cond: Cond = None,
    *,
    guidance: float = 1.0,
    guide_by: Literal["batch", "calls"] = "batch",
    checkpoint: bool = False,
    both: bool = False,
) -> Denoise:
    """Close a model over its condition: (x, t) -> the network's own output, in the dtype of x.

    Guidance other than 1 runs the network on a batch of 2B (`guide_by="batch"`, fast) or twice on B
    (`"calls"`, less memory). `checkpoint=True` keeps only x and t of each call and runs the network
    again for the gradients, so that memory does not grow with the number of steps; the network must
    be deterministic (in eval mode). `both=True` gives (2, B, *S): the output with the condition,
    and what guidance adds to it.
    """
    guide = getattr(model, "guide", torch.lerp)  # a model may have a rule of its own
    null = model.null(cond) if guidance != 1 else None
    joined = _cat(cond, null) if guidance != 1 and guide_by == "batch" else None
    space = space_of(model)

    def guided(x: Tensor, t: Tensor) -> Tensor:
        if guidance == 1:
            alone = model.forward(x, t, cond)
            return torch.stack([alone, torch.zeros_like(alone)]) if both else alone
        if guide_by == "batch":
            with_cond, without = model.forward(torch.cat([x, x]), t, joined).chunk(2)
        else:
            with_cond, without = model.forward(x, t, cond), model.forward(x, t, null)
        out: Tensor = guide(without, with_cond, guidance)
        return torch.stack([with_cond, out - with_cond]) if both else out

    def network(x: Tensor, t: Tensor) -> Tensor:
        inner, told = to_network(model, x, t)
        METER.begin(len(x))
        out = call_own("model", answer, inner, told)
        METER.end()
        check_output(out[0] if both else out, x, space)
        return out.to(x.dtype)

    def answer(x: Tensor, t: Tensor) -> Tensor:
        if not checkpoint or not torch.is_grad_enabled():
            return guided(x, t)
        again: Tensor = rematerialise(guided, x, t, use_reentrant=False, preserve_rng_state=False)
        return again

    return network


def bind(
    model: Model,
    cond: Cond = None,
    *,
    guidance: float = 1.0,
    guide_by: Literal["batch", "calls"] = "batch",
    checkpoint: bool = False,
    both: bool = False,
) -> Denoise:
    """Like :func:`bind_network`, but with the output turned into x0, as solvers need it.

    On a space the output stays eps, a tangent.
    """
    network = bind_network(
        model, cond, guidance=guidance, guide_by=guide_by, checkpoint=checkpoint, both=both
    )

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        out = network(x, t)
        if not both:
            return _to_x0(model, out, x, t)
        # a direction is a difference of two outputs at the same x
        return torch.stack(
            [_to_x0(model, out[0], x, t), _to_x0(model, out[1], torch.zeros_like(x), t)]
        )

    return denoise


def bind_passes(
    model: Model, cond: Cond, guided: Sequence[int] | None, count: int, *, guidance: float = 1.0
) -> Denoise | list[Denoise]:
    """The network of a table of `count` evaluations, with guidance inside; or, with `guided`
    evaluations in the table, one network per evaluation. Those that are not guided run one pass."""
    if guided is None:
        return bind_network(model, cond, guidance=guidance)
    both = bind_network(model, cond, guidance=guidance, both=True)
    alone = bind_network(model, cond)
    return [both if n in guided else alone for n in range(count)]


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
    dtype = torch.promote_types(model.dtype or torch.float32, torch.float32)
    return start(model, noise(seeds, model.shape, dtype, device))


def start(model: Model, z: Tensor) -> Tensor:
    """x at t_max for unit-variance noise z (B, *shape)."""
    space = space_of(model)
    return model.schedule.prior_std * z if space is None else space.start(z)


@torch.no_grad()
def is_latent(model: Model, device: torch.device | str = "cpu") -> bool:
    """Whether samples are not x itself but decoded from it."""
    if space_of(model) is not None:
        return False
    x = torch.linspace(-1, 1, math.prod(model.shape), device=device).view(1, *model.shape)
    return not torch.equal(model.decode(x), x)


def to_network(model: Model, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """x in the network's dtype, t beside it in at least float32; as it is, in float64, for a model
    that says `exact_time`, because it turns t into something larger first."""
    inner = x if model.dtype is None else x.to(model.dtype)
    if model.exact_time:
        return inner, t
    return inner, t.to(x.device, torch.promote_types(inner.dtype, torch.float32))


def check_output(out: Tensor, x: Tensor, space: Space | None = None) -> None:
    if not isinstance(out, Tensor):
        raise ModelError(
            f"model: got {type(out).__name__} as its output, expected a tensor of shape "
            f"{tuple(x.shape)}"
        )
    if space is not None and out.shape != (wanted := (len(x), len(space.parts))):
        raise ModelError(
            f"model: got an output of shape {tuple(out.shape)}, expected tangents of shape {wanted}"
        )
    if space is None and out.shape != x.shape:
        raise ModelError(
            f"model: got an output of shape {tuple(out.shape)} for x of shape {tuple(x.shape)}, "
            "expected the same; a network with learned variance returns twice the channels: keep "
            "the first half"
        )
    if not out.is_floating_point():
        raise ModelError(f"model: got an output of dtype {out.dtype}, expected floating point")
    if out.layout != torch.strided or out.is_meta:
        kind = "a meta tensor" if out.is_meta else str(out.layout)
        raise ModelError(f"model: got {kind} as its output, expected a dense tensor with content")


def take(cond: Cond, index: Tensor | slice) -> Cond:
    """The conditions at `index`."""
    if cond is None:
        return None
    if isinstance(cond, Mapping):
        return {name: value[index] for name, value in cond.items()}
    return cond[index]


def _cat(a: Cond, b: Cond) -> Cond:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.cat([a, b])
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return {name: torch.cat([a[name], b[name]]) for name in a}
    raise ModelError("guidance: the null condition is of another kind than the condition")
