"""What is learned: three groups of numbers, and the solver they stand for.

    times          N logits: the gaps of the grid
    net            N-1 shifts of the network times
    coefficients   corrections of the table in x0 form, zero at the start

With n counting evaluations, the table with corrections C is

    X_n = (V[n, 0] + s_n C[n, 0]) x_T + sum_{j < n} (V[n, 1+j] + a_n C[n, 1+j]) x0_j

where s_n = sigma_n / sigma_T and a_n = alpha_n are the natural sizes of the weights, taken at the
time of row n. With `exact` the corrections keep C[n, 0] = 0 and sum_j C[n, 1+j] = 0, so that a
network whose x0 (or eps) never changes is still integrated without error.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ld3.discretizers.ld3.parametrize import Clock
from ld3.discretizers.ld3.warp import Warp
from ld3.errors import PlanError
from ld3.grids import TimeGrid, knots
from ld3.schedules import Schedule
from ld3.solvers import Solver
from ld3.table import Table, Tuned, compile_table

GROUPS = ("times", "net", "coefficients")
Numbers = Mapping[str, Tensor]
"""The numbers of each group; float64."""


def tuned_table(solver: Solver, schedule: Schedule, tuned: Tuned) -> Table:
    """In x0 form, differentiable."""
    return compile_table(solver, knots(schedule, tuned.grid), "x0", tuned.corrections)


class Tuning(ABC):
    """How numbers become a tuned solver."""

    solver: Solver
    learned: tuple[str, ...]

    @property
    @abstractmethod
    def schedule(self) -> Schedule: ...

    @abstractmethod
    def tuned(self, numbers: Numbers, steps: int) -> Tuned:
        """What the numbers stand for with this many steps, differentiable."""

    @abstractmethod
    def probe(self, name: str) -> float:
        """How far a number of this group is moved to see what it does."""

    def table(self, numbers: Numbers, steps: int) -> Table:
        """The tuned solver in x0 form, differentiable."""
        return tuned_table(self.solver, self.schedule, self.tuned(numbers, steps))

    def flat(self, numbers: Numbers) -> Tensor:
        """The learned ones as a vector (P,)."""
        return torch.cat([numbers[name] for name in self.learned])

    def unflat(self, vector: Tensor, numbers: Numbers) -> dict[str, Tensor]:
        """The inverse; what is not learned stays as in `numbers`."""
        parts = torch.split(vector, [len(numbers[name]) for name in self.learned])
        return {**numbers, **dict(zip(self.learned, parts, strict=True))}


@dataclass(frozen=True)
class FamilyTuning(Tuning):
    """Grids for every number of steps; see :mod:`.warp`."""

    solver: Solver
    warp: Warp
    learned: tuple[str, ...] = GROUPS[:2]

    @property
    def schedule(self) -> Schedule:
        return self.warp.schedule

    def numbers(self, centre: float, width: float) -> dict[str, Tensor]:
        """Those of a bump."""
        none = torch.empty(0, dtype=torch.float64, device="cpu")
        return {**self.warp.start(centre, width), "coefficients": none}

    def tuned(self, numbers: Numbers, steps: int) -> Tuned:
        return Tuned(self.warp.grid(numbers["times"], numbers["net"], steps))

    def probe(self, name: str) -> float:
        return {"times": 0.1, "net": 0.03}[name]


@dataclass(frozen=True)
class SolverTuning(Tuning):
    """One number of steps."""

    solver: Solver
    clock: Clock
    learned: tuple[str, ...] = GROUPS[:2]
    exact: bool = False

    @property
    def schedule(self) -> Schedule:
        return self.clock.schedule

    def probe(self, name: str) -> float:
        low, high = self.clock.ends()
        gap = float((high - low).abs()) / self.clock.steps
        return {"times": 0.1, "net": 0.03 * gap, "coefficients": 0.02}[name]

    def numbers(self, start: Tuned) -> dict[str, Tensor]:
        """Those that stand for a start."""
        coefficients = torch.empty(0, dtype=torch.float64, device="cpu")
        if "coefficients" in self.learned:
            coefficients = torch.zeros(len(self._places[0]), dtype=torch.float64, device="cpu")
            if start.corrections is not None:
                rows, columns = self._places
                added = start.corrections / self._sizes(start.grid)
                coefficients = added[rows, columns]
        elif start.corrections is not None:
            raise PlanError(
                "start: got a plan with learned coefficients, wanted --learn "
                "times+net+coefficients, or a start without them"
            )
        logits, shifts = self.clock.logits(start.grid), self.clock.shifts(start.grid)
        if self.clock.window_from == "logits":
            logits = logits - logits[0] + 1  # the code compares with a logit that stays at 1
        return {"times": logits, "net": shifts, "coefficients": coefficients}

    def tuned(self, numbers: Numbers, steps: int) -> Tuned:
        grid = self.clock.grid(numbers["times"], numbers["net"])
        if "coefficients" not in self.learned:
            return Tuned(grid)
        sizes = self._sizes(grid)
        free = torch.zeros_like(sizes).index_put(self._places, numbers["coefficients"])
        if self.exact:
            first = torch.nn.functional.one_hot(torch.tensor(1, device="cpu"), sizes.shape[1])
            free = free - free.sum(1, keepdim=True) * first
        return Tuned(grid, sizes * free)

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Rows and columns of the free corrections, in (M, M+1)."""
        count = self.solver.nfe(self.clock.steps)
        ones = torch.ones(count, count + 1, dtype=torch.bool, device="cpu").tril(1)
        if self.exact:
            ones[:, :2] = False
        rows, columns = ones.nonzero(as_tuple=True)
        return rows, columns

    @torch.no_grad()
    def _sizes(self, grid: TimeGrid) -> Tensor:
        """(M, M+1): sigma_n / sigma_T on the noise, alpha_n on the answers."""
        schedule, each = self.clock.schedule, self.solver.nfe(1)
        at = grid.times[1:].repeat_interleave(each)  # of row n: the end of the step it belongs to
        alpha, sigma = (f(at).exp() for f in (schedule.log_alpha, schedule.log_sigma))
        start = schedule.log_sigma(grid.times[:1]).exp()
        count = len(at)
        return torch.cat([(sigma / start)[:, None], alpha[:, None].expand(count, count)], 1)
