"""Least squares by forward differences: the preconditioner and the Gauss-Newton step.

One more run of the same samples for each parameter theta_i gives a row of the Jacobian,

    J_i = (r(theta + h_i e_i) - r(theta)) / h_i

with r a vector per sample: the sample itself, or the residual whose square is d. A change in row n
of the table leaves the n answers before it unchanged, so that they are not evaluated again.

For networks that ripple in time (those with a secant) h_i is WIDE times as long.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.learner.course import Task
from ld3.parameters import Parameters, Values
from ld3.problem import Student
from ld3.share import Tensors
from ld3.table import Table

GROUP = 4  # samples at a time
WIDE = 6
DAMP = 0.001  # of the largest eigenvalue, in the preconditioner
TRUST = 0.2  # of the standard deviation of samples: the largest error that scales steps
PROBED = 3  # tasks, of many
DAMPS = (0.003, 0.03, 0.3, 3.0)  # tried by a Gauss-Newton step


@dataclass(frozen=True)
class Normal:
    """The normal equations: means over samples."""

    curvature: Tensor  # (P, P) J J^T
    slope: Tensor  # (P,) J r
    square: float  # |r|^2
    samples: Tensor  # (B, *S) x at theta


@torch.no_grad()
def normal_equations(
    task: Task,
    parameters: Parameters,
    values: Values,
    index: Tensor,
    residual: Callable[[Tensor, Tensor], Tensor],
) -> Normal:
    """J J^T and J r over the training pairs at `index`.

    `residual(x, index)` gives r (B, F) for the samples x (B, *S) of these pairs.
    """
    student, theta = task.student, parameters.flat(values)
    wide = WIDE if student.problem.secant > 0 else 1
    probes = [wide * parameters.probe(name) for name in parameters.learned for _ in values[name]]
    table = parameters.table(values, task.steps)
    changed = []
    for i, probe in enumerate(probes):
        other = theta.clone()
        other[i] += probe
        changed.append(parameters.table(parameters.unflat(other, values), task.steps))

    def make(part: Tensor) -> Tensors:
        x, answers = student.sample("train", part, table)
        base = residual(x, part)
        rows = torch.empty(len(theta), base.numel(), device=base.device)  # J (P, B F)
        for i, (probe, other_table) in enumerate(zip(probes, changed, strict=True)):
            known = answers[: table.before(max(1, _unchanged(table, other_table)))]
            moved, _ = student.sample("train", part, other_table, known=known)
            rows[i] = ((residual(moved, part) - base) / probe).flatten()
        return {
            "curvature": (rows @ rows.T).double().cpu(),
            "slope": (rows @ base.flatten().to(rows.dtype)).double().cpu(),
            "square": base.double().square().sum().cpu(),
            "samples": x,
        }

    student.known("train", table.guided)
    made = list(student.shared(make, torch.split(index, min(GROUP, student.problem.batch))))
    names = ("curvature", "slope", "square")
    means = (reduce(torch.add, (one[name] for one in made)) / len(index) for name in names)
    curvature, slope, square = means
    return Normal(curvature, slope, float(square), torch.cat([one["samples"] for one in made]))


def _unchanged(a: Table, b: Table) -> int:
    """How many answers of the network are the same in both tables."""
    same = (a.weights[:-1] == b.weights[:-1]).flatten(1).all(1) & (a.net_times == b.net_times)
    return int(same.long().cumprod(0).sum())


@torch.no_grad()
def preconditioner(
    tasks: Sequence[Task], parameters: Parameters, values: Values, samples: int
) -> Tensor:
    """W (P, P) such that all directions of phi, theta = theta_0 + W phi, change samples alike.

    With J the Jacobian of the samples, d their dimension and e^2 their mean squared error, but at
    most TRUST^2 of their variance,

        H = mean over samples of J J^T / (d e^2)        W = (H + DAMP max-eig(H))^(-1/2)

    so that a unit of phi changes samples by about one error.
    """

    probed = tasks[:: max(1, (len(tasks) - 1) // (PROBED - 1))]
    total = torch.zeros((), dtype=torch.float64, device="cpu")
    for task in probed:
        student = task.student

        def normalised(x: Tensor, part: Tensor, student: Student = student) -> Tensor:
            v = student.vectors(x)
            scaled: Tensor = v.flatten(1) / v[0].numel() ** 0.5
            return scaled

        count = min(max(2, samples // len(probed)), len(student.problem.train))
        index = torch.arange(count, device="cpu")
        found = normal_equations(task, parameters, values, index, normalised)
        error = student.squared_error("train", index, found.samples)
        spread = float(student.vectors(found.samples).double().var())
        total = total + found.curvature / max(min(error, TRUST**2 * spread), 1e-30)
    if not bool(torch.isfinite(total).all()):
        raise ModelError(
            "learning: got samples that are not finite at the start; choose another start"
        )
    eigenvalues, vectors = torch.linalg.eigh(total / len(probed))
    if eigenvalues[-1] <= 0:
        return torch.zeros_like(total)  # nothing that is learned changes a sample
    scale = (eigenvalues.clamp_min(0) + DAMP * eigenvalues[-1]).rsqrt()
    basis: Tensor = (vectors * scale) @ vectors.T
    return basis


@torch.no_grad()
def gauss_newton_step(
    tasks: Sequence[Task], parameters: Parameters, values: Values, index: Tensor
) -> tuple[dict[str, Tensor], float]:
    """The values after one step, and the mean loss of the batch before it.

    The step d solves (H + mu diag H) d = -J r, with H = J J^T. Each mu of DAMPS is tried on the
    same pairs. The values of the lowest loss are kept: the old ones if no step lowers it.
    """
    theta, best, before = parameters.flat(values), dict(values), 0.0
    curvature, slope = torch.zeros(len(theta), len(theta)).double(), torch.zeros_like(theta)
    for task in tasks:
        found = normal_equations(task, parameters, values, index, task.student.residual)
        curvature = curvature + task.scale * found.curvature
        slope = slope + task.scale * found.slope
        before += task.scale * found.square / len(tasks)
    lowest, sizes = before, curvature.diagonal()
    floor = 1e-6 * sizes.max()
    if not bool(torch.isfinite(curvature).all()) or not floor > 0:
        return best, before
    for damp in DAMPS:
        step = torch.linalg.solve(curvature + torch.diag(damp * sizes + floor), slope)
        changed, after = parameters.unflat(theta - step, values), 0.0
        for task in tasks:
            losses = task.student.losses("train", index, parameters.table(changed, task.steps))
            after += task.scale * float(losses.double().mean()) / len(tasks)
        if after < lowest:
            best, lowest = changed, after
    return best, before
