"""Fine trajectories of a teacher, for searches that use more than its samples.

In variance exploding coordinates xbar = x / alpha, s = sigma / alpha, where a step of Euler (DDIM)
from i to j is xbar_i + (s_j - s_i) eps_i, whatever the schedule and the prediction.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.grids import TimeGrid, knots
from ld3.known_grids.handmade import HANDMADE
from ld3.models import bind, take
from ld3.problem import Problem, chunks
from ld3.sampling import trajectory
from ld3.solvers import Solver, make_solver
from ld3.spaces import space_of


@dataclass(frozen=True)
class Fine:
    """Trajectories of a fine solver with K steps from the noise of training pairs."""

    grid: TimeGrid
    s: Tensor  # (K+1,) falling, on the device of the states
    states: Tensor  # (K+1, B, *S): xbar
    eps: Tensor  # (K, B, *S): the network's at each state but the last

    @property
    def evaluations(self) -> int:
        return self.eps.shape[0] * self.eps.shape[1]


@torch.no_grad()
def fine_trajectory(problem: Problem, index: Tensor, solver: Solver, grid: str, steps: int) -> Fine:
    """From the training pairs at `index`; the solver evaluates the network once per step."""
    model, pairs = problem.model, problem.train
    if space_of(model) is not None:
        raise SpecError(
            "method: got a search that compares states on a trajectory, expected a known grid, dmn "
            "or a learned method: the states of this model are not vectors"
        )
    times = HANDMADE[grid](model.schedule, steps)
    k = knots(model.schedule, times)
    denoise = bind(model, take(pairs.cond, index), guidance=problem.guidance)
    answers: list[Tensor] = []

    def recorded(x: Tensor, t: Tensor) -> Tensor:
        answers.append(denoise(x, t))
        return answers[-1]

    x = model.schedule.prior_std * pairs.noise[index]
    passed = [x / a for x, a in zip(trajectory(recorded, solver, k, x), k.alpha, strict=True)]
    states = torch.stack(passed)
    s = torch.stack(k.ratio).to(states.device, states.dtype)
    eps = (states[:-1] - torch.stack(answers)) / _beside(s[:-1], states)
    return Fine(times, s, states, eps)


def fine_walks(problem: Problem, samples: int, points: int) -> Iterator[tuple[Tensor, Fine]]:
    """iPNDM-4 on that many points of an EDM grid, or three a step: indices of training pairs, at
    most `samples` in all, and their trajectories."""
    steps, solver = max(points - 1, 3 * problem.steps), make_solver("ipndm", 4)
    for part in chunks(len(some(problem, samples)), problem.batch):
        yield part, fine_trajectory(problem, part, solver, "edm", steps)


def euler_jump(state: Tensor, eps: Tensor, s: Tensor, to: Tensor) -> Tensor:
    """From a state (B, *S) at s () to each of the levels to (J,): (J, B, *S)."""
    return state + _beside(to - s, state[None]) * eps


def _beside(values: Tensor, tensor: Tensor) -> Tensor:
    """(J,) with as many dimensions as (J, B, *S) has."""
    return values.view(-1, *[1] * (tensor.ndim - 1))


def some(problem: Problem, limit: int) -> Tensor:
    """Indices of the first training pairs, at most `limit`."""
    return torch.arange(min(limit, len(problem.train)), device="cpu")
