"""What the errors of all samples have in common, as a term of the loss.

With r_b the residual of pair b, whose squared length is d_b, and m its mean over all training
pairs, the loss is

    mean(d^p) + kappa w <m, m>         w = p mean(d^p)^(1 - 1/p)

Set metrics such as FID notice m, which a mean of distances hardly does. The weight w makes kappa a
number without a unit: the loss falls exactly as mean(d^p)^(1/p) + kappa <m, m> does.

m is measured for all pairs once an epoch, at an *anchor* theta_a. In between, a batch B corrects it
by how its own residuals have changed since (variance reduction, Johnson and Zhang 2013):

    m ~ m(theta_a) + mean over B of r_b(theta) - r_b(theta_a)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.learner.course import Task
from ld3.problem import Part, chunks, raised
from ld3.share import Tensors
from ld3.table import Table

LARGEST = 2**29  # numbers of all residuals


@dataclass(frozen=True)
class Anchor:
    """Residuals of all training pairs at theta_a."""

    residuals: Tensor  # (M, F)
    mean: Tensor  # (F,)
    weight: float  # kappa w

    def term(self, residuals: Tensor, index: Tensor) -> Tensor:
        """Per sample (B,), the part of the loss whose slope is that of kappa w <m, m>."""
        mean = self.mean + (residuals.detach() - self.residuals[index]).mean(0)
        return 2 * self.weight * (residuals @ mean)


@torch.no_grad()
def residuals_of(task: Task, part: Part, table: Table) -> Tensor:
    """r (M, F) of all pairs of a part."""
    student = task.student
    count = len(student.problem.pairs(part))

    def make(index: Tensor) -> Tensors:
        x, _ = student.sample(part, index, table)
        return {"residuals": student.residual(x, index, part).float()}

    student.known(part, table.guided)
    made = []
    for one in student.shared(make, chunks(count, student.problem.batch)):
        made.append(one["residuals"])
        if made[0].shape[1] * count > LARGEST:
            raise SpecError(
                f"recipe shared: got {count} pairs with {made[0].shape[1]} features each, expected "
                f"at most {LARGEST} numbers in all; give fewer --pairs, or shared=0"
            )
    return torch.cat(made)


def anchor_at(task: Task, table: Table, kappa: float, power: float) -> Anchor:
    """All training pairs at the values behind a table."""
    residuals = residuals_of(task, "train", table)
    mean = residuals.double().mean(0).to(residuals.dtype)
    powers = raised(residuals.double().square().sum(1), power).mean()
    return Anchor(residuals, mean, kappa * power * float(powers ** (1 - 1 / power)))


def objective(residuals: Tensor, kappa: float, power: float) -> float:
    """mean(d^p)^(1/p) + kappa <E r, E r>."""
    powers = raised(residuals.double().square().sum(1), power).mean()
    return float(powers ** (1 / power)) + kappa * common_square(residuals)


def common_square(residuals: Tensor) -> float:
    """<E r, E r> without bias, not below zero: the mean of <r_a, r_b> over all a other than b."""
    r = residuals.double()
    count = len(r)
    apart = r.sum(0).square().sum() - r.square().sum()
    return max(0.0, float(apart) / (count * (count - 1))) if count > 1 else 0.0
