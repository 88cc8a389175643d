"""The student: a solver with few steps whose samples are compared with the teacher's.

Memory: the activations of the last `KEPT` network calls are kept for the backward pass, those
before them are computed again on the way back, so that memory does not grow with the steps and
few steps cost nothing extra.

Rough networks: a network made for whole-numbered times may ripple in between, so that its slope in
time at a point says nothing about the way up or down. :func:`roughness` compares that slope with
the secant over the distance by which times move while they are learned; a `secant` h > 0 makes the
student use the latter,

    dD/dlam ~ (D(x, lam + h) - D(x, lam - h)) / 2h,

for two more evaluations a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ld3.distances import Distance, FeatureDistance, Features
from ld3.grids import TimeGrid, knots
from ld3.models import Cond, Model, bind
from ld3.sampling import integrate
from ld3.schedules import Schedule
from ld3.solvers import Denoise, Solver
from ld3.table import Table
from ld3.teacher import Pairs

CHUNK = 64  # samples at a time where no gradient is needed
TINY = 1e-30  # distances below it have no slope when a power is taken
KEPT = 3  # network calls whose activations are kept for the backward pass
SECANT = 0.1  # h of the secant for rough networks, in lam
ROUGH = 0.5  # roughness above which a secant is used

Part = Literal["train", "valid"]


@dataclass(frozen=True)
class Problem:
    """What to learn for."""

    model: Model
    solver: Solver
    steps: int
    distance: Distance
    train: Pairs
    valid: Pairs
    guidance: float = 1.0
    secant: float = 0.0  # h of the secant in lam; 0: the slope at the point

    @property
    def nfe(self) -> int:
        return self.solver.nfe(self.steps)


class Student:
    """Samples of tables, with a count of what they cost."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.evaluations = 0  # of the network on one sample; a backward pass counts two
        self._pairs: dict[Part, Pairs] = {"train": problem.train, "valid": problem.valid}
        self._targets = {part: self._target(pairs.target) for part, pairs in self._pairs.items()}
        self._first: dict[Part, Tensor] = {}

    def losses(self, part: Part, index: Tensor, table: Table, near: Tensor | None) -> Tensor:
        """The distance (B,) of the student's samples from near (B, *S) to the teacher's.

        With `near` None they start from the noise of the pairs themselves: then the first answer
        of the network, at t_max, is the same in every iteration and is asked for once.
        """
        problem = self.problem
        known = [] if near is not None else self.first(part, index)
        sample = problem.model.decode(self.sample(part, index, table, near, known)[0])
        target = tuple(f[index] for f in self._targets[part])
        if isinstance(problem.distance, FeatureDistance):
            return problem.distance.distance_to(sample, target)
        return problem.distance(sample, target[0])

    def sample(
        self,
        part: Part,
        index: Tensor,
        table: Table,
        near: Tensor | None = None,
        known: Sequence[Tensor] = (),
    ) -> tuple[Tensor, list[Tensor]]:
        """x (B, *S) at the end of a table in x0 form, and the network's answers on the way.

        Answers that are `known` are not asked for again.
        """
        problem, pairs = self.problem, self._pairs[part]
        cond = take(pairs.cond, index)
        calls = table.nfe - len(known)
        again = max(0, calls - KEPT) if torch.is_grad_enabled() else 0
        denoise = bind(problem.model, cond, guidance=problem.guidance)
        if again > 0:
            lean = bind(problem.model, cond, guidance=problem.guidance, checkpoint=True)
            denoise = _in_turn(lean, again, denoise)
        if problem.secant > 0 and torch.is_grad_enabled():
            denoise = _with_secant(denoise, problem.model.schedule, problem.secant)
        self.evaluations += self._cost(calls, again) * len(index)
        x = problem.model.schedule.prior_std * (pairs.noise[index] if near is None else near)
        return table.follow(denoise, x, known)

    @torch.no_grad()
    def error(self, part: Part, index: Tensor, x: Tensor) -> float:
        """Sum over samples of their mean squared error, in units of x."""
        pairs = self._pairs[part]
        target = pairs.target[index]
        apart = (self.problem.model.decode(x) - target).double().square().flatten(1).mean(1)
        return float(apart.sum() * x.double().var() / pairs.target.double().var())

    @torch.no_grad()
    def residual(self, x: Tensor, index: Tensor) -> Tensor:
        """A vector (B, F) for learning pairs, whose squared length is the distance.

        That is exact for l2 and feature distances; others are l2 times a weight a sample that makes
        it so at this x.
        """
        sample = self.problem.model.decode(x)
        target = tuple(f[index] for f in self._targets["train"])
        distance = self.problem.distance
        if isinstance(distance, FeatureDistance):
            return distance.residual(sample, target)
        apart = (sample - target[0]).double().flatten(1) / sample[0].numel() ** 0.5
        square = apart.square().sum(1)
        weight = distance(sample, target[0]).double() / square.clamp_min(1e-30)
        weighted: Tensor = weight.sqrt()[:, None] * apart
        return weighted

    def first(self, part: Part, index: Tensor) -> list[Tensor]:
        """The network's answer to the noise of the pairs at t_max, remembered."""
        return [self._first_answer(part)[index]]

    @torch.no_grad()
    def mean_loss(
        self, table: Table, near: Tensor | None = None, limit: int = 0, power: float = 1.0
    ) -> float:
        """Over all validation pairs, or the first `limit` of them: the mean of that power."""
        count = min(limit or len(self.problem.valid), len(self.problem.valid))
        total = 0.0
        for index in chunks(count, CHUNK):
            part = None if near is None else near[index]
            losses = self.losses("valid", index, table, part).double()
            total += float(raised(losses, power).sum())
        return float((total / count) ** (1 / power))

    def _cost(self, calls: int, again: int) -> int:
        if not torch.is_grad_enabled():
            return calls
        return 3 * calls + again + (2 * calls if self.problem.secant > 0 else 0)

    def _target(self, target: Tensor) -> Features:
        if isinstance(self.problem.distance, FeatureDistance):
            return self.problem.distance.target(target)
        return (target,)

    @torch.no_grad()
    def _first_answer(self, part: Part) -> Tensor:
        if part not in self._first:
            model, pairs = self.problem.model, self._pairs[part]
            t = torch.tensor(model.schedule.t_max, dtype=torch.float64, device="cpu")
            answers = []
            for index in chunks(len(pairs), CHUNK):
                denoise = bind(model, take(pairs.cond, index), guidance=self.problem.guidance)
                answers.append(denoise(model.schedule.prior_std * pairs.noise[index], t))
            self._first[part] = torch.cat(answers)
        return self._first[part]


