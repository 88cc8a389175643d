"""GITS: the cheapest path through a fine grid, by dynamic programming.

Chen et al. 2024, arXiv 2405.11326. A teacher solves on M fine points. The cost of a jump from its
state i to point j, one step of Euler, is the mean over samples of

    l2, l1   the distance from the teacher's state j
    dev      the distance from the chord between first and last state, minus that of state j

With g the coefficient, the least cost V_k(j) from point j to the last in k jumps is

    V_1(j) = cost(j, last)        V_k(j) = min over i > j of cost(j, i) + g V_{k-1}(i)

so that g > 1 weighs jumps near the data more. The minimisers give the path. The analytical first
step of the paper's code (AFS) is not used: it changes the solver, not the grid.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.grids import TimeGrid
from ld3.problem import Problem, chunks
from ld3.searches.protocol import Found, Need, Report
from ld3.searches.trajectories import Fine, euler_jump, fine_trajectory, some
from ld3.solvers import make_solver
from ld3.table import TunedSolver

Cost = Literal["dev", "l1", "l2"]


@dataclass(frozen=True)
class GITS:
    """Dynamic programming over the jumps from the states of a teacher."""

    source: ClassVar[str] = "GITS (Chen et al. 2024): dynamic programming over teacher states"
    needs: ClassVar[frozenset[Need]] = frozenset({"model", "pairs"})

    cost: Cost = "dev"
    coefficient: float = 1.15
    points: int = 61
    samples: int = 256

    def __post_init__(self) -> None:
        if self.cost not in ("dev", "l1", "l2"):
            raise SpecError(f"cost: got {self.cost!r}, wanted dev, l1 or l2")

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        index = some(problem, self.samples)
        fine_steps = max(self.points - 1, 3 * problem.steps)
        total, spent = torch.zeros(()), 0
        for part in chunks(len(index), problem.batch):
            walk = fine_trajectory(problem, part, make_solver("ipndm", 4), "edm", fine_steps)
            total = total + jump_costs(walk, self.cost)
            spent += walk.evaluations
            progress(int(part[-1]) + 1, len(index))
        path, least = cheapest_path(total / len(index), problem.steps, self.coefficient)
        tuned = TunedSolver(problem.solver, TimeGrid.of(walk.grid.times[path]))
        return Found(tuned, spent, (least,))


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
