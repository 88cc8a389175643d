"""Schedules as JSON, for plans: by name, by constants, or as a table of numbers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, get_args

import torch
from torch import Tensor

from ld3.errors import SpecError, unknown
from ld3.schedules import (
    EDM,
    SCHEDULES,
    Discrete,
    Flow,
    Geometric,
    Parts,
    Schedule,
    VPCosine,
    VPLinear,
    ends,
    make_schedule,
)  # fmt: skip

MAX_TABLE = 100_000  # trained steps of a schedule in a file, at most


@dataclass(frozen=True)
class Tabulated:
    """A schedule of your own as numbers: t, log alpha and their slopes at points even in lam.

    Between the points both are cubic in lam, which meets a smooth schedule to about h^4 / 400 for
    points h apart.
    """

    lam_first: float  # at t_max
    lam_last: float  # at t_min
    prior_std: float
    times: tuple[float, ...]  # falling
    time_slopes: tuple[float, ...]  # dt/dlam
    log_alphas: tuple[float, ...]
    log_alpha_slopes: tuple[float, ...]

    def __post_init__(self) -> None:
        count = len(self.times)
        columns = (self.time_slopes, self.log_alphas, self.log_alpha_slopes)
        falling = all(a > b for a, b in pairwise(self.times))
        if count < 2 or any(len(column) != count for column in columns) or not falling:
            raise SpecError("Tabulated: expected falling times, and as many slopes and log alphas")
        if not self.lam_first < self.lam_last or not self.prior_std > 0:
            raise SpecError("Tabulated: expected lam_first < lam_last and prior_std > 0")

    @classmethod
    @torch.enable_grad()
    def of(cls, schedule: Schedule, points: int = 1025) -> "Tabulated":
        """Read off a schedule."""
        noisy, clean = ends(schedule).chunk(2)
        first, last = schedule.lam(ends(schedule)).tolist()
        even = torch.linspace(first, last, points, dtype=torch.float64, device="cpu")
        inner = schedule.time_at(even[1:-1]).detach()
        t = torch.cat([noisy, inner, clean]).requires_grad_()
        log_alpha = schedule.log_alpha(t)
        (by_t,) = torch.autograd.grad(schedule.lam(t).sum(), t)
        slope = torch.zeros_like(t)  # of log alpha in t: none where alpha is constant
        if log_alpha.requires_grad:
            (slope,) = torch.autograd.grad(log_alpha.sum(), t)
        columns = (t.detach(), 1 / by_t, log_alpha.detach(), slope / by_t)
        return cls(first, last, schedule.prior_std, *(tuple(c.tolist()) for c in columns))

    @property
    def t_min(self) -> float:
        return self.times[-1]

    @property
    def t_max(self) -> float:
        return self.times[0]

    @cached_property
    def _columns(self) -> Tensor:  # (4, K)
        columns = (self.times, self.time_slopes, self.log_alphas, self.log_alpha_slopes)
        return torch.tensor(columns, dtype=torch.float64, device="cpu")

    def _cubic(self, lam: Tensor, column: int) -> Tensor:
        """Hermite's cubic through the values and slopes of a column."""
        values, slopes = self._columns[column : column + 2].to(lam.device)
        gap = (self.lam_last - self.lam_first) / (len(values) - 1)
        x = (lam.double() - self.lam_first) / gap
        i = x.detach().floor().long().clamp(0, len(values) - 2)
        u, (a, b), (p, q) = x - i, values[torch.stack([i, i + 1])], slopes[torch.stack([i, i + 1])]
        step, rest = u * u * (3 - 2 * u), u * (1 - u) * gap
        value: Tensor = a + step * (b - a) + rest * ((1 - u) * p - u * q)
        return value.to(lam.dtype)

    def time_at(self, lam: Tensor) -> Tensor:
        return self._cubic(lam, 0)

    def lam(self, t: Tensor) -> Tensor:
        """The inverse by Newton's method from the nearest point, with the inverse's slope."""
        falling = self._columns[0].to(t.device)
        near = len(falling) - torch.searchsorted(falling.flip(0), t.detach().double())
        share = near.clamp(0, len(falling) - 1).double() / (len(falling) - 1)
        lam = self.lam_first + (self.lam_last - self.lam_first) * share
        for _ in range(5):
            with torch.enable_grad():
                leaf = lam.detach().requires_grad_()
                there = self.time_at(leaf)
                (slope,) = torch.autograd.grad(there.sum(), leaf)
            lam = leaf.detach() + (t.double() - there.detach()) / slope
        return lam.to(t.dtype)

    def log_alpha(self, t: Tensor) -> Tensor:
        return self._cubic(self.lam(t), 2)

    def log_sigma(self, t: Tensor) -> Tensor:
        lam = self.lam(t)
        return self._cubic(lam, 2) - lam


_Kind = EDM | VPLinear | VPCosine | Discrete | Flow | Geometric | Parts | Tabulated
_KINDS: dict[str, type[_Kind]] = {kind.__name__: kind for kind in get_args(_Kind)}


@cache
def _named() -> dict[str, Schedule]:
    return {name: make_schedule(name) for name in SCHEDULES}


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """A name where the schedule has one, else its kind and constants; a table for your own."""
    for name, named in _named().items():
        if named == schedule:
            return {"name": name}
    kind = type(schedule).__name__
    if type(schedule) not in _KINDS.values():
        return schedule_to_json(Tabulated.of(schedule))
    constants = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(schedule).items()}  # type: ignore[call-overload]
    return {"kind": kind, **constants}


def schedule_from_json(content: Mapping[str, Any]) -> Schedule:
    """The inverse of :func:`schedule_to_json`; refuses what it does not know."""
    if set(content) == {"name"} and isinstance(content["name"], str):
        return make_schedule(content["name"])
    kind = _KINDS.get(str(content.get("kind")))
    if kind is None:
        raise unknown("kind of schedule", str(content.get("kind")), _KINDS)
    try:
        constants = {
            key: tuple(float(v) for v in value[:MAX_TABLE])
            if isinstance(value, list)
            else (int(value) if key == "steps" else float(value))
            for key, value in content.items()
            if key != "kind"
        }
        return kind(**constants)  # type: ignore[arg-type]
    except (TypeError, ValueError, ArithmeticError) as error:
        raise SpecError(f"schedule {kind.__name__}: {error}") from None
