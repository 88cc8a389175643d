"""DiffDock (Corso et al. 2023, arXiv 2210.01776) from your own installation.

`ld3` brings the noise levels, the scale of the network's outputs, the pose update and the
alignment; you bring the network as a function of poses and time. Levels of noise are

    sigma(t) = min^(1-t) max^t            one t in [0, 1] for translation, rotation and torsion

The two versions differ in what the sigma of a rotation means. With s the standard deviation of the
heat kernel (:mod:`ld3.zoo.docking.kernels`):

    v1     exp(-l(l+1) sigma^2)       s = sqrt(2) sigma      g^2 = 4 sigma^2 log(max/min)
    v1.1   exp(-l(l+1) sigma^2 / 2)   s = sigma              g^2 = 2 sigma^2 log(max/min)

The version is therefore part of the noise levels of this model, and of every plan that is learned
for it: a plan of one version does not fit a model of the other. Mixing them halves or doubles every
rotation.

The network's heads become scores by

    tr / sigma_tr        rot c(sigma_rot)        tor sqrt(E score^2)

where c is the root mean square of the IGSO(3) score over sqrt(pi). DiffDock takes both norms from
tables by the nearest entry, one of them a Monte Carlo estimate; here they are integrals, and
differentiable in t.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ld3.errors import ModelError, SpecError, unknown
from ld3.models import Cond, ModelDefaults
from ld3.predictions import Prediction
from ld3.schedules import Parts, logarithms
from ld3.zoo.docking.kernels import igso3_mean_square, wrapped_mean_square
from ld3.zoo.docking.ligand import Ligand
from ld3.zoo.docking.spaces import Poses

Version = Literal["v1", "v1.1"]
Heads = tuple[Tensor, Tensor, Tensor]
ScoreFunction = Callable[[Tensor, Tensor], Heads]
"""Poses (B, n, 3) and t () -> translation (B, 3), rotation (B, 3), torsion (B, k)."""

VERSIONS: dict[str, float] = {"v1": math.sqrt(2), "v1.1": 1.0}  # s / sigma of rotations
NAMES = ("tr", "rot", "tor")
PAPER = {
    "tr_sigma_min": 0.1, "tr_sigma_max": 19.0, "rot_sigma_min": 0.03, "rot_sigma_max": 1.55,
    "tor_sigma_min": 0.0314, "tor_sigma_max": 3.14,
}  # fmt: skip
"""The score model of the paper, which is v1."""


@dataclass(frozen=True)
class NoiseLevels:
    """The ranges of sigma as `model_parameters.yml` has them, and the version they belong to."""

    version: Version
    tr: tuple[float, float]
    rot: tuple[float, float]
    tor: tuple[float, float]

    @classmethod
    def of(cls, version: str, parameters: Mapping[str, Any] | None = None) -> "NoiseLevels":
        """From the content of `model_parameters.yml`; without it, those of the paper's v1 model."""
        if version not in VERSIONS:
            raise unknown("DiffDock version", version, VERSIONS)
        if parameters is None and version != "v1":
            raise SpecError(
                f"DiffDock: got version {version} without parameters, expected those of its "
                "model_parameters.yml; the levels of the paper's model are of v1"
            )
        given = PAPER if parameters is None else parameters
        try:
            ends = [(given[f"{n}_sigma_min"], given[f"{n}_sigma_max"]) for n in NAMES]
            tr, rot, tor = ((float(low), float(high)) for low, high in ends)
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(
                f"DiffDock: got parameters without {error}, expected tr_sigma_min, tr_sigma_max "
                "and the same for rot and tor, as numbers"
            ) from None
        return cls("v1" if version == "v1" else "v1.1", tr, rot, tor)

    @cached_property
    def schedule(self) -> Parts:
        """With rotations in units of s."""
        unit = VERSIONS[self.version]
        lows, highs = zip(self.tr, self.rot, self.tor, strict=True)
        return Parts((lows[0], unit * lows[1], lows[2]), (highs[0], unit * highs[1], highs[2]))

    def g_squared(self, t: Tensor) -> Tensor:
        """g^2 of translation, rotation and torsion at t (*,): (*, 3), as in the original."""
        s = logarithms(self.schedule, t)[1].exp()
        rates = torch.tensor([part.rate for part in self.schedule.parts], dtype=s.dtype)
        return 2 * s.square() * rates

    def norms(self, t: Tensor) -> Tensor:
        """What the three heads are multiplied by, (3,); differentiable in t."""
        s_tr, s_rot, s_tor = logarithms(self.schedule, t.double())[1].exp().unbind(-1)
        rotation = (igso3_mean_square(s_rot) / math.pi).sqrt()
        return torch.stack([1 / s_tr, rotation, wrapped_mean_square(s_tor).sqrt()], -1)


@dataclass(frozen=True, eq=False)
class DiffDock(ModelDefaults):
    """A DiffDock score network with one ligand and its receptor, as a model.

    `score(poses, t)` is your network, with the receptor inside. `outputs` says what it gives:
    `scores` if it scales its heads itself (`scale_by_sigma: true`), else `heads`. Coordinates are
    in the frame that your network expects: DiffDock's has the receptor's centre at 0.

    The original's own scale is a table, which has no slope in t. Take its `heads` for learning.
    """

    score: ScoreFunction
    ligand: Ligand
    levels: NoiseLevels
    outputs: Literal["scores", "heads"] = "scores"
    name: str = ""  # of weights and receptor, for plans and caches; none: measured
    crystal: Tensor | None = None  # (n, 3) atoms of the true pose, for success rates
    confidence: Callable[[Tensor], Tensor] | None = None  # poses (B, n, 3) -> (B,): ranks them

    prediction: ClassVar[Prediction] = "eps"
    dtype: ClassVar[torch.dtype | None] = None
    exact_time: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.outputs not in ("scores", "heads"):
            raise SpecError(f"outputs: got {self.outputs!r}, expected scores or heads")

    @property
    def schedule(self) -> Parts:
        return self.levels.schedule

    @cached_property
    def space(self) -> Poses:  # type: ignore[override]
        return Poses(self.ligand, self.schedule.prior_std)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.space.shape

    @property
    def digest(self) -> str | None:  # type: ignore[override]
        return self.name or None

    @property
    def identity(self) -> str | None:  # type: ignore[override]
        return f"{self.name} {self.outputs} {self.ligand.digest}" if self.name else None

    def forward(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        """eps = -s score, (B, 6 + k)."""
        heads = self.score(x, t)
        self._check(heads, len(x))
        s = logarithms(self.schedule, t.double())[1].exp()
        factors = -s if self.outputs == "scores" else -s * self.levels.norms(t)
        scaled = [h * f.to(h.device, h.dtype) for h, f in zip(heads, factors, strict=True)]
        return torch.cat(scaled, 1)

    def _check(self, heads: Heads, count: int) -> None:
        wanted = [(count, 3), (count, 3), (count, self.ligand.torsions)]
        got = [tuple(head.shape) for head in heads]
        if got != wanted:
            raise ModelError(
                f"DiffDock: got scores of shapes {got}, expected {wanted}: translation, rotation "
                f"and one torsion for each rotatable bond of {self.ligand.name}"
            )
