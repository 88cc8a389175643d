"""The sampling loop: from x at t_0 to x at t_N. There is no other.

>>> for x in trajectory(denoise, solver, knots(schedule, grid), x): ...   # doctest: +SKIP
"""

from collections.abc import Iterator

from torch import Tensor

from ld3.grids import Knots
from ld3.solvers.base import Denoise, History, Solver


def trajectory(denoise: Denoise, solver: Solver, k: Knots, x: Tensor) -> Iterator[Tensor]:
    """Yield x_0 = x, x_1, ..., x_N. Gradients flow if the caller has them switched on."""
    history: History = ()
    yield x
    for i in range(k.steps):
        x, history = solver.step(denoise, k, i, x, history)
        yield x


def integrate(denoise: Denoise, solver: Solver, k: Knots, x: Tensor) -> Tensor:
    """x_N, the sample."""
    for x in trajectory(denoise, solver, k, x):  # noqa: B007, B020
        pass
    return x
