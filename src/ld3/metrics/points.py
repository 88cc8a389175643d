"""Metrics of sets of point clouds: samples S (n, P, 3) against references R (m, P, 3).

    CD(X, Y)  = mean_x min_y |x - y|^2 + mean_y min_x |x - y|^2      Chamfer distance
    EMD(X, Y) = min over one-to-one maps f of mean_x |x - f(x)|      earth mover's distance
    MMD       = mean over R of the smallest CD to a sample
    COV       = share of R that is the nearest reference of some sample
    1-NNA     = share of S and R together whose nearest neighbour is of their own set
    JSD       = Jensen-Shannon divergence, in bits, of where the points of all clouds are

(Achlioptas et al. 2018, arXiv 1707.02392; 1-NNA: Yang et al. 2019, arXiv 1906.12320.) Low is good
for MMD and JSD, high for COV; 1-NNA is best at 1/2. Published tables normalise each cloud by its
bounding box first, :func:`to_box`. They count points on a grid in a ball of radius 1/2 although
the box reaches to 1, so most points are counted on its rim; with `shrink=2` the whole shape is
inside.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.metrics.assignment import assign

PAIRS = 1 << 18  # distances between points that are held at once
CELLS = 28  # of the grid, a side


@dataclass(frozen=True)
class CloudScores:
    """What :func:`cloud_scores` finds."""

    mmd: float
    coverage: float
    nna: float
    jsd: float  # with the grid of the published tables
    jsd_half: float  # with all of the shape inside of the grid


def check_clouds(clouds: Tensor, what: str = "clouds") -> Tensor:
    """(n, P, 3), finite, not empty; in float32 or wider."""
    if not isinstance(clouds, Tensor) or clouds.ndim != 3 or clouds.shape[2] != 3:
        got = tuple(clouds.shape) if isinstance(clouds, Tensor) else type(clouds).__name__
        raise SpecError(
            f"{what}: got {got}, expected clouds of one size as a tensor (n, points, 3); draw the "
            "same number of points from each"
        )
    if not len(clouds) or not clouds.shape[1]:
        raise SpecError(f"{what}: got none in {tuple(clouds.shape)}, expected at least one point")
    if not bool(torch.isfinite(clouds).all()):
        raise SpecError(f"{what}: got numbers that are not finite, expected coordinates")
    return clouds.to(torch.promote_types(clouds.dtype, torch.float32))


def check_pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two sets of clouds with equally many points."""
    a, b = check_clouds(a), check_clouds(b)
    if a.shape[1] != b.shape[1]:
        raise SpecError(
            f"clouds: got {a.shape[1]} points against {b.shape[1]}, expected as many; draw "
            f"{min(a.shape[1], b.shape[1])} points from each cloud of both sets"
        )
    return a, b


def to_box(clouds: Tensor) -> Tensor:
    """Each cloud (n, P, 3) shifted and scaled so that its bounding box is centred and its largest
    side reaches from -1 to 1."""
    clouds = check_clouds(clouds)
    low, high = clouds.amin(1, keepdim=True), clouds.amax(1, keepdim=True)
    half = (high - low).amax(2, keepdim=True) / 2
    tiny = torch.finfo(clouds.dtype).tiny
    return (clouds - (low + high) / 2) / half.clamp_min(tiny)


