"""Time grids, and a grid seen through a noise schedule.

A solver with N steps visits times t_0 > t_1 > ... > t_N. The network is evaluated at times of its
own, t^c_0 .. t^c_N, which may differ a little from the solver's (the paper's *decoupled* times).
Only Heun's method uses t^c_N: the others do not evaluate the network at the very end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import Tensor

from ld3.errors import PlanError
from ld3.schedules import Parts, Schedule, logarithms


@dataclass(frozen=True)
class TimeGrid:
    """The times of N steps; float64 on the CPU, where all coefficients are computed."""

    times: Tensor  # (N+1,) strictly decreasing
    net_times: Tensor  # (N+1,) t^c, at which the network is evaluated

    @classmethod
    def of(
        cls, times: Sequence[float] | Tensor, net_times: Sequence[float] | Tensor | None = None
    ) -> "TimeGrid":
        """From numbers or tensors (gradients are kept); the network times default to the times."""
        given = (times, times if net_times is None else net_times)
        return cls(*(torch.as_tensor(t, dtype=torch.float64, device="cpu") for t in given))

    @property
    def steps(self) -> int:
        return len(self.times) - 1

    def checked(self, schedule: Schedule, steps: int | None = None) -> "TimeGrid":
        """This grid, or a :class:`PlanError` if it does not fit the schedule."""
        for name, values in (("times", self.times), ("network times", self.net_times)):
            if values.ndim != 1 or len(values) < 2:
                raise PlanError(f"{name}: got shape {tuple(values.shape)}, expected (N+1,), N >= 1")
            if not bool(torch.isfinite(values).all()):
                raise PlanError(f"{name}: got a value that is not finite in {_show(values)}")
            slack = 1e-6 * (schedule.t_max - schedule.t_min)  # tables are printed with few digits
            low, high = schedule.t_min - slack, schedule.t_max + slack
            if not bool(((values >= low) & (values <= high)).all()):
                raise PlanError(
                    f"{name}: got {_show(values)}, expected all within the schedule's range "
                    f"[{schedule.t_min:g}, {schedule.t_max:g}]"
                )
        if len(self.net_times) != len(self.times):
            raise PlanError(
                f"network times: got {len(self.net_times)}, expected {len(self.times)}, "
                "one per time"
            )
        if not bool((self.times[1:] < self.times[:-1]).all()):
            raise PlanError(
                f"times: got {_show(self.times)}, expected strictly decreasing from noise to data"
            )
        if steps is not None and steps != self.steps:
            raise PlanError(
                f"times: got {self.steps + 1} values for {steps} steps, expected {steps + 1}"
            )
        return self


@dataclass(frozen=True)
class Knots:
    """A grid seen through a schedule, computed once: what the formulas of a step are made of.

    The tuples hold scalars (0-dim float64 tensors that carry gradients), one per knot; those of a
    schedule with P parts hold (P,).
    """

    schedule: Schedule
    steps: int  # N
    net: tuple[Tensor, ...]  # the network times t^c_i
    alpha: tuple[Tensor, ...]
    sigma: tuple[Tensor, ...]
    lam: tuple[Tensor, ...]
    net_alpha: tuple[Tensor, ...]  # alpha at t^c_i, which converts the output of the network
    net_sigma: tuple[Tensor, ...]
    h: tuple[Tensor, ...]  # (N) lam_{i+1} - lam_i > 0

    @cached_property
    def ratio(self) -> tuple[Tensor, ...]:
        """sigma / alpha: the noise level in variance-exploding coordinates x / alpha."""
        return tuple(torch.exp(-torch.stack(self.lam)).unbind())

    @cached_property
    def phi(self) -> tuple[tuple[Tensor, ...], ...]:
        """phi[i][k-1] = phi_k(-h_i), k = 1..4: the integrals behind the x0-form methods."""
        return tuple(row.unbind(-1) for row in phi_functions(-torch.stack(self.h), 4))

    def at(self, parts: Tensor) -> "Knots":
        """Numbers of parts (P,) repeated for coordinates that belong to them, (D,)."""
        names = ("alpha", "sigma", "lam", "net_alpha", "net_sigma", "h")
        spread = {name: tuple(v[parts] for v in getattr(self, name)) for name in names}
        return replace(self, **spread)  # type: ignore[arg-type]


def knots(schedule: Schedule, grid: TimeGrid) -> Knots:
    """Look a grid up in a schedule."""
    t, net = grid.times, grid.net_times
    log_alpha, log_sigma = logarithms(schedule, t)
    net_alpha, net_sigma = logarithms(schedule, net)
    lam = log_alpha - log_sigma if isinstance(schedule, Parts) else schedule.lam(t)
    return Knots(
        schedule=schedule,
        steps=grid.steps,
        net=net.unbind(),
        alpha=log_alpha.exp().unbind(),
        sigma=log_sigma.exp().unbind(),
        lam=lam.unbind(),
        net_alpha=net_alpha.exp().unbind(),
        net_sigma=net_sigma.exp().unbind(),
        h=(lam[1:] - lam[:-1]).unbind(),
    )


def phi_functions(z: Tensor, count: int) -> Tensor:
    """phi_k(z) = integral over [0, 1] of exp(z (1 - s)) s^(k-1) / (k-1)! ds, for k = 1..count.

    phi_1 = (e^z - 1)/z and phi_{k+1} = (phi_k - 1/k!)/z lose all digits near zero; there the series
    phi_k = sum_n z^n / (n + k)! is used. z (*,) -> (*, count).
    """
    near = z.abs() < 0.75
    small = torch.where(near, z, torch.zeros_like(z))  # keeps the unused branch's gradient finite
    powers, coefficients = _series(count)
    series = (small.unsqueeze(-1) ** powers) @ coefficients
    large = torch.where(near, torch.ones_like(z), z)
    direct = [torch.expm1(large) / large]
    for k in range(1, count):
        direct.append((direct[-1] - 1 / math.factorial(k)) / large)
    return torch.where(near.unsqueeze(-1), series, torch.stack(direct, dim=-1))


@cache
def _series(count: int) -> tuple[Tensor, Tensor]:
    """The exponents n (15,) and 1/(n + k)! (15, count)."""
    table = [[1 / math.factorial(n + k) for k in range(1, count + 1)] for n in range(15)]
    with torch.inference_mode(False):  # for gradients later on, whoever calls first
        powers = torch.arange(15, dtype=torch.float64, device="cpu")
        return powers, torch.tensor(table, dtype=torch.float64, device="cpu")


def _show(values: Tensor) -> str:
    shown = ", ".join(f"{v:.6g}" for v in values.tolist()[:12])
    return f"[{shown}{', ...' if len(values) > 12 else ''}]"
