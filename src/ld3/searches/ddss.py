"""DDSS: times learned through the solver from the kernel distance between two sets of samples.

After Watson et al. 2022, arXiv 2202.05830. Samples are not paired by noise. The loss is the kernel
distance (KID) between features f of generated and g of given samples,

    mean k(f, f') + mean k(g, g') - 2 mean k(f, g)        k(f, g) = (f.g / d + 1)^3

over pairs of different samples. The features are those of the problem's distance, averaged over
space, or the samples themselves if it has none; both in units of their root mean square. The given
samples are the teacher's.

With `coefficients` all corrections of the solver's table are learned too, as in the paper's family
of samplers (GGDM), which has a free weight for every earlier answer. GGDM's noise between steps is
not used: samples are those of an ODE solver.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ld3.distances import Distance, FeatureDistance
from ld3.known_grids.handmade import HANDMADE
from ld3.metrics.kernel import polynomial
from ld3.parameters import GridParameters, SolverParameters
from ld3.problem import Problem, Student
from ld3.searches.adam import Adam
from ld3.searches.protocol import Found, Need, Report
from ld3.table import Table


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
        name = "DDSS (Watson et al. 2022): kernel distance of unpaired samples"
        return f"{name}, with coefficients" if self.coefficients else name

    def __call__(self, problem: Problem, seed: int, progress: Report) -> Found:
        schedule, steps = problem.model.schedule, problem.steps
        learned = ("times", "coefficients") if self.coefficients else ("times",)
        parameters = SolverParameters(problem.solver, GridParameters(schedule, steps), learned)
        values = parameters.start_values(HANDMADE[self.start](schedule, steps))
        given = features(problem.distance, problem.train.target)
        unit = given.square().mean().sqrt().clamp_min(1e-12)

        def loss(student: Student, index: Tensor, table: Table) -> Tensor:
            x, _ = student.sample("train", index, table)
            made = features(problem.distance, problem.model.decode(x))
            return kernel_distance(made / unit, given / unit)

        rates = {"times": self.rate_times, "coefficients": self.rate_coefficients}
        own = {name: rates[name] for name in learned}
        adam = Adam("ddss", own, self.iterations, self.batch)
        return adam(problem, parameters, values, loss, seed, progress)


def features(distance: Distance, samples: Tensor) -> Tensor:
    """(B, F): feature maps averaged over space, or the samples themselves."""
    if not isinstance(distance, FeatureDistance):
        return samples.flatten(1).double()
    maps = [f.unsqueeze(-1).flatten(2).mean(2) for f in distance.features(samples)]
    return torch.cat(maps, 1).double()


def kernel_distance(f: Tensor, g: Tensor) -> Tensor:
    """KID of features (B, F) and (C, F): the squared distance of mean embeddings, unbiased."""
    between = polynomial(f, g).mean()
    return _within(polynomial(f, f)) + _within(polynomial(g, g)) - 2 * between


def _within(k: Tensor) -> Tensor:
    """The mean of what is off the diagonal."""
    count = len(k)
    return (k.sum() - k.diagonal().sum()) / max(count * (count - 1), 1)
