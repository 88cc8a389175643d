"""A solver on a grid, compiled to numbers.

With the times fixed every method here is linear in what the network says. Let m_n be its n-th
answer, given at state X_n and network time t^c. Then

    X_n = V[n, 0] x_T + sum_{j < n} V[n, 1 + j] m_j         n = 0..M-1,   X_M the sample

with M the number of evaluations and V lower triangular. The table is found by running the solver
itself on unit vectors, in float64, so it is differentiable in the times and cannot disagree with
the solver. One executor of a dozen lines runs any method from its table.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.grids import Knots
from ld3.sampling import integrate
from ld3.solvers.base import Denoise, Solver


@dataclass(frozen=True)
class Table:
    """V and the network times; float64 on the CPU."""

    weights: Tensor  # (M+1, M+1), row n holds the weights of X_n on x_T, m_0 .. m_{M-1}
    net_times: Tensor  # (M,)

    @property
    def nfe(self) -> int:
        return len(self.net_times)

    def run(self, denoise: Denoise, x: Tensor) -> Tensor:
        """The sample from x = x_T. Without gradients in the table: numbers, not tensors."""
        terms = [x]
        rows = self.weights.tolist()
        for n, t in enumerate(self.net_times.unbind()):
            terms.append(denoise(_row(rows[n], terms), t))
        return _row(rows[-1], terms)


def compile_table(solver: Solver, k: Knots) -> Table:
    """Run the solver on unit vectors: the states are then the rows of V."""
    count = solver.nfe(k.steps)
    unit = torch.eye(count + 1, dtype=torch.float64, device="cpu")
    rows: list[Tensor] = []
    net_times: list[Tensor] = []

    def answer(state: Tensor, t: Tensor) -> Tensor:
        rows.append(state)
        net_times.append(t)
        return unit[len(rows)]

    rows.append(integrate(answer, solver, k, unit[0]))
    return Table(torch.stack(rows), torch.stack(net_times))


def _row(weights: list[float], terms: list[Tensor]) -> Tensor:
    total = weights[0] * terms[0]
    for weight, term in zip(weights[1:], terms[1:], strict=False):
        total = torch.add(total, term, alpha=weight)
    return total
