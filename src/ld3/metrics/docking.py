"""Poses of a ligand: root mean square deviation up to symmetry, and success among ranked poses.

    RMSD(x, y) = min over symmetries p of sqrt(mean_i |x_p(i) - y_i|^2)        in Angstrom

A symmetry is an order of the atoms that gives the same molecule: the two oxygens of a carboxylate
may be swapped. Nothing is aligned: where a pose is counts. A pose is a success below 2 Angstrom.

Of several poses of one complex, ranked by a confidence or a density, top-1 is the best ranked one,
and top-k the one of smallest RMSD among the k best ranked.
"""

import torch
from torch import Tensor

from ld3.errors import SpecError

SUCCESS = 2.0  # Angstrom
CHUNK = 2_000_000  # values at a time


def symmetric_rmsd(poses: Tensor, reference: Tensor, symmetries: Tensor) -> Tensor:
    """Poses (B, n, 3) to a reference (n, 3) or (B, n, 3), over symmetries (S, n): (B,)."""
    atoms = symmetries.shape[-1]
    if poses.ndim != 3 or poses.shape[1:] != (atoms, 3) or reference.shape[-2:] != (atoms, 3):
        raise SpecError(
            f"RMSD: got poses of shape {tuple(poses.shape)} and a reference of shape "
            f"{tuple(reference.shape)}, expected (B, {atoms}, 3) and ({atoms}, 3): the molecule "
            f"has {atoms} atoms"
        )
    x, y = poses.double(), reference.double().expand(poses.shape)
    best = torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)
    for some in torch.split(symmetries, max(1, CHUNK // max(x.numel(), 1))):
        square = (x[:, some] - y[:, None]).square().sum(-1).mean(-1)  # (B, S)
        best = torch.minimum(best, square.amin(1))
    return best.sqrt()


def top_rmsd(rmsd: Tensor, ranking: Tensor, k: int) -> Tensor:
    """The smallest RMSD among the k poses of highest rank: (G, P), (G, P) -> (G,)."""
    if rmsd.shape != ranking.shape or rmsd.ndim != 2 or not 1 <= k <= rmsd.shape[1]:
        raise SpecError(
            f"top-{k}: got RMSDs of shape {tuple(rmsd.shape)} and ranks of shape "
            f"{tuple(ranking.shape)}, expected twice (complexes, poses) with at least {k} poses"
        )
    first = torch.argsort(ranking, dim=1, descending=True, stable=True)[:, :k]
    return rmsd.gather(1, first).amin(1)


def success_rate(rmsd: Tensor, below: float = SUCCESS) -> float:
    """The share of values (N,) below a threshold in Angstrom."""
    return float((rmsd < below).double().mean())
