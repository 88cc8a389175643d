"""How to spend a number of passes: how many evaluations, and which of them are guided.

N evaluations of which k are guided cost P = N + k passes. Candidates are all N with N < P <= 2 N,
each with a few sets S of guided evaluations and a few time grids. They are compared before
learning, by the loss on validation pairs, with successive halving: the better half goes on to twice
as many pairs.

Of all sets S those are tried that leave little out. With r_j(S) what earlier directions in S leave
of e_j, and h_j the step in lam after evaluation j, that is a small

    sum_{j not in S} (1 - exp(-h_j))^2 |r_j(S)|^2

Evaluations that are not guided reuse earlier directions, by a fit to the directions of full
guidance on the same grid (:meth:`ld3.guidance.Guidance.fitted`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from ld3.guidance import Guidance
from ld3.known_grids import make_grid
from ld3.learner.starts import find_starts
from ld3.problem import Problem, Student, chunks
from ld3.searches.protocol import Report, silent
from ld3.share import Tensors
from ld3.table import TunedSolver

GRIDS = 2  # time grids that are tried for each N
FIRST = 4  # validation pairs of the first round
RANKED = 4  # sets S of each N and grid, besides the patterns
MOST = 2000  # sets S that are ranked
DIRECTIONS = 8  # validation pairs on which directions of guidance are compared


@dataclass(frozen=True)
class Candidate:
    """N evaluations, those with both passes, and a grid to begin with."""

    nfe: int
    guided: tuple[int, ...]
    grid: str
    loss: float
    pairs: int  # validation pairs of that loss


@dataclass(frozen=True)
class Budget:
    """Candidates, best first: those of later rounds before those of earlier ones."""

    candidates: tuple[Candidate, ...]
    evaluations: int
    passes: int

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


@torch.no_grad()
def direction_products(student: Student, tuned: TunedSolver, samples: int = DIRECTIONS) -> Tensor:
    """<e_i, e_j> (M, M), means over validation pairs: how the direction of guidance changes along
    the fully guided trajectories of a solver."""
    full = replace(tuned, guidance=Guidance.full(tuned.nfe))
    table, pairs = full.table(student.problem.model.schedule), student.problem.valid

    def make(index: Tensor) -> Tensors:
        _, answers = student.sample("valid", index, table)
        e = torch.stack(answers[1::2]).double().flatten(1)  # (M, B * D)
        return {"products": (e @ e.T).cpu()}

    count = min(samples, len(pairs))
    student.known("valid", table.guided)
    made = student.shared(make, chunks(count, student.problem.batch))
    total: Tensor = torch.stack([one["products"] for one in made]).sum(0) / count
    return total


def patterns(nfe: int, count: int) -> list[tuple[int, ...]]:
    """Some ways to guide `count` of `nfe` evaluations: the first ones, every other one from the
    first or from the second on."""
    found = (range(count), range(0, 2 * count, 2), range(1, 1 + 2 * count, 2))
    return list(dict.fromkeys(tuple(one) for one in found if one[-1] < nfe))


def ranked(products: Tensor, weights: Tensor, count: int) -> list[tuple[int, ...]]:
    """The sets of `count` evaluations that leave least out; `products` (M, M) are <e_i, e_j>,
    `weights` (M,) those of the sum."""
    nfe = len(products)
    if math.comb(nfe, count) > MOST:
        return []

    def left_out(guided: tuple[int, ...]) -> float:
        a = torch.zeros_like(products)
        a[:, list(guided)] = Guidance.fitted(guided, products).weights
        rest = torch.eye(nfe, dtype=products.dtype, device=products.device) - a
        return float((weights * (rest @ products * rest).sum(1)).sum())

    return sorted(combinations(range(nfe), count), key=left_out)[:RANKED]


def spend(
    problem: Problem,
    counts: Sequence[int],
    passes: int,
    power: float = 1.0,
    progress: Report = silent,
) -> Budget:
    """Compare the ways to spend a number of passes, with each of `counts` evaluations."""
    student, schedule = Student(problem), problem.model.schedule
    each = problem.solver.nfe(1)
    middle = replace(problem, steps=counts[len(counts) // 2] // each, guided=None)
    starts = find_starts(middle, GRIDS, power, progress)
    tuned: dict[Candidate, TunedSolver] = {}
    for nfe in counts:
        for name in starts.names:
            start = TunedSolver(problem.solver, make_grid(name, schedule, nfe // each))
            products = direction_products(student, start)
            times = start.grid.times.repeat_interleave(each)[each - 1 :]  # of every state
            weights = torch.expm1(-schedule.lam(times).diff()).square()
            best = ranked(products, weights, passes - nfe)
            for guided in dict.fromkeys((*best, *patterns(nfe, passes - nfe))):
                own = Candidate(nfe, guided, name, math.inf, 0)
                tuned[own] = replace(start, guidance=Guidance.fitted(guided, products))
    left, limit, done = list(tuned), min(FIRST, len(problem.valid)), list[Candidate]()
    while True:
        tables = [tuned[one].table(schedule) for one in left]
        losses = list(student.mean_losses(tables, limit=limit, power=power))
        scored = [replace(a, loss=b, pairs=limit) for a, b in zip(left, losses, strict=True)]
        order = sorted(range(len(left)), key=lambda i: _finite(losses[i]))
        kept = order[: max(2, math.ceil(len(order) / 2))] if limit < len(problem.valid) else []
        done = [scored[i] for i in order if i not in kept] + done
        if not kept:
            break
        left, limit = [left[i] for i in kept], min(2 * limit, len(problem.valid))
    spent = (starts.evaluations + student.evaluations, starts.passes + student.passes)
    return Budget(tuple(_each_once(done)), *spent)


def _each_once(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of candidates that differ in their grid only, the best."""
    first: dict[tuple[int, tuple[int, ...]], Candidate] = {}
    for one in candidates:
        first.setdefault((one.nfe, one.guided), one)
    return list(first.values())


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
