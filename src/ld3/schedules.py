r"""Noise schedules: how much signal and how much noise a sample holds at time t.

A schedule defines q(x_t | x_0) = N(alpha_t x_0, sigma_t^2 I) for t in [t_min, t_max], t growing
with the noise. Everything else follows from the two logarithms:

    lam(t) = log alpha_t - log sigma_t          half the log signal-to-noise ratio, falls with t
    time_at(lam)                                its exact inverse

Variance preserving (VP) schedules have alpha^2 + sigma^2 = 1; variance exploding (VE, EDM) have
alpha = 1; rectified flow has alpha + sigma = 1. All functions take tensors of any shape, keep their
dtype and device, and are differentiable; coefficients are meant to be computed in float64.
"""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from ld3.errors import SpecError, unknown


class Schedule(Protocol):
    """What solvers and grids need to know about a noise schedule."""

    @property
    def t_min(self) -> float: ...
    @property
    def t_max(self) -> float: ...
    @property
    def prior_std(self) -> float:
        """x at t_max is `prior_std` times unit-variance noise."""
        ...

    def log_alpha(self, t: Tensor) -> Tensor: ...
    def log_sigma(self, t: Tensor) -> Tensor: ...
    def lam(self, t: Tensor) -> Tensor: ...
    def time_at(self, lam: Tensor) -> Tensor: ...


def ends(schedule: Schedule) -> Tensor:
    """t_max and t_min (2,), float64 on the CPU."""
    return torch.tensor([schedule.t_max, schedule.t_min], dtype=torch.float64, device="cpu")


def _check_range(name: str, t_min: float, t_max: float, lowest: float, highest: float) -> None:
    if not lowest < t_min < t_max < highest:
        raise SpecError(
            f"{name}: got times from {t_min} to {t_max}, "
            f"expected {lowest} < t_min < t_max < {highest}"
        )


class _VE(ABC):
    """What variance exploding schedules share: alpha = 1."""

    @abstractmethod
    def log_sigma(self, t: Tensor) -> Tensor: ...

    def log_alpha(self, t: Tensor) -> Tensor:
        return 0.0 * t

    def lam(self, t: Tensor) -> Tensor:
        return -self.log_sigma(t)


@dataclass(frozen=True)
class EDM(_VE):
    """Variance exploding, alpha = 1, sigma = t (Karras et al. 2022, arXiv 2206.00364)."""

    t_min: float = 0.002
    t_max: float = 80.0

    def __post_init__(self) -> None:
        _check_range("EDM", self.t_min, self.t_max, 0.0, math.inf)

    @property
    def prior_std(self) -> float:
        return self.t_max

    def log_sigma(self, t: Tensor) -> Tensor:
        return t.log()

    def time_at(self, lam: Tensor) -> Tensor:
        return torch.exp(-lam)


class _VP(ABC):
    """What all variance preserving schedules share: sigma^2 = 1 - alpha^2, without cancellation."""

    prior_std = 1.0

    @abstractmethod
    def log_alpha(self, t: Tensor) -> Tensor: ...

    def log_sigma(self, t: Tensor) -> Tensor:
        return 0.5 * torch.log(-torch.expm1(2 * self.log_alpha(t)))

    def lam(self, t: Tensor) -> Tensor:
        log_alpha = self.log_alpha(t)
        return log_alpha - 0.5 * torch.log(-torch.expm1(2 * log_alpha))


def _vp_log_alpha_at(lam: Tensor) -> Tensor:
    """log alpha of a VP schedule from lam: alpha^2 = 1 / (1 + exp(-2 lam))."""
    return -0.5 * torch.logaddexp(-2 * lam, torch.zeros_like(lam))


@dataclass(frozen=True)
class VPLinear(_VP):
    """Continuous VP with beta(t) linear: log alpha = -(b1 - b0) t^2 / 4 - b0 t / 2."""

    beta_min: float = 0.1
    beta_max: float = 20.0
    t_min: float = 1e-3
    t_max: float = 1.0

    def __post_init__(self) -> None:
        _check_range("VPLinear", self.t_min, self.t_max, 0.0, math.inf)
        if not 0 <= self.beta_min <= self.beta_max or self.beta_max == 0:
            got = f"{self.beta_min} to {self.beta_max}"
            raise SpecError(f"VPLinear: got beta {got}, expected rising")

    def log_alpha(self, t: Tensor) -> Tensor:
        return -0.25 * (self.beta_max - self.beta_min) * t**2 - 0.5 * self.beta_min * t

    def time_at(self, lam: Tensor) -> Tensor:
        # the root of a quadratic in t, in the form that does not cancel, also if beta is constant
        loss = -4 * _vp_log_alpha_at(lam)
        slope = self.beta_max - self.beta_min
        return loss / (torch.sqrt(self.beta_min**2 + slope * loss) + self.beta_min)


