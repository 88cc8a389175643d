"""GITS: the cheapest path through a fine grid, by dynamic programming.

Chen et al. 2024, arXiv 2405.11326. A teacher solves on M fine points. The cost of a jump from its
state i to point j, one step of Euler, is the mean over samples of

    l2, l1   the distance from the teacher's state j
    dev      the distance from the chord between first and last state, minus that of state j

With g the coefficient, the least cost V_k(j) from point j to the last in k jumps is

    V_1(j) = cost(j, last)        V_k(j) = min over i > j of cost(j, i) + g V_{k-1}(i)

so that g > 1 weighs jumps near the data more. The minimisers give the path. The analytical first
step of the paper's code (AFS) is not used: it changes the solver, not the grid.

The paper takes g = 1.15 for images, and for Stable Diffusion tries nine values. Without a
coefficient the search does the same: all paths come from one matrix of costs, and the one whose
samples are nearest to the teacher's on the validation pairs is taken, with the solver of the
problem.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.grids import TimeGrid
from ld3.problem import Problem
from ld3.searches.protocol import Found, Need, Report
from ld3.searches.trajectories import Fine, euler_jump, fine_walks, some
from ld3.searches.validation import Validation
from ld3.table import TunedSolver

Cost = Literal["dev", "l1", "l2"]
LOOKS: frozenset[Need] = frozenset({"model", "pairs"})
COEFFICIENTS = (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2)  # tried where none is given


@dataclass(frozen=True)
class GITS:
    """Dynamic programming over the jumps from the states of a teacher."""

    cost: Cost = "dev"
    coefficient: float | None = 1.15  # None: the best of COEFFICIENTS
    points: int = 61
    samples: int = 256

    def __post_init__(self) -> None:
        if self.cost not in ("dev", "l1", "l2"):
            raise SpecError(f"cost: got {self.cost!r}, expected dev, l1 or l2")

    @property
    def source(self) -> str:
        name = "GITS (Chen et al. 2024): dynamic programming over teacher states"
        return name if self.coefficient is not None else f"{name}, coefficient tuned"

    @property
    def needs(self) -> frozenset[Need]:
        return LOOKS if self.coefficient is not None else LOOKS | {"solver"}

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        count, total, spent = len(some(problem, self.samples)), torch.zeros(()), 0
        for part, walk in fine_walks(problem, self.samples, self.points):
            total = total + jump_costs(walk, self.cost)
            spent += walk.evaluations
            progress(int(part[-1]) + 1, count)
        costs = total / count
        if self.coefficient is not None:
            path, least = cheapest_path(costs, problem.steps, self.coefficient)
            tuned = TunedSolver(problem.solver, TimeGrid.of(walk.grid.times[path]))
            return Found(tuned, spent, (least,))
        paths = [cheapest_path(costs, problem.steps, g)[0] for g in COEFFICIENTS]
        different = [list(path) for path in dict.fromkeys(map(tuple, paths))]
        grids = [TimeGrid.of(walk.grid.times[path]) for path in different]
        validation = Validation(problem)
        return validation.found(grids[validation.best(grids)], spent)


def jump_costs(walk: Fine, kind: Cost) -> Tensor:
    """(M, M) float64, summed over samples; above the diagonal, infinite elsewhere."""
    count = len(walk.s)
    costs = torch.full((count, count), math.inf, dtype=torch.float64, device="cpu")
    truth = _away_from_chord(walk, walk.states) if kind == "dev" else None
    for i in range(count - 1):
        landed = euler_jump(walk.states[i], walk.eps[i], walk.s[i], walk.s[i + 1 :])
        if truth is not None:
            missed = _away_from_chord(walk, landed) - truth[i + 1 :]
        else:
            apart = (landed - walk.states[i + 1 :]).flatten(2)
            missed = torch.linalg.vector_norm(apart, ord=int(kind[1]), dim=2)
        costs[i, i + 1 :] = missed.double().sum(1).cpu()
    return costs


def _away_from_chord(walk: Fine, points: Tensor) -> Tensor:
    """The distance (J, B) of points (J, B, *S) from the line through first and last state."""
    first, last = walk.states[0].flatten(1), walk.states[-1].flatten(1)
    along = (last - first) / torch.linalg.vector_norm(last - first, dim=1, keepdim=True)
    apart = points.flatten(2) - first
    off = apart - (apart * along).sum(2, keepdim=True) * along
    away: Tensor = torch.linalg.vector_norm(off, dim=2)
    return away


def cheapest_path(costs: Tensor, jumps: int, coefficient: float) -> tuple[list[int], float]:
    """From the first point to the last in that many jumps; costs (M, M) of i -> j, i < j."""
    value = costs[:, -1]  # (M,) of one jump to the end
    chosen = []
    for _ in range(jumps - 1):
        value, ahead = (costs + coefficient * value).min(dim=1)
        chosen.append(ahead)
    path = [0]
    for ahead in reversed(chosen):
        path.append(int(ahead[path[-1]]))
    return [*path, len(costs) - 1], float(value[0])
