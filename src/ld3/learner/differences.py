"""Slopes without gradients: forward differences through a tuned solver, on common noise.

For each number theta_i one more run of the same samples gives

    J_i = (r(theta + h_i e_i) - r(theta)) / h_i

with r a vector per sample: the sample itself, or the residual whose square is the distance. A
change in row n of the table leaves the n answers of the network before it as they were, and one in
the last row costs no evaluation at all, so that all of J costs about half of what P runs would.

On a network that ripples in time, or answers in steps as a quantised one does, a short h_i measures
the ripple. There it is WIDE times as long.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.parameters import Numbers, Tuning
from ld3.problem import Task
from ld3.table import Table

GROUP = 4  # samples at a time
WIDE = 6  # for rough networks, those that are learned with a secant


@dataclass(frozen=True)
class Normal:
    """Means over samples: what least squares needs to know of J and r."""

    curvature: Tensor  # (P, P) J J^T
    slope: Tensor  # (P,) J r
    square: float  # |r|^2


@torch.no_grad()
def normal_equations(
    task: Task,
    tuning: Tuning,
    numbers: Numbers,
    index: Tensor,
    residual: Callable[[Tensor, Tensor], Tensor],
) -> Normal:
    """J J^T and J r of the learned numbers, over the learning pairs at `index`.

    `residual(x, index)` gives r (B, F) for the samples x (B, *S) of these pairs.
    """
    student, theta = task.student, tuning.flat(numbers)
    wide = WIDE if student.problem.secant > 0 else 1
    probes = [wide * tuning.probe(name) for name in tuning.learned for _ in numbers[name]]
    table = tuning.table(numbers, task.steps)
    curvature = torch.zeros(len(theta), len(theta), dtype=torch.float64, device="cpu")
    slope, square = torch.zeros_like(theta), 0.0
    for part in torch.split(index, GROUP):
        known = student.first("train", part)
        x, answers = student.sample("train", part, table, known=known)
        base = residual(x, part)
        slopes = torch.empty(len(theta), base.numel(), device=base.device)  # (P, B F)
        for i, probe in enumerate(probes):
            changed = theta.clone()
            changed[i] += probe
            other = tuning.table(tuning.unflat(changed, numbers), task.steps)
            kept = max(1, _unchanged(table, other))
            moved, _ = student.sample("train", part, other, known=answers[:kept])
            slopes[i] = ((residual(moved, part) - base) / probe).flatten()
        curvature += (slopes @ slopes.T).double().cpu()
        slope += (slopes @ base.flatten().to(slopes.dtype)).double().cpu()
        square += float(base.double().square().sum())
    count = len(index)
    return Normal(curvature / count, slope / count, square / count)


def _unchanged(a: Table, b: Table) -> int:
    """How many answers of the network are the same in both."""
    same = (a.weights[:-1] == b.weights[:-1]).all(1) & (a.net_times == b.net_times)
    return int(same.long().cumprod(0).sum())


# Preconditioner

DAMP = 0.001
TRUST = 0.2  # of the spread of samples: a larger error says little about the length of steps
ASKED = 3  # tasks of many


@torch.no_grad()
def precondition(tasks: Sequence[Task], tuning: Tuning, numbers: Numbers, samples: int) -> Tensor:
    """A map W (P, P) under which all directions change samples alike.

    A shift of the last time, a logit and a coefficient of row 1 move a sample by very different
    amounts, and together they may do nothing at all. With J the slopes of the samples and e^2 their
    present mean square error, or TRUST of their spread if that is less,

        H = mean over samples of J J^T / (d e^2)          W = (H + damp max-eig(H))^(-1/2)

    and steps are taken in phi, where theta = theta_0 + W phi (Gauss-Newton's metric, held fixed):
    a unit of phi is about one error.
    """

    def plain(x: Tensor, part: Tensor) -> Tensor:
        scaled: Tensor = x.flatten(1) / x[0].numel() ** 0.5
        return scaled

    every = max(1, (len(tasks) - 1) // (ASKED - 1))
    asked = tasks[::every]
    total = torch.zeros((), dtype=torch.float64, device="cpu")
    for task in asked:
        student = task.student
        count = min(max(2, samples // len(asked)), len(student.problem.train))
        index = torch.arange(count, device="cpu")
        found = normal_equations(task, tuning, numbers, index, plain)
        table = tuning.table(numbers, task.steps)
        x, _ = student.sample("train", index, table, known=student.first("train", index))
        error = student.error("train", index, x) / count
        total = total + found.curvature / min(error, TRUST**2 * float(x.double().var()))
    values, vectors = torch.linalg.eigh(total / len(asked))
    scale = (values.clamp_min(0) + DAMP * values[-1]).rsqrt()
    basis: Tensor = (vectors * scale) @ vectors.T
    return basis


# Gauss-Newton

DAMPS = (0.003, 0.03, 0.3, 3.0)


@torch.no_grad()
def gauss_newton(
    tasks: Sequence[Task], tuning: Tuning, numbers: Numbers, index: Tensor
) -> tuple[dict[str, Tensor], float]:
    """One step by forward passes only, and the mean loss of the pairs before it.

    The distance is the square of r, so the step of least squares solves (H + mu diag H) d = -J r.
    Some mu are tried on the same pairs; the best result is kept, or the old numbers if none helps.
    """
    theta = tuning.flat(numbers)
    curvature, slope, before = torch.zeros(len(theta), len(theta)).double(), 0 * theta, 0.0
    for task in tasks:
        found = normal_equations(task, tuning, numbers, index, task.student.residual)
        curvature = curvature + task.scale * found.curvature
        slope = slope + task.scale * found.slope
        before += task.scale * found.square / len(tasks)

    def loss(vector: Tensor) -> float:
        changed, total = tuning.unflat(vector, numbers), 0.0
        for task in tasks:
            table = tuning.table(changed, task.steps)
            losses = task.student.losses("train", index, table, None)
            total += task.scale * float(losses.double().mean()) / len(tasks)
        return total

    best, lowest = theta, before
    sizes = curvature.diagonal()
    floor = 1e-6 * sizes.max()
    for damp in DAMPS:
        candidate = theta - torch.linalg.solve(curvature + torch.diag(damp * sizes + floor), slope)
        after = loss(candidate)
        if after < lowest:
            best, lowest = candidate, after
    return tuning.unflat(best, numbers), before
