"""The sampling loop: from x at t_0 to x at t_N. There is no other.

States that are not vectors come with their space, see :mod:`ld3.spaces`.

>>> for x in trajectory(denoise, solver, knots(schedule, grid), x): ...   # doctest: +SKIP
"""

from collections.abc import Iterator

from torch import Tensor

from ld3.grids import Knots
from ld3.solvers.base import Denoise, History, Solver
from ld3.solvers.on_space import OnSpace
from ld3.spaces import Space


def trajectory(
    denoise: Denoise, solver: Solver, k: Knots, x: Tensor, space: Space | None = None
) -> Iterator[Tensor]:
    """Yield x_0 = x, x_1, ..., x_N. Gradients flow if the caller has them switched on."""
    method, k = (solver, k) if space is None else (OnSpace(solver, space), k.at(space.parts))
    history: History = ()
    yield x
    for i in range(k.steps):
        x, history = method.step(denoise, k, i, x, history)
        yield x


def integrate(
    denoise: Denoise, solver: Solver, k: Knots, x: Tensor, space: Space | None = None
) -> Tensor:
    """x_N, the sample."""
    for x in trajectory(denoise, solver, k, x, space):  # noqa: B007, B020
        pass
    return x