@dataclass(frozen=True)
class VPCosine(_VP):
    """Continuous VP with alpha = cos(pi/2 (t + s)/(1 + s)) / cos(pi/2 s/(1 + s)).

    (Nichol and Dhariwal 2021, arXiv 2102.09672.) t ends where lam is about -4.78, before alpha
    reaches zero.
    """

    s: float = 0.008
    t_min: float = 1e-3
    t_max: float = 0.9946

    def __post_init__(self) -> None:
        _check_range("VPCosine", self.t_min, self.t_max, 0.0, 1.0)

    @property
    def _log_cos_0(self) -> float:
        return math.log(math.cos(0.5 * math.pi * self.s / (1 + self.s)))

    def log_alpha(self, t: Tensor) -> Tensor:
        angle = 0.5 * math.pi / (1 + self.s) * (t + self.s)
        return torch.log(torch.cos(angle)) - self._log_cos_0

    def time_at(self, lam: Tensor) -> Tensor:
        log_cos = _vp_log_alpha_at(lam) + self._log_cos_0
        # atan2(sin, cos) keeps its digits, and its gradient, where acos would lose them
        angle = torch.atan2(torch.sqrt(-torch.expm1(2 * log_cos)), log_cos.exp())
        return angle * (2 * (1 + self.s) / math.pi) - self.s


@dataclass(frozen=True)
class Discrete(_VP):
    """VP trained on K integer steps, made continuous: t_n = (n + 1)/K for step n = 0..K-1.

    log alpha is piecewise linear in t between the trained steps and linear beyond them. A network
    that wants the integer step is given `index(t)` = K t - 1, fractions allowed.
    """

    log_alphas: tuple[float, ...]  # falling, one per kept step
    steps: int  # K: trained steps, before a noisy tail was dropped

    def __post_init__(self) -> None:
        values = self.log_alphas
        falling = all(a > b for a, b in pairwise(values))
        if self.steps < (count := len(values)):
            raise SpecError(f"Discrete: got {self.steps} steps for {count} values, expected more")
        if len(values) < 2 or not falling or values[0] >= 0 or not math.isfinite(values[-1]):
            raise SpecError(
                f"Discrete: got {len(values)} values of log alpha, expected two or more, all "
                "finite, negative and strictly falling; check the betas"
            )

    @classmethod
    def from_alphas_cumprod(cls, values: Sequence[float], lam_min: float = -math.inf) -> "Discrete":
        """From alpha_n^2, dropping the steps noisier than `lam_min` (the tail of cosine tables)."""
        if not all(0 < a < 1 for a in values):
            raise SpecError(
                "Discrete: got alphas_cumprod outside (0, 1); zero-terminal tables end "
                "in pure noise and have no finite lam there: drop the last step"
            )
        logs = [0.5 * math.log(a) for a in values]
        lams = [log - 0.5 * math.log(-math.expm1(2 * log)) for log in logs]
        kept = [log for log, lam in zip(logs, lams, strict=True) if lam >= lam_min]
        return cls(tuple(kept), len(logs))

    @classmethod
    def from_betas(cls, betas: Sequence[float], lam_min: float = -math.inf) -> "Discrete":
        """From the per-step noise variances beta_n: alpha_n^2 = prod (1 - beta)."""
        values = accumulate((1.0 - beta for beta in betas), operator.mul)
        return cls.from_alphas_cumprod(list(values), lam_min)

    @classmethod
    def linear(cls, first: float = 1e-4, last: float = 0.02, steps: int = 1000) -> "Discrete":
        """Betas linear in n (DDPM; 100 steps: point clouds of Luo and Hu 2021)."""
        return cls.from_betas([first + (last - first) * n / (steps - 1) for n in range(steps)])

    @classmethod
    def scaled_linear(cls, first: float, last: float, steps: int = 1000) -> "Discrete":
        """sqrt(beta) linear in n: LDM 0.0015 to 0.0195, Stable Diffusion 0.00085 to 0.012."""
        lo, hi = math.sqrt(first), math.sqrt(last)
        return cls.from_betas([(lo + (hi - lo) * n / (steps - 1)) ** 2 for n in range(steps)])

    @classmethod
    def cosine(cls, steps: int = 1000, lam_min: float = -5.1) -> "Discrete":
        """The cosine table of iDDPM, betas capped at 0.999, without its almost pure-noise tail."""

        def abar(u: float) -> float:
            return math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2

        betas = [min(1 - abar((n + 1) / steps) / abar(n / steps), 0.999) for n in range(steps)]
        return cls.from_betas(betas, lam_min)

    @property
    def t_min(self) -> float:
        return 1 / self.steps

    @property
    def t_max(self) -> float:
        return len(self.log_alphas) / self.steps

    def index(self, t: Tensor) -> Tensor:
        """The trained step that belongs to t, with its fraction."""
        return self.steps * t - 1

    @cached_property
    def _table(self) -> Tensor:
        return torch.tensor(self.log_alphas, dtype=torch.float64, device="cpu")

    def log_alpha(self, t: Tensor) -> Tensor:
        table = self._table.to(t.device, t.dtype)
        position = self.index(t)
        left = position.detach().floor().long().clamp(0, len(table) - 2)
        start, end = table[left], table[left + 1]
        return start + (position - left) * (end - start)

    def time_at(self, lam: Tensor) -> Tensor:
        log_alpha = _vp_log_alpha_at(lam)
        table = self._table.to(lam.device, lam.dtype)
        left = torch.searchsorted(-table, -log_alpha.detach()) - 1
        left = left.clamp(0, len(table) - 2)
        start, end = table[left], table[left + 1]
        return (left + (log_alpha - start) / (end - start) + 1) / self.steps


