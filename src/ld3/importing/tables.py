"""Published multistep methods on flows: weights on velocities, as corrections of a plan.

A step of such a method is

    x_{n+1} = x_n + (s_{n+1} - t_n) sum_{j <= n} w_nj v_j          v_j at x_j and network time c_j

DyWeight (arXiv 2603.11607) learns w and a scale of the network time. Its weights need not add up to
one; the time that was reached goes on from the sum, t_{n+1} = t_n + (s_{n+1} - t_n) sum_j w_nj, and
c_n is its scale times t_n. The s are even times under the flow's shift. NeuralSolver (arXiv
2505.21114) learns w, whose rows add up to one, and the steps.

With m_j = x_j - c_j v_j the method is linear in x_T and the m_j: a table. The plan has a known
solver on the times t and, as corrections, what is missing from its table.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.importing.lists import Read, within
from ld3.schedules import Flow, Schedule
from ld3.solvers import Solver
from ld3.table import TunedSolver
from ld3.tool_units import flow_shift

LEAST = 1e-6  # between two times


@dataclass(frozen=True)
class Multistep:
    """Weights on velocities, and the times of these velocities."""

    method: Literal["DyWeight", "NeuralSolver"]
    weights: Tensor  # (N, N) lower triangular, float64
    scales: Tensor | None = None  # (N,) of network times: DyWeight
    widths: Tensor | None = None  # (N,) of steps in t: NeuralSolver


def from_table(table: Multistep, solver: Solver, shift: float | None, schedule: Schedule) -> Read:
    """A grid, and the corrections that make the solver on it this method."""
    if not isinstance(schedule, Flow):
        raise SpecError(f"{table.method}: got a model that is no flow, expected a rectified flow")
    if solver.nfe(4) != 4:
        raise SpecError(
            f"solver: got {solver.name} for {table.method}, expected one with an evaluation a step"
        )
    count = len(table.weights)
    if table.widths is not None:
        aims = 1 - torch.cat([torch.zeros(1).double(), table.widths.cumsum(0)])
    else:
        even = torch.linspace(1, 0, count + 1, dtype=torch.float64)
        s = flow_shift(schedule) if shift is None else shift
        aims = s * even / (1 + (s - 1) * even)
    reached = [aims[0]]
    for n, row in enumerate(table.weights):
        reached.append(reached[-1] + (aims[n + 1] - reached[-1]) * row.sum())
    times = torch.stack(reached)
    told = times[:-1] * (1 if table.scales is None else table.scales)
    told = torch.cat([told, times[-1:]])
    read = within(_falling(times, schedule), schedule, (), told)
    wanted = _rows(table, aims, times, read.grid.net_times)
    plain = TunedSolver(solver, read.grid).table(schedule).weights
    return Read(read.grid, (*_notes(table, read), *read.notes), (wanted - plain)[1:])


def _rows(table: Multistep, aims: Tensor, times: Tensor, told: Tensor) -> Tensor:
    """(N+1, N+1): each state on x_T and the m_j."""
    count = len(table.weights)
    unit = torch.eye(count + 1, dtype=torch.float64)
    rows, velocities = [unit[0]], []
    for n in range(count):
        velocities.append((rows[n] - unit[n + 1]) / told[n])
        mean = sum((w * v for w, v in zip(table.weights[n], velocities, strict=False)), 0 * unit[0])
        rows.append(rows[n] + (aims[n + 1] - times[n]) * mean)
    return torch.stack(rows)


def _falling(times: Tensor, schedule: Schedule) -> Tensor:
    """The times reached, inside of the range and strictly falling; the last is t_min."""
    room = torch.arange(len(times) - 1, -1, -1, dtype=torch.float64) * LEAST
    inside = torch.maximum(times, schedule.t_min + room)
    inside = torch.minimum(inside, torch.tensor(schedule.t_max) - LEAST * len(times) + room)
    inside[0], inside[-1] = schedule.t_max, schedule.t_min
    return inside


def _notes(table: Multistep, read: Read) -> tuple[str, ...]:
    sums = table.weights.sum(1)
    low, high = float(sums.min()), float(sums.max())
    if math.isclose(low, 1, abs_tol=1e-3) and math.isclose(high, 1, abs_tol=1e-3):
        return (f"{table.method}: {len(sums)} evaluations",)
    return (f"{table.method}: {len(sums)} evaluations; weights add up to {low:.3f} .. {high:.3f}",)
