"""A diffusers pipeline as a model.

A family (see `unets`, `dits` and `videos`) says how the network of a pipeline is called;
:class:`PipelineModel` does the rest. The network takes times in diffusers' units, K t - 1 for K
trained steps and 1000 t for flows, as floats. Tools that round them can be imitated: the network
then sees the rounded time, and gradients pass as if it were not.

Samples are decoded one at a time and again on the way back, so that memory holds the activations of
one decoder.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as rematerialise

from ld3.errors import ModelError, SpecError
from ld3.models import METER, Cond, bind_passes, prior
from ld3.offloading import entrance_of
from ld3.options import NetTime
from ld3.predictions import Prediction
from ld3.schedules import Schedule, in_network_units
from ld3.store import digest
from ld3.table import Table

Rows = Mapping[str, Tensor]
"""Conditions by name, batch first."""

Call = Callable[[Tensor, Tensor, Rows], Tensor]
"""x (B, *shape), time of the network (B,), conditions -> output."""

Guide = Callable[[Tensor, Tensor, float], Tensor]


def keeping_the_norm(without: Tensor, with_cond: Tensor, scale: float) -> Tensor:
    """Guidance whose rows (last dimension) have the norm that they have without it."""
    guided = torch.lerp(without, with_cond, scale)
    wanted, found = (torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (with_cond, guided))
    out: Tensor = guided * (wanted / found)
    return out


@dataclass(frozen=True)
class Parts:
    """What a family knows of a pipeline."""

    shape: tuple[int, ...]  # of one x: the state that the pipeline's scheduler sees
    call: Call
    networks: Mapping[str, nn.Module]
    decode: Callable[[Tensor], Tensor] | None = None  # x (B, *shape) -> samples in [-1, 1]
    coder: nn.Module | None = None
    rows: Rows | None = None  # one a prompt or class; None: unconditional
    null: Rows | None = None  # one row
    conditions: str = ""  # to show
    tokens: int | None = None  # of the sequence that a transformer sees
    halves: bool = False  # the pipeline casts times to the dtype of the network
    mu: float | None = None  # logarithm of the shift, where the pipeline has its own rule
    guide: Guide = torch.lerp  # (without, with condition, scale) -> the guided output


@dataclass(frozen=True)
class PipelineModel:
    """A network of diffusers, its conditions and its decoder."""

    parts: Parts
    schedule: Schedule
    prediction: Prediction
    digest: str  # of the weights
    asked: str  # digest of the conditions
    latents: bool = False  # leave samples as they are
    net_time: NetTime = "float"
    batch: int = 8  # samples in one network call, at most
    exact_time: ClassVar[bool] = True  # float32 has digits for 1000 t, but not for t times 1000

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts.shape

    @property
    def identity(self) -> str:
        """Of all that a sample depends on but its noise and times."""
        return digest([self.digest, self.asked, self.shape, self.latents, self.net_time])

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.parts.networks.values())).dtype  # type: ignore[return-value]

    def forward(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        precision = torch.promote_types(x.dtype, torch.float32)
        time = in_network_units(self.schedule, t)
        time = rounded(time, self.net_time).to(x.device, precision).expand(len(x))
        rows = cond if isinstance(cond, Mapping) else {}
        outputs = []
        for first in range(0, len(x), self.batch):
            part = slice(first, first + self.batch)
            some = {name: value[part] for name, value in rows.items()}
            outputs.append(self.parts.call(x[part], time[part], some))
            METER.tell(min(1.0, part.stop / len(x)))  # large models count by the call
        return torch.cat(outputs)

    def conditions(self, seeds: Sequence[int]) -> Cond:
        """Seed s has prompt, or class, number s mod their number."""
        if self.parts.rows is None:
            return None
        return {
            name: value[[seed % len(value) for seed in seeds]]
            for name, value in self.parts.rows.items()
        }

    def null(self, cond: Cond) -> Cond:
        if self.parts.null is None or not isinstance(cond, Mapping):
            raise ModelError("guidance: got a pipeline without conditions, expected guidance 1")
        count = len(next(iter(cond.values())))
        return {
            name: value.expand(count, *value.shape[1:]) for name, value in self.parts.null.items()
        }

    def guide(self, without: Tensor, with_cond: Tensor, scale: float) -> Tensor:
        """The guided output, by the rule of the pipeline."""
        return self.parts.guide(without, with_cond, scale)

    def decode(self, x: Tensor) -> Tensor:
        if self.latents or self.parts.decode is None:
            return x
        samples = []
        for one in torch.split(x, 1):
            if torch.is_grad_enabled() and one.requires_grad:
                samples.append(rematerialise(self.parts.decode, one, use_reentrant=False))
            else:
                samples.append(self.parts.decode(one))
        return torch.cat(samples).to(x.dtype)


def rounded(time: Tensor, precision: NetTime) -> Tensor:
    """A network time as a tool would round it; its gradient is that of the exact time.

    `integer`: the nearest whole number. `bfloat16`: what a transformer embeds that is given t/1000
    and multiplies it again, all in bfloat16.
    """
    if precision == "float":
        return time
    exact = time.detach()
    near = exact.round() if precision == "integer" else ((exact.bfloat16() / 1000) * 1000)
    return time + (near.to(time.dtype) - exact)


@torch.no_grad()
def rounding_cost(
    model: PipelineModel, table: Table, seeds: Sequence[int], guidance: float = 1.0
) -> dict[str, float]:
    """By kind of rounding, the root mean square distance between samples of a table with rounded
    and with exact network times."""
    cond = model.conditions(seeds)
    x = prior(model, seeds, entrance_of(next(iter(model.parts.networks.values()))))

    def sample(precision: NetTime) -> Tensor:
        other = replace(model, net_time=precision)
        network = bind_passes(other, cond, table.guided, table.nfe, guidance=guidance)
        return other.decode(table.run(network, x))

    exact = sample("float")
    kinds: list[NetTime] = ["integer", *(["bfloat16"] if model.parts.halves else [])]  # type: ignore[list-item]
    return {kind: float((sample(kind) - exact).double().square().mean().sqrt()) for kind in kinds}


def check_net_time(parts: Parts, precision: NetTime) -> None:
    """Only some pipelines cast times to bfloat16."""
    if precision == "bfloat16" and not parts.halves:
        raise SpecError(
            "net_time: got bfloat16, expected float or integer: only pipelines of Flux, Flux.2 and "
            "Qwen-Image cast the time"
        )
