"""OSS: dynamic programming over the student's own states.

Pei et al. 2025, arXiv 2503.21774. A teacher solves on M fine points. For each sample, point j and
step count k the best reachable state is

    X_k(j) = the Euler step from some X_{k-1}(i), i < j, that is nearest to the teacher's state j

The network is evaluated at the student's states, about (N - 1) M times per sample. The path to X_N
at the last point is the sample's grid; the result takes the median over samples of its k-th point.
The optimum is greedy: the best X_k need not come from the best X_{k-1}.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ld3.grids import TimeGrid
from ld3.models import bind, take
from ld3.problem import Problem
from ld3.searches.protocol import Found, Need, Report
from ld3.searches.trajectories import Fine, euler_jump, fine_walks
from ld3.solvers import Denoise
from ld3.table import TunedSolver


@dataclass(frozen=True)
class OSS:
    """The best reachable states, step by step."""

    source: ClassVar[str] = "OSS (Pei et al. 2025): dynamic programming over student states"
    needs: ClassVar[frozenset[Need]] = frozenset({"model", "pairs"})

    points: int = 61
    samples: int = 8

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        paths, missed, spent = [], [], 0
        for part, walk in fine_walks(problem, self.samples, self.points):
            denoise = bind(problem.model, take(problem.train.cond, part), guidance=problem.guidance)
            found, miss, calls = best_paths(problem, walk, denoise, problem.steps, progress)
            paths.append(found)
            missed.append(torch.tensor(miss, dtype=torch.float64, device="cpu") * len(part))
            spent += walk.evaluations + calls * len(part)
        middle = torch.cat(paths).median(dim=0).values
        tuned = TunedSolver(problem.solver, TimeGrid.of(walk.grid.times[middle]))
        curve = torch.stack(missed).sum(0) / sum(map(len, paths))
        return Found(tuned, spent, tuple(curve.tolist()))


@torch.no_grad()
def best_paths(
    problem: Problem, walk: Fine, denoise: Denoise, steps: int, progress: Report
) -> tuple[Tensor, tuple[float, ...], int]:
    """Points (B, N+1) of each sample, the mean square miss after each step, network calls."""
    last = len(walk.s) - 1
    alpha = problem.model.schedule.log_alpha(walk.grid.times).exp().tolist()
    count = walk.states.shape[1]
    states, came = walk.states, []  # (M, B, *S); entry 0 is where all begin
    missed = []
    calls = 0
    for k in range(steps):
        # from points that k steps reach and from which the end is still as far away as needed
        froms = range(k, last - (steps - k) + 1) if k else range(1)
        least = torch.full((last + 1, count), torch.inf, dtype=torch.float64, device="cpu")
        source = torch.zeros(last + 1, count, dtype=torch.long, device="cpu")
        nearest = torch.zeros_like(walk.states)
        for i in froms:
            if k == 0:
                eps = walk.eps[0]  # known from the teacher
            else:
                x0 = denoise(alpha[i] * states[i], walk.grid.times[i])
                eps, calls = (states[i] - x0) / walk.s[i], calls + 1
            ahead = slice(last, last + 1) if k == steps - 1 else slice(i + 1, last)
            landed = euler_jump(states[i], eps, walk.s[i], walk.s[ahead])  # (J, B, *S)
            apart = (landed - walk.states[ahead]).double().flatten(2).square().mean(2).cpu()
            better = apart < least[ahead]
            least[ahead] = torch.where(better, apart, least[ahead])
            source[ahead] = torch.where(better, torch.full_like(source[ahead], i), source[ahead])
            nearest[ahead][better.to(nearest.device)] = landed[better.to(landed.device)]
            progress(k * last + i + 1, steps * last)
        states = nearest
        came.append(source)
        missed.append(float(least[least.isfinite().all(1)].mean()))
    paths = [torch.full((count,), last, dtype=torch.long, device="cpu")]
    for source in reversed(came):
        paths.insert(0, source.gather(0, paths[0][None])[0])
    progress(steps * last, steps * last)
    return torch.stack(paths, 1), tuple(missed), calls
