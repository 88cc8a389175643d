"""The two state spaces of docking, both T(3) x SO(3) x torus: a chart, and coordinates.

A tangent is (translation 3, rotation vector 3, one angle per rotatable bond). Rotations are in the
fixed frame, about the ligand's centroid. Noise z is (3 + 4 + k): a normal centre, four normals
whose direction is a uniform rotation, and normals whose distribution function gives uniform angles.

Chart: the state is (centre, quaternion, angles), and a move acts on each by itself. Exact densities
are on this space. Coordinates follow by turning the bonds of the seed conformer one by one.

Poses: the state is the coordinates themselves, as in DiffDock. A move turns the pose about its
centroid, shifts it, turns one bond after the other, and aligns the result with the pose before its
bonds were turned. The two differ: alignment after each move depends on the path.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.zoo.docking.ligand import Ligand
from ld3.zoo.docking.rotations import alignment, length, product, quaternion, turn

RIGID = 6  # coordinates of a tangent before the angles


@dataclass(frozen=True, eq=False)
class _OfLigand:
    """What both spaces have."""

    ligand: Ligand
    spread: float  # standard deviation of the centre at the start

    @property
    def parts(self) -> Tensor:
        """0 for translation, 1 for rotation, 2 for angles."""
        return torch.tensor([0] * 3 + [1] * 3 + [2] * self.ligand.torsions)

    @property
    def shape(self) -> tuple[int]:
        """Of the noise."""
        return (7 + self.ligand.torsions,)


class Chart(_OfLigand):
    """States (B, 7 + k): centre, unit quaternion, angles."""

    def start(self, z: Tensor) -> Tensor:
        return chart_of_noise(z, self.spread)

    def move(self, x: Tensor, tangent: Tensor) -> Tensor:
        centre, q, angles = split(x)
        turned = product(quaternion(tangent[:, 3:6]), q)
        turned = turned / turned.square().sum(-1, keepdim=True).sqrt()  # no drift by rounding
        return torch.cat([centre + tangent[:, :3], turned, angles + tangent[:, RIGID:]], 1)

    def coordinates(self, x: Tensor) -> Tensor:
        """Atoms (B, n, 3) of states."""
        centre, q, angles = split(x)
        seed = self.ligand.positions.to(x.device, x.dtype).expand(len(x), -1, -1)
        bent = turn_bonds(self.ligand, seed, angles)
        return turn(bent - bent.mean(1, keepdim=True), q) + centre[:, None]


class Poses(_OfLigand):
    """States (B, n, 3): coordinates of the atoms."""

    def start(self, z: Tensor) -> Tensor:
        return Chart(self.ligand, self.spread).coordinates(chart_of_noise(z, self.spread))

    def move(self, x: Tensor, tangent: Tensor) -> Tensor:
        centre = x.mean(1, keepdim=True)
        rigid = turn(x - centre, quaternion(tangent[:, 3:6])) + centre + tangent[:, None, :3]
        if not self.ligand.torsions:
            return rigid
        bent = turn_bonds(self.ligand, rigid, tangent[:, RIGID:])
        middle = rigid.mean(1, keepdim=True)
        bent = bent - bent.mean(1, keepdim=True)
        return bent @ alignment(bent, rigid - middle).mT + middle


def turn_bonds(ligand: Ligand, positions: Tensor, angles: Tensor) -> Tensor:
    """Turn each rotatable bond by its angle (B, k), one after the other: (B, n, 3).

    The axis points from v to u, and v stays where it is.
    """
    masks = ligand.masks.to(positions.device)
    for bond, mask, angle in zip(ligand.bonds.tolist(), masks, angles.unbind(1), strict=True):
        u, v = (positions[:, atom : atom + 1] for atom in bond)
        axis = (u - v) / length(u - v)
        q = quaternion(angle[:, None] * axis[:, 0])
        turned = turn(positions - v, q) + v
        positions = torch.where(mask[:, None], turned, positions)
    return positions


def split(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Centre (B, 3), quaternion (B, 4) and angles (B, k) of a state of the chart."""
    return x[:, :3], x[:, 3:7], x[:, 7:]


def chart_of_noise(z: Tensor, spread: float) -> Tensor:
    """z (B, 7 + k) -> centre, uniform rotation, uniform angles; in float64."""
    z = z.double()
    centre, q, angles = split(z)
    uniform = math.pi * torch.erf(angles / math.sqrt(2))
    return torch.cat([spread * centre, q / length(q), uniform], 1)
