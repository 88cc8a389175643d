"""Adam through the solver: what the searches that learn (DDSS, GS) share."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.parameters import SolverParameters, Values
from ld3.problem import Problem, Student
from ld3.searches.protocol import Found, Report
from ld3.table import Table

Loss = Callable[[Student, Tensor, Table], Tensor]
"""The loss of the training pairs at an index, for a table."""


@dataclass(frozen=True)
class Adam:
    """Iterations and rates, one per learned group; rates fall to zero along half a cosine."""

    name: str  # of the search, for messages
    rates: dict[str, float]
    iterations: int
    batch: int
    clip: float = math.inf  # norm of the slope
    average: float = 0.0  # decay of the moving average that is the result; 0: the last values

    def __call__(
        self,
        problem: Problem,
        parameters: SolverParameters,
        start: Values,
        loss: Loss,
        seed: int,
        progress: Report,
    ) -> Found:
        values = {name: value.detach().clone() for name, value in start.items()}
        leaves = [values[name].requires_grad_() for name in self.rates]
        adam = torch.optim.Adam([{"params": [leaf]} for leaf in leaves], betas=(0.9, 0.99))
        mean = [leaf.detach().clone() for leaf in leaves]
        student, count = Student(problem), len(problem.train)
        generator = torch.Generator(device="cpu").manual_seed(seed)
        curve: list[float] = []
        for number in range(self.iterations):
            index = torch.randperm(count, generator=generator, device="cpu")[: self.batch]
            value = loss(student, index, parameters.table(values, problem.steps))
            slopes = torch.autograd.grad(value, leaves)
            curve.append(value.item())
            if not all(bool(torch.isfinite(slope).all()) for slope in slopes):
                raise ModelError(
                    f"{self.name}: got a slope that is not finite at iteration {number + 1}, "
                    "expected finite; try a smaller rate or another start"
                )
            size = torch.nn.utils.get_total_norm(slopes)
            shrink = torch.clamp(self.clip / (size + 1e-6), max=1.0)
            factor = 0.5 * (1 + math.cos(math.pi * number / self.iterations))
            groups = zip(leaves, slopes, adam.param_groups, self.rates.values(), strict=True)
            for leaf, slope, group, rate in groups:
                leaf.grad, group["lr"] = shrink * slope, factor * rate
            adam.step()
            kept = min(self.average, (number + 1) / (number + 10)) if self.average else 0.0
            mean = [kept * m + (1 - kept) * v.detach() for m, v in zip(mean, leaves, strict=True)]
            progress(number + 1, self.iterations)
        final = {name: value.detach() for name, value in values.items()}
        final |= dict(zip(self.rates, mean, strict=True))
        return Found(parameters.tuned(final, problem.steps), student.evaluations, tuple(curve))
