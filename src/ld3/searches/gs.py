"""GS: times, network times and every coefficient of a solver, by Adam on the distance of pairs.

After Oganov et al. (Generalized Solver, ICLR 2026). The solver is the problem's; all weights of its
table get corrections that start at zero, those of the noise included. In their form each state is
a free combination of all earlier states and answers, which spans the same tables. Times are
fractions of what is left of the range of a variable v,

    v_n = v_N + (v_0 - v_N) prod_{j <= n} sigmoid(theta_j)

and network times v_n + s_n have no bound. One rate for all numbers, slopes clipped to length 1, a
moving average as the result, neither validation nor soft forcing.

Different here: v is lam, where their networks run in the time of a VP schedule; the start is even
in that time, as theirs. A tenth of the iterations or less, so the rate is larger. No adversarial
loss, which their second method (GAS) adds.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ld3.grids import TimeGrid
from ld3.known_grids import make_grid
from ld3.parameters import GROUPS, GridParameters, SolverParameters
from ld3.problem import Problem, Student
from ld3.schedules import EDM
from ld3.searches.adam import Adam
from ld3.searches.protocol import Found, Need, Report
from ld3.table import Table


class StickBreaking(GridParameters):
    """Each logit says which share of the rest of the range is left; the last has no effect."""

    def shares(self, logits: Tensor) -> Tensor:
        left = torch.sigmoid(logits[:-1]).cumprod(0)
        return -torch.cat([torch.ones_like(left[:1]), left, torch.zeros_like(left[:1])]).diff()

    def logits(self, grid: TimeGrid) -> Tensor:
        first, last = self.ends()
        left = (self._variable(grid.times) - last) / (first - last)  # 1 .. 0
        return torch.cat([torch.logit(left[1:-1] / left[:-2]), torch.zeros_like(left[:1])])


@dataclass(frozen=True)
class GS:
    """Plain Adam on all numbers of a solver at once."""

    source: ClassVar[str] = "GS (Oganov et al. 2026): times and all coefficients by plain Adam"
    needs: ClassVar[frozenset[Need]] = frozenset({"model", "pairs", "solver"})

    iterations: int = 300
    batch: int = 8
    rate: float = 0.005

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        schedule, steps = problem.model.schedule, problem.steps
        grids = StickBreaking(schedule, steps, window=float("inf"))
        parameters = SolverParameters(problem.solver, grids, GROUPS)
        even = "vp-uniform" if isinstance(schedule, EDM) else "uniform"
        start = parameters.start_values(make_grid(even, schedule, steps))
        rates = {name: self.rate for name in GROUPS if len(start[name])}
        adam = Adam("gs", rates, self.iterations, self.batch, clip=1.0, average=0.98)

        def loss(student: Student, index: Tensor, table: Table) -> Tensor:
            return student.losses("train", index, table).mean()

        return adam(problem, parameters, start, loss, seed, progress)