@dataclass(frozen=True)
class Task:
    """A student with one number of steps; several are learned at once by turns."""

    student: Student
    steps: int
    scale: float = 1.0  # of its losses


def raised(losses: Tensor, power: float) -> Tensor:
    """losses ** power; below 1, few samples that end up far away do not decide alone."""
    return losses if power == 1 else losses.clamp_min(TINY) ** power


def tasks_of(problems: Sequence[Problem], scales: Sequence[float] = ()) -> list[Task]:
    """One a problem; problems that differ in their steps only share a student."""
    students: dict[tuple[int, int, float], Student] = {}
    tasks = []
    for number, problem in enumerate(problems):
        key = (id(problem.train), id(problem.valid), problem.guidance)
        if key not in students:
            students[key] = Student(problem)
        tasks.append(Task(students[key], problem.steps, scales[number] if scales else 1.0))
    return tasks


def evaluations(tasks: Sequence[Task]) -> int:
    """What all of them cost so far."""
    return sum(student.evaluations for student in {task.student for task in tasks})


def _in_turn(first: Denoise, count: int, then: Denoise) -> Denoise:
    """A denoiser for one trajectory: `first` answers `count` times, after that `then`."""
    left = count

    def answer(x: Tensor, t: Tensor) -> Tensor:
        nonlocal left
        left -= 1
        return first(x, t) if left >= 0 else then(x, t)

    return answer


def _with_secant(denoise: Denoise, schedule: Schedule, h: float) -> Denoise:
    """The same answers; slopes in time are secants of width 2h in lam, cut at the ends."""

    def answer(x: Tensor, t: Tensor) -> Tensor:
        out = denoise(x, t.detach())
        lam = schedule.lam(t)
        with torch.no_grad():
            slope = _secant(denoise, schedule, x, lam, h)
        return out + slope * (lam - lam.detach()).to(out.device, out.dtype)

    return answer


def _secant(denoise: Denoise, schedule: Schedule, x: Tensor, lam: Tensor, h: float) -> Tensor:
    """(D(x, lam + h) - D(x, lam - h)) / 2h, cut at the ends of the schedule."""
    ends = torch.tensor([schedule.t_max, schedule.t_min], dtype=torch.float64, device="cpu")
    low, high = schedule.lam(ends)
    below, above = torch.maximum(lam - h, low), torch.minimum(lam + h, high)
    up, down = (denoise(x, schedule.time_at(v)) for v in (above, below))
    return (up - down) / (above - below).to(x.device, x.dtype)


@torch.no_grad()
def roughness(problem: Problem, grid: TimeGrid, samples: int = 4) -> float:
    """How much the slope of the network in time differs between h = 0.002 and h = SECANT in lam.

    The square of their difference over that of the secant, each summed over the inner points of the
    student's trajectories: near 0 for a smooth network, 1 and more where the slope at a point
    misleads.
    """
    model, pairs = problem.model, problem.valid
    index = torch.arange(min(samples, len(pairs)), device="cpu")
    denoise = bind(model, take(pairs.cond, index), guidance=problem.guidance)
    apart = total = 0.0
    t_max = model.schedule.t_max

    def watched(x: Tensor, t: Tensor) -> Tensor:
        nonlocal apart, total
        if float(t) < t_max:
            lam = model.schedule.lam(t)
            near = _secant(denoise, model.schedule, x, lam, 0.002)
            far = _secant(denoise, model.schedule, x, lam, SECANT)
            apart += float((near - far).double().square().sum())
            total += float(far.double().square().sum())
        return denoise(x, t)

    x = model.schedule.prior_std * pairs.noise[index]
    integrate(watched, problem.solver, knots(model.schedule, grid), x)
    return apart / total if total > 0 else 0.0


def take(cond: Cond, index: Tensor) -> Cond:
    """The conditions of some samples."""
    if cond is None:
        return None
    if isinstance(cond, Tensor):
        return cond[index.to(cond.device)]
    return {name: value[index.to(value.device)] for name, value in cond.items()}


def chunks(count: int, size: int) -> list[Tensor]:
    """0 .. count-1 in order, `size` at a time."""
    return [
        torch.arange(first, min(first + size, count), device="cpu")
        for first in range(0, count, size)
    ]
