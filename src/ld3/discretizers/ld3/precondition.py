"""Which way numbers matter: a linear map under which all directions change samples alike.

A shift of the last time, a logit and a coefficient of row 1 move a sample by very different
amounts, and together they may do nothing at all. With J the slopes of the samples in the numbers,

    H = mean over samples of J^T J / d          W = (H + damp max-eig(H))^(-1/2)

and steps are taken in phi, where the numbers are theta = theta_0 + W phi (Gauss-Newton's metric,
held fixed). J is found by forward differences: a change in row n leaves the n answers before it as
they were, and one in the last row costs no evaluation at all.
"""

import torch
from torch import Tensor

from ld3.discretizers.ld3.student import Student, chunks
from ld3.discretizers.ld3.tuning import Numbers, Tuning
from ld3.table import Table

STEPS = {"times": 0.1, "net": 0.03, "coefficients": 0.02}  # net: in mean gaps
DAMP = 0.001
TRUST = 0.2  # of the spread of samples: a larger error says little about the length of steps
GROUP = 4  # samples at a time


@torch.no_grad()
def precondition(student: Student, tuning: Tuning, numbers: Numbers, samples: int) -> Tensor:
    """W (P, P), scaled so that a unit of phi is about the present error of the samples,
    or TRUST of their spread if the error is larger than that."""
    theta = tuning.flat(numbers)
    steps = _steps(tuning, numbers)
    table = tuning.table(numbers)
    curvature = torch.zeros(len(theta), len(theta), dtype=torch.float64, device="cpu")
    error = spread = 0.0
    samples = min(samples, len(student.problem.train))
    for index in chunks(samples, GROUP):
        known = student.first("train", index)
        x, answers = student.sample("train", index, table, known=known)
        slopes = torch.empty(len(theta), x.numel(), device=x.device)  # (P, B d)
        for i, step in enumerate(steps):
            changed = theta.clone()
            changed[i] += step
            other = tuning.table(tuning.unflat(changed, numbers))
            kept = max(1, _unchanged(table, other))
            moved, _ = student.sample("train", index, other, known=answers[:kept])
            slopes[i] = ((moved - x) / step).flatten()
        curvature += (slopes @ slopes.T).double().cpu() / x[0].numel()
        error += student.error("train", index, x)
        spread = float(x.double().std())
    values, vectors = torch.linalg.eigh(curvature / samples)
    size = min(error / samples, (TRUST * spread) ** 2) ** 0.5
    scale = size * (values.clamp_min(0) + DAMP * values[-1]).rsqrt()
    basis: Tensor = (vectors * scale) @ vectors.T
    return basis


def _steps(tuning: Tuning, numbers: Numbers) -> list[float]:
    low, high = tuning.clock.ends()
    units = {"net": float((high - low).abs()) / tuning.clock.steps}
    return [STEPS[name] * units.get(name, 1.0) for name in tuning.learned for _ in numbers[name]]


def _unchanged(a: Table, b: Table) -> int:
    """How many answers of the network are the same in both."""
    same = (a.weights[:-1] == b.weights[:-1]).all(1) & (a.net_times == b.net_times)
    return int(same.long().cumprod(0).sum())
