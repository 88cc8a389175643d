"""Docking with a known answer: poses of a ligand as modes, and the exact score of their mixture.

Mode m is a pose (c_m, R_m, angles a_m) with a weight and a spread. Noise spreads it by the heat
kernel of each part, which adds variances: with s^2 = spread^2 + sigma(t)^2 in each part,

    p_t(c, R, a) = sum_m w_m N(c; c_m, s^2) IGSO3(R R_m^-1; s) prod_i WN(a_i - a_mi; s)

on the chart of :mod:`ld3.zoo.docking.spaces`. The score is the mean of those of the modes, weighted
by their posterior probability; the network of this model is eps = -sigma score, exactly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.models import Cond, ModelDefaults
from ld3.predictions import Prediction
from ld3.schedule_json import schedule_to_json
from ld3.schedules import Parts, logarithms
from ld3.store import digest, tensor_checksum
from ld3.zoo.docking.kernels import igso3_score, log_igso3, log_wrapped, wrapped_score
from ld3.zoo.docking.ligand import Ligand
from ld3.zoo.docking.rotations import inverse, length, product
from ld3.zoo.docking.spaces import Chart, split

SPREAD = (0.3, 0.05, 0.1)  # of a mode: Angstrom, radians, radians


class _Apart(NamedTuple):
    """From modes to states."""

    shift: Tensor  # (B, M, 3)
    angle: Tensor  # (B, M, 1) of the rotation, 0 to pi
    axis: Tensor  # (B, M, 3)
    bent: Tensor  # (B, M, k)


@dataclass(frozen=True, eq=False)
class ExactDocking(ModelDefaults):
    """A mixture of poses under noise, as a model."""

    ligand: Ligand
    modes: Tensor  # (M, 7 + k) states of the chart
    schedule: Parts
    weights: Tensor  # (M,), with sum 1
    spread: tuple[float, float, float] = SPREAD

    prediction: ClassVar[Prediction] = "eps"
    dtype: ClassVar[torch.dtype] = torch.float64
    exact_time: ClassVar[bool] = True

    def __post_init__(self) -> None:
        wanted = 7 + self.ligand.torsions
        if self.modes.ndim != 2 or self.modes.shape[1] != wanted or not len(self.modes):
            raise SpecError(
                f"modes: got shape {tuple(self.modes.shape)}, expected (M, {wanted}): centre, "
                f"quaternion and {self.ligand.torsions} angles"
            )
        if self.weights.shape != (len(self.modes),) or not bool((self.weights > 0).all()):
            raise SpecError(f"weights: expected {len(self.modes)} positive numbers, one per mode")
        if len(self.schedule.parts) != 3 or not all(value >= 0 for value in self.spread):
            raise SpecError("docking: expected a schedule of three parts, and spreads from 0")

    @cached_property
    def space(self) -> Chart:  # type: ignore[override]
        return Chart(self.ligand, self.schedule.prior_std)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.space.shape

    @cached_property
    def identity(self) -> str:  # type: ignore[override]
        modes = tensor_checksum({"modes": self.modes, "weights": self.weights})
        noise = [schedule_to_json(self.schedule), list(self.spread)]
        return digest(["docking", self.ligand.digest, modes, noise])

    @property
    def digest(self) -> str:  # type: ignore[override]
        return self.identity[:16]

    def forward(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        """eps (B, 6 + k)."""
        sigma = logarithms(self.schedule, t)[1].exp()[self.space.parts]
        return -sigma * self.score(x, t)

    def decode(self, x: Tensor) -> Tensor:
        return self.space.coordinates(x)

    @cached_property
    def crystal(self) -> Tensor:
        """Atoms (n, 3) of the first mode, which stands for the crystal pose."""
        return self.space.coordinates(self.modes[:1])[0]

    def confidence(self, x: Tensor) -> Tensor:
        """Ranks states (B,) by the density of the data."""
        return self.log_density(x)

    def score(self, x: Tensor, t: Tensor) -> Tensor:
        """The gradient of log p_t as a tangent, (B, 6 + k)."""
        apart, (s_tr, s_rot, s_tor) = self._apart(x), self._widths(t)
        share = torch.softmax(self._log_modes(apart, t), 1)[..., None]  # (B, M, 1)
        each = (
            -apart.shift / s_tr**2,
            igso3_score(apart.angle, s_rot) * apart.axis,
            wrapped_score(apart.bent, s_tor.expand_as(apart.bent)),
        )
        return (share * torch.cat(each, -1)).sum(1)

    def log_density(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        """log p_t (B,); the density of the data itself without t."""
        return self._log_modes(self._apart(x), t).logsumexp(1)

    def _log_modes(self, apart: _Apart, t: Tensor | None) -> Tensor:
        """log of w_m p_m (B, M)."""
        s_tr, s_rot, s_tor = self._widths(t)
        normal = -apart.shift.square().sum(-1) / (2 * s_tr**2) - 3 * s_tr.log()
        rotation = log_igso3(apart.angle, s_rot)[..., 0]
        angles = log_wrapped(apart.bent, s_tor.expand_as(apart.bent)).sum(-1)
        known = self.weights.log() - 1.5 * math.log(2 * math.pi)
        return known + normal + rotation + angles

    def _apart(self, x: Tensor) -> _Apart:
        """Which way states are from each mode."""
        centre, q, angles = split(x)
        modes = self.modes.to(x.device)
        turned = product(q[:, None], inverse(modes[None, :, 3:7]))
        turned = torch.where(turned[..., :1] < 0, -turned, turned)
        sine = length(turned[..., 1:])  # sin(w/2), never 0
        angle = 2 * torch.atan2(sine, turned[..., :1])
        return _Apart(
            centre[:, None] - modes[:, :3], angle, turned[..., 1:] / sine,
            angles[:, None] - modes[:, 7:],
        )  # fmt: skip

    def _widths(self, t: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """s of the three parts, ()."""
        s = torch.tensor(self.spread, dtype=torch.float64)
        if t is not None:
            sigma = logarithms(self.schedule, t.double())[1].exp()
            s = (s.square() + sigma.square()).sqrt()
        s_tr, s_rot, s_tor = s.unbind()
        return s_tr, s_rot, s_tor


def random_modes(ligand: Ligand, count: int, seed: int, pocket: float = 6.0) -> Tensor:
    """Poses (count, 7 + k): centres normal with that spread in Angstrom, the rest uniform."""
    chance = torch.Generator().manual_seed(seed)
    z = torch.randn(count, 7 + ligand.torsions, generator=chance, dtype=torch.float64)
    return Chart(ligand, pocket).start(z)


def geometric_weights(count: int, ratio: float = 0.6) -> Tensor:
    """Weights that fall by a ratio from mode to mode: the first stands for the crystal pose."""
    falling = torch.tensor([ratio**n for n in range(count)], dtype=torch.float64)
    return falling / falling.sum()


def exact_docking(
    ligand: Ligand,
    schedule: Parts,
    modes: int = 5,
    seed: int = 0,
    spread: Sequence[float] = SPREAD,
) -> ExactDocking:
    """A problem with random poses as modes."""
    s_tr, s_rot, s_tor = spread
    return ExactDocking(
        ligand, random_modes(ligand, modes, seed), schedule, geometric_weights(modes),
        (s_tr, s_rot, s_tor),
    )  # fmt: skip