def chamfer_matrix(a: Tensor, b: Tensor) -> Tensor:
    """CD of every cloud of a (n, P, 3) to every cloud of b (m, P, 3): (n, m).

    Squared distances are x x + y y - 2 x y, a few pairs of clouds at a time.
    """
    a, b = check_pair(a, b)
    left = torch.cat([-2 * a, a.square().sum(-1, keepdim=True), torch.ones_like(a[..., :1])], -1)
    right = torch.cat([b, torch.ones_like(b[..., :1]), b.square().sum(-1, keepdim=True)], -1)
    right = right.transpose(1, 2).contiguous()  # (m, 5, P)
    parts = torch.split(right, max(1, PAIRS // a.shape[1] ** 2))
    rows = []
    for cloud in left:
        found = []
        for part in parts:
            squared = cloud @ part  # (k, P, P)
            found.append(squared.amin(1).mean(1) + squared.amin(2).mean(1))
        rows.append(torch.cat(found))
    return torch.stack(rows)


def chamfer_within(clouds: Tensor) -> Tensor:
    """CD between all clouds of one set, (n, n): each pair once."""
    clouds = check_clouds(clouds)
    found = clouds.new_zeros(len(clouds), len(clouds))
    for i in range(len(clouds)):
        found[i, i:] = chamfer_matrix(clouds[i : i + 1], clouds[i:])[0]
    return torch.maximum(found, found.T)


def emd_matrix(a: Tensor, b: Tensor) -> Tensor:
    """EMD of every cloud of a to every cloud of b, (n, m), exact, by assignment.

    Takes about P^3 operations a pair: for small sets of small clouds.
    """
    a, b = (clouds.double().cpu() for clouds in check_pair(a, b))
    found = np.empty((len(a), len(b)))
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            apart = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").numpy()
            found[i, j] = apart[np.arange(len(x)), assign(apart)].mean()
    return torch.from_numpy(found)


def matching(distances: Tensor) -> tuple[float, float]:
    """MMD and COV from the distances of samples to references, (n, m)."""
    nearest = distances.argmin(1)  # the reference of each sample
    return float(distances.amin(0).mean()), len(torch.unique(nearest)) / distances.shape[1]


def neighbour_accuracy(samples: Tensor, references: Tensor, across: Tensor) -> float:
    """1-NNA from the distances inside of both sets, (n, n) and (m, m), and across, (n, m)."""
    own = [d + torch.diag(d.new_full((len(d),), torch.inf)) for d in (samples, references)]
    right = (own[0].amin(1) < across.amin(1)).sum() + (own[1].amin(1) <= across.amin(0)).sum()
    return float(right) / (len(samples) + len(references))


def occupancy(clouds: Tensor, shrink: float = 1.0) -> Tensor:
    """How many points of each cloud are nearest to each grid point within radius 1/2: (n, cells).

    The grid has 28 points a side from -1/2 to 1/2; clouds are divided by `shrink` first.
    """
    clouds = check_clouds(clouds).double() / shrink
    number, centres = _grid(clouds.device)
    steps = CELLS - 1
    at = ((clouds + 0.5) * steps).round().long()  # the nearest of the whole grid
    in_box = ((at >= 0) & (at < CELLS)).all(-1)
    x, y, z = at.clamp(0, steps).unbind(-1)
    cell = number[x, y, z].masked_fill(~in_box, -1)  # (n, P); -1: not in the ball
    outside = clouds[cell < 0]
    parts = torch.split(outside, PAIRS // 256)
    nearest = [torch.cdist(part, centres).argmin(1) for part in parts]
    if nearest:
        cell[cell < 0] = torch.cat(nearest)
    counts = torch.zeros(len(clouds), len(centres), dtype=torch.float64, device=clouds.device)
    return counts.scatter_add_(1, cell, torch.ones_like(cell, dtype=torch.float64))


def _grid(device: torch.device) -> tuple[Tensor, Tensor]:
    """The number of each grid point, -1 outside of the ball, and the points inside, (cells, 3)."""
    line = torch.linspace(-0.5, 0.5, CELLS, dtype=torch.float64, device=device)
    points = torch.stack(torch.meshgrid(line, line, line, indexing="ij"), -1)
    inside = points.norm(dim=-1) <= 0.5
    number = torch.full(inside.shape, -1, dtype=torch.int64, device=device)
    number[inside] = torch.arange(int(inside.sum()), device=device)
    return number, points[inside]


def divergence(a: Tensor, b: Tensor) -> float:
    """JSD in bits of two histograms (cells,): 0 if they are alike, 1 if nothing overlaps."""
    p, q = a / a.sum(), b / b.sum()
    mean = (p + q) / 2

    def entropy(r: Tensor) -> float:
        return float(-torch.special.xlogy(r, r).sum()) / math.log(2)

    return max(0.0, entropy(mean) - (entropy(p) + entropy(q)) / 2)


def cloud_scores(samples: Tensor, references: Tensor) -> CloudScores:
    """All metrics of samples (n, P, 3) against references (m, P, 3), each cloud in its box."""
    s, r = (to_box(clouds) for clouds in check_pair(samples, references))
    across = chamfer_matrix(s, r)
    mmd, coverage = matching(across)
    inside = neighbour_accuracy(chamfer_within(s), chamfer_within(r), across)
    jsd, half = (
        divergence(occupancy(s, shrink).sum(0), occupancy(r, shrink).sum(0)) for shrink in (1, 2)
    )
    return CloudScores(mmd, coverage, inside, jsd, half)
