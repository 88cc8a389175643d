"""Small problems for the tests of the learner and the searches, and a model that counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ld3 import FunctionModel, Model, bind_network, make_grid, make_solver, noise
from ld3.distances import l2
from ld3.learner.recipes import PaperRules
from ld3.models import Cond
from ld3.parameters import Parameters, Values
from ld3.problem import Problem
from ld3.schedules import EDM, Schedule
from ld3.solvers import Solver
from ld3.table import Table, TunedSolver
from ld3.teacher import Pairs
from ld3.zoo.toy import gaussian, mixture

STD = 0.5
MEANS = 0.6 * torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
MODEL = mixture(MEANS.tolist(), 0.5)

ADAM = PaperRules(
    rule_times="adam", rule_net="adam", rate_times=0.05, rate_net=0.05, clip=math.inf, gamma=0.0,
    decay="cosine", floor=0.01, epochs_times=0, epochs=10, batch=8, validate_every=10,
)  # fmt: skip
"""Adam for each group by itself, with cosine decay."""


def solved_pairs(
    model: Model, seeds: Sequence[int], steps: int = 100, guidance: float = 1.0
) -> Pairs:
    """Pairs by UniPC-3 on an even grid in lam."""
    solved = TunedSolver(make_solver("unipc"), make_grid("logsnr", model.schedule, steps))
    table = solved.table(model.schedule, model.prediction)
    z, cond = noise(seeds, model.shape), model.conditions(seeds)
    network = bind_network(model, cond, guidance=guidance)
    with torch.no_grad():
        target = model.decode(table.run(network, model.schedule.prior_std * z))
    return Pairs(tuple(seeds), z, cond, target)


def mixture_problem(solver: str = "dpmpp", steps: int = 4, count: int = 32) -> Problem:
    train, valid = (
        solved_pairs(MODEL, seeds) for seeds in (range(count), range(1000, 1000 + count))
    )
    return Problem(MODEL, make_solver(solver), steps, l2, train, valid)


def exact_pairs(seeds: range, d: int = 1, mean: float = 0.0) -> Pairs:
    """Noise and the exact solution of the ODE on Gaussian data."""
    model = gaussian([mean] * d, [STD] * d)
    z = noise(seeds, (d,), torch.float64)
    ends = torch.tensor([80.0, 0.002], dtype=torch.float64)
    return Pairs(tuple(seeds), z, None, model.solve(80 * z, ends[0], ends[1]))


def euler_problem(d: int = 1, steps: int = 6) -> Problem:
    """Euler on Gaussian data, taught by the exact solution."""
    model = gaussian([0.0] * d, [STD] * d)
    train, valid = exact_pairs(range(16), d), exact_pairs(range(100, 116), d)
    return Problem(model, make_solver("euler"), steps, l2, train, valid)


@dataclass
class Count:
    """Evaluations of a network on one sample."""

    forward: int = 0
    backward: int = 0
    batches: list[int] = field(default_factory=list)

    @property
    def cost(self) -> int:
        return self.forward + 2 * self.backward


def counted(problem: Problem) -> tuple[Problem, Count]:
    """The same problem with a model that counts forward and backward passes."""
    count, model = Count(), problem.model

    def function(x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        count.forward += len(x)
        count.batches.append(len(x))
        out = model.forward(x, t, cond)
        if out.requires_grad:
            recomputing = torch._C._current_graph_task_id() != -1
            if not recomputing:

                def passed(slope: Tensor) -> None:
                    count.backward += len(slope)

                out.register_hook(passed)
        return out

    own = FunctionModel(
        function, model.schedule, model.prediction, model.shape, None, model.conditions,
        model.null, model.decode,
    )  # fmt: skip
    return replace(problem, model=own), count


@dataclass(frozen=True)
class Linear(Parameters):
    """sample = theta_0 x_T + theta_1 D(x_T, t_max): linear in both parameters."""

    solver: Solver = make_solver("euler")  # noqa: RUF009
    learned: tuple[str, ...] = ("times", "net")

    @property
    def schedule(self) -> Schedule:
        return EDM()

    def tuned(self, values: Values, steps: int) -> TunedSolver:
        return TunedSolver(self.solver, make_grid("edm", EDM(), 1))

    def table(self, values: Values, steps: int) -> Table:
        first = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        weights = torch.cat([first, torch.cat([values["times"], values["net"]])[None]])
        return Table(weights, torch.tensor([80.0], dtype=torch.float64))

    def probe(self, name: str) -> float:
        return 0.25


def linear_values(first: float, second: float) -> dict[str, Tensor]:
    return {
        "times": torch.tensor([first], dtype=torch.float64),
        "net": torch.tensor([second], dtype=torch.float64),
        "coefficients": torch.empty(0, dtype=torch.float64),
    }


def linear_problem(count: int = 5, d: int = 2) -> Problem:
    """D(x, t) = 1 + tanh(x / 40): two columns that are not parallel; targets at random."""
    model = FunctionModel(lambda x, t, c: 1 + torch.tanh(x / 40), EDM(), "x0", (d,), None)
    train, valid = (
        Pairs(
            tuple(seeds), noise(seeds, (d,), torch.float64), None,
            noise([s + 1000 for s in seeds], (d,), torch.float64),
        )
        for seeds in (range(count), range(100, 100 + count))
    )  # fmt: skip
    return Problem(model, make_solver("euler"), 1, l2, train, valid)


def columns(problem: Problem, index: Sequence[int], part: str = "train") -> tuple[Tensor, Tensor]:
    """A (B d, 2) and y (B d,) of the linear problem: samples are A theta."""
    pairs = problem.train if part == "train" else problem.valid
    x = 80 * pairs.noise[list(index)]
    a = torch.stack([x.flatten(), (1 + torch.tanh(x / 40)).flatten()], 1)
    return a, pairs.target[list(index)].flatten()