@dataclass(frozen=True)
class Flow:
    """Rectified flow: x_t = (1 - t) x_0 + t noise, lam = log((1 - t)/t).

    lam is infinite at t = 0 and 1, so the range stops just short of both.
    """

    t_min: float = 1e-3
    t_max: float = 1 - 1e-3
    prior_std: float = 1.0

    def __post_init__(self) -> None:
        _check_range("Flow", self.t_min, self.t_max, 0.0, 1.0)

    def log_alpha(self, t: Tensor) -> Tensor:
        return torch.log1p(-t)

    def log_sigma(self, t: Tensor) -> Tensor:
        return t.log()

    def lam(self, t: Tensor) -> Tensor:
        return torch.log1p(-t) - t.log()

    def time_at(self, lam: Tensor) -> Tensor:
        return torch.sigmoid(-lam)


@dataclass(frozen=True)
class Geometric(_VE):
    """Variance exploding, alpha = 1, sigma = low^(1-t) high^t with t from 0 to 1."""

    low: float
    high: float

    t_min = 0.0
    t_max = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise SpecError(f"sigma: got {self.low} to {self.high}, expected 0 < low < high")

    @property
    def prior_std(self) -> float:
        return self.high

    @property
    def rate(self) -> float:
        """log(high / low) = -d lam / dt."""
        return math.log(self.high / self.low)

    def log_sigma(self, t: Tensor) -> Tensor:
        return math.log(self.low) + self.rate * t

    def time_at(self, lam: Tensor) -> Tensor:
        return (-lam - math.log(self.low)) / self.rate


@dataclass(frozen=True)
class Parts(_VE):
    """Several geometric processes that share t, one for each part of a state (:mod:`ld3.spaces`).

    Grids, searches and the learner place times; to them this is the schedule of the first part.
    Solvers get the numbers of all parts.
    """

    lows: tuple[float, ...]
    highs: tuple[float, ...]

    t_min = 0.0
    t_max = 1.0

    def __post_init__(self) -> None:
        if not self.lows or len(self.lows) != len(self.highs):
            raise SpecError(
                f"parts: got {len(self.lows)} low and {len(self.highs)} high noise levels, "
                "expected one of both for each part"
            )
        _ = self.parts

    @cached_property
    def parts(self) -> tuple[Geometric, ...]:
        return tuple(Geometric(*ends) for ends in zip(self.lows, self.highs, strict=True))

    @property
    def prior_std(self) -> float:
        return self.parts[0].prior_std

    def log_sigma(self, t: Tensor) -> Tensor:
        return self.parts[0].log_sigma(t)

    def time_at(self, lam: Tensor) -> Tensor:
        return self.parts[0].time_at(lam)


def logarithms(schedule: Schedule, t: Tensor) -> tuple[Tensor, Tensor]:
    """log alpha and log sigma in the shape of t; of :class:`Parts` one more column for each."""
    if isinstance(schedule, Parts):
        log_sigma = torch.stack([part.log_sigma(t) for part in schedule.parts], -1)
        return torch.zeros_like(log_sigma), log_sigma
    return schedule.log_alpha(t), schedule.log_sigma(t)


def in_network_units(schedule: Schedule, t: Tensor) -> Tensor:
    """Times as common networks take them: the trained step with its fraction, 1000 t on flows,
    else t."""
    if isinstance(schedule, Discrete):
        return schedule.index(t)
    return 1000 * t if isinstance(schedule, Flow) else t


SCHEDULES: dict[str, tuple[Callable[[], Schedule], str]] = {
    "edm": (EDM, "EDM / VE: sigma = t, 0.002 to 80"),
    "vp-linear": (VPLinear, "continuous VP, beta 0.1 to 20"),
    "vp-cosine": (VPCosine, "continuous VP, cosine, t up to 0.9946"),
    "ddpm": (Discrete.linear, "1000 steps, beta linear 1e-4 to 0.02"),
    "ldm": (lambda: Discrete.scaled_linear(0.0015, 0.0195),
            "1000 steps, sqrt(beta) linear 0.0015 to 0.0195: latent diffusion"),
    "sd": (lambda: Discrete.scaled_linear(0.00085, 0.012),
           "1000 steps, sqrt(beta) linear 0.00085 to 0.012: Stable Diffusion"),
    "iddpm": (Discrete.cosine, "1000 steps, cosine without its pure-noise tail: iDDPM"),
    "point-cloud": (lambda: Discrete.linear(steps=100),
                    "100 steps, beta linear 1e-4 to 0.02: point clouds"),
    "flow": (Flow, "rectified flow, t from 0.001 to 0.999"),
}  # fmt: skip


def make_schedule(name: str) -> Schedule:
    """The schedule of that name with its default constants."""
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    return SCHEDULES[name][0]()
