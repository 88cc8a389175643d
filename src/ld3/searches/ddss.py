"""DDSS: times learned through the solver so that its samples, as a set, look like others.

After Watson et al. 2022, arXiv 2202.05830. No sample is compared with the one from the same noise;
the loss is the kernel distance (KID) between features f of generated and g of given samples,

    mean k(f, f') + mean k(g, g') - 2 mean k(f, g)        k(f, g) = (f.g / d + 1)^3

over pairs of different samples, without bias. The features are those of the problem's distance,
averaged over space, if it has any; else the samples themselves; both in units of their root mean
square. The given samples are the teacher's.

With `coefficients` the weights of the solver are learned as well: any correction of its table, as
the paper's family of samplers (GGDM) has a free weight for every earlier answer. Its noise between
steps is left out; samples are those of an ODE solver.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ld3.distances import Distance, FeatureDistance
from ld3.errors import ModelError
from ld3.learner.optimize import Memory, adam
from ld3.parameters import Clock, SolverTuning
from ld3.problem import Problem, Student
from ld3.searches.handmade import HANDMADE
from ld3.searches.protocol import Found, Need, Tell
from ld3.table import Tuned


@dataclass(frozen=True)
class DDSS:
    """Adam through the solver on the kernel distance of sets of samples."""

    needs: ClassVar[frozenset[Need]] = frozenset({"model", "pairs", "solver"})

    coefficients: bool = False
    start: str = "logsnr"
    iterations: int = 60
    batch: int = 8
    rate_times: float = 0.05
    rate_coefficients: float = 0.005

    @property
    def source(self) -> str:
        said = "DDSS (Watson et al. 2022): kernel distance of unpaired samples"
        return f"{said}, with coefficients" if self.coefficients else said

    def __call__(self, problem: Problem, seed: int, tell: Tell) -> Found:
        schedule, steps = problem.model.schedule, problem.steps
        learned = ("times", "coefficients") if self.coefficients else ("times",)
        tuning = SolverTuning(problem.solver, Clock(schedule, steps), learned, exact=False)
        numbers = tuning.numbers(Tuned(HANDMADE[self.start](schedule, steps)))
        rates = {"times": self.rate_times, "coefficients": self.rate_coefficients}
        student, count = Student(problem), len(problem.train)
        given = features(problem.distance, problem.train.target)
        unit = given.square().mean().sqrt().clamp_min(1e-12)
        generator = torch.Generator(device="cpu").manual_seed(seed)
        memory: dict[str, Memory] = {name: {} for name in learned}
        curve: list[float] = []
        for number in range(self.iterations):
            index = torch.randperm(count, generator=generator, device="cpu")[: self.batch]
            leaf = tuning.flat(numbers).requires_grad_()
            table = tuning.table(tuning.unflat(leaf, numbers), steps)
            x, _ = student.sample("train", index, table, known=student.first("train", index))
            made = features(problem.distance, problem.model.decode(x))
            loss = kernel_distance(made / unit, given / unit)
            (slope,) = torch.autograd.grad(loss, leaf)
            curve.append(loss.item())
            if not bool(torch.isfinite(slope).all()):
                raise ModelError(
                    f"ddss: got a slope that is not finite at iteration {number + 1}, wanted "
                    "finite; try a smaller rate or another start"
                )
            slopes = tuning.unflat(slope, numbers)
            fade = 0.5 * (1 + math.cos(math.pi * number / self.iterations))
            moved = dict(numbers)
            for name in learned:
                step, memory[name] = adam(slopes[name], memory[name])
                moved[name] = numbers[name] - fade * rates[name] * step
            numbers = moved
            tell(number + 1, self.iterations)
        tuned = tuning.tuned(numbers, steps)
        return Found(tuned, student.evaluations + count, tuple(curve))


def features(distance: Distance, samples: Tensor) -> Tensor:
    """(B, F): feature maps averaged over space, or the samples themselves."""
    if not isinstance(distance, FeatureDistance):
        return samples.flatten(1).double()
    maps = [f.unsqueeze(-1).flatten(2).mean(2) for f in distance.features(samples)]
    return torch.cat(maps, 1).double()


def kernel_distance(f: Tensor, g: Tensor) -> Tensor:
    """KID of features (B, F) and (C, F): the squared distance of mean embeddings, unbiased."""
    between = _kernel(f, g).mean()
    return _within(_kernel(f, f)) + _within(_kernel(g, g)) - 2 * between


def _kernel(f: Tensor, g: Tensor) -> Tensor:
    return (f @ g.T / f.shape[1] + 1) ** 3


def _within(k: Tensor) -> Tensor:
    """The mean of what is off the diagonal."""
    count = len(k)
    return (k.sum() - k.diagonal().sum()) / max(count * (count - 1), 1)
