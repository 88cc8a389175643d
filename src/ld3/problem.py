"""A learning problem, and the student: a solver with few steps, compared with a teacher's samples.

The student runs tables in x0 form on training or validation pairs. It counts what that costs, in
evaluations of the network on one sample. A backward pass counts as two.

Memory: the backward pass keeps the activations of the last `KEPT` network calls. Earlier ones are
computed again, so that memory does not grow with the number of steps.

Pieces of this work, batches of pairs or whole tables, may be made by several processes
(:mod:`ld3.share`). Losses and counts are those of all of them.

Secants: some networks ripple in time, so that their slope at a point misleads. With `secant` h > 0
the student replaces the slope of the denoiser D in lam by

    (D(x, lam + h) - D(x, lam - h)) / 2h        two more evaluations per call

with lam - h and lam + h cut at the ends of the schedule.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from ld3.distances import Distance, FeatureDistance, Features
from ld3.grids import TimeGrid, knots
from ld3.models import Cond, Model, bind, start, take
from ld3.sampling import integrate
from ld3.schedules import Schedule, ends
from ld3.share import Share, Tensors, alone
from ld3.solvers import Denoise, Solver
from ld3.spaces import space_of
from ld3.table import Table, compile_table
from ld3.teacher import Pairs

TINY = 1e-30  # smallest distance whose power is taken
KEPT = 3  # network calls whose activations are kept for the backward pass
SECANT = 0.1  # h for networks that ripple in time
SHORT = 0.002  # h that stands for the slope at a point

Part = Literal["train", "valid"]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Problem:
    """What a search or the learner is given: make few steps of `solver` match the teacher."""

    model: Model
    solver: Solver
    steps: int
    distance: Distance
    train: Pairs
    valid: Pairs
    guidance: float = 1.0
    secant: float = 0.0  # h in lam; 0: the slope at the point
    batch: int = 64  # samples at a time where no gradient is needed
    share: Share = alone  # who makes the pieces of the work

    @property
    def nfe(self) -> int:
        return self.solver.nfe(self.steps)


class Student:
    """Samples and losses of tables on the pairs of a problem, with a count of evaluations."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.evaluations = 0
        self._pairs: dict[Part, Pairs] = {"train": problem.train, "valid": problem.valid}
        self._targets = {part: self._target(pairs.target) for part, pairs in self._pairs.items()}
        self._first: dict[Part, Tensor] = {}

    def losses(
        self, part: Part, index: Tensor, table: Table, noise: Tensor | None = None
    ) -> Tensor:
        """d(student(z), teacher(z)) (B,) for the pairs at `index`.

        `noise` (B, *S) replaces the z of the student.
        """
        if torch.is_grad_enabled():
            return self._losses(part, index, table, noise)
        return next(self.each_losses(part, index, [table], noise))

    @torch.no_grad()
    def each_losses(
        self, part: Part, index: Tensor, tables: Sequence[Table], noise: Tensor | None = None
    ) -> Iterator[Tensor]:
        """:meth:`losses` of several tables, in order."""
        batches = chunks(len(index), self.problem.batch)

        def make(item: tuple[Table, Tensor]) -> Tensors:
            table, i = item
            own = None if noise is None else noise[i]
            return {"losses": self._losses(part, index[i], table, own)}

        self.known(part, noise)
        made = self.shared(make, [(table, i) for table in tables for i in batches])
        for _ in tables:
            yield torch.cat([next(made)["losses"] for _ in batches])

    def shared(self, make: Callable[[Item], Tensors], items: Sequence[Item]) -> Iterator[Tensors]:
        """What `make` gives for each item, in order; evaluations count, whoever made them."""

        def counted(item: Item) -> Tensors:
            before = self.evaluations
            made = make(item)
            spent, self.evaluations = self.evaluations - before, before
            return {**made, "evaluations": torch.tensor(spent, device="cpu")}

        for made in self.problem.share(counted, items):
            self.evaluations += int(made.pop("evaluations"))
            yield made

    def _losses(self, part: Part, index: Tensor, table: Table, noise: Tensor | None) -> Tensor:
        x, _ = self.sample(part, index, table, noise)
        sample = self.problem.model.decode(x)
        target = tuple(f[index] for f in self._targets[part])
        distance = self.problem.distance
        if isinstance(distance, FeatureDistance):
            return distance.distance_to(sample, target)
        return distance(sample, target[0])

    def sample(
        self,
        part: Part,
        index: Tensor,
        table: Table,
        noise: Tensor | None = None,
        known: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """x (B, *S) at the end of a table in x0 form, and the denoiser's answers on the way.

        The `known` first answers are not evaluated again. By default that is D(x_T, t_max) for the
        noise of the pairs themselves, which is evaluated once for all pairs.
        """
        problem, pairs = self.problem, self._pairs[part]
        if known is None:
            known = [first[index] for first in self.known(part, noise)]
        cond = take(pairs.cond, index)
        denoise = self._denoise(cond)
        if torch.is_grad_enabled():
            again = table.nfe - len(known) - KEPT
            both = (self._denoise(cond, checkpoint=True), denoise)
            if problem.secant > 0:
                schedule, h = problem.model.schedule, problem.secant
                both = (_with_secant(both[0], schedule, h), _with_secant(both[1], schedule, h))
            denoise = _in_turn(both[0], again, both[1])
        z = pairs.noise[index] if noise is None else noise
        return table.follow(denoise, start(problem.model, z), known, space_of(problem.model))

    @torch.no_grad()
    def mean_loss(
        self, table: Table, noise: Tensor | None = None, limit: int = 0, power: float = 1.0
    ) -> float:
        """(mean d^power)^(1/power) over the validation pairs, or the first `limit` of them."""
        return next(self.mean_losses([table], noise, limit, power))

    @torch.no_grad()
    def mean_losses(
        self,
        tables: Sequence[Table],
        noise: Tensor | None = None,
        limit: int = 0,
        power: float = 1.0,
    ) -> Iterator[float]:
        """:meth:`mean_loss` of several tables, in order."""
        count = min(limit or len(self.problem.valid), len(self.problem.valid))
        index = torch.arange(count, device="cpu")
        own = None if noise is None else noise[index]
        for losses in self.each_losses("valid", index, tables, own):
            yield float(float(raised(losses.double(), power).sum() / count) ** (1 / power))

    @torch.no_grad()
    def squared_error(self, part: Part, index: Tensor, x: Tensor) -> float:
        """Mean squared error of the samples, scaled from the variance of targets to that of x."""
        target = self._pairs[part].target
        error = (self.problem.model.decode(x) - target[index]).double().square().flatten(1).mean(1)
        return float(error.mean() * self.vectors(x).double().var() / target.double().var())

    def vectors(self, x: Tensor) -> Tensor:
        """x (B, ...) where it is a vector; else the decoded sample, whose changes have a size."""
        return x if space_of(self.problem.model) is None else self.problem.model.decode(x)

    @torch.no_grad()
    def residual(self, x: Tensor, index: Tensor) -> Tensor:
        """r (B, F) for training pairs, whose squared length is d.

        Exact for l2 and feature distances. For others r is the l2 residual with one weight per
        sample that makes it so at this x.
        """
        sample = self.problem.model.decode(x)
        target = tuple(f[index] for f in self._targets["train"])
        distance = self.problem.distance
        if isinstance(distance, FeatureDistance):
            return distance.residual(sample, target)
        r = (sample - target[0]).double().flatten(1) / sample[0].numel() ** 0.5
        weight = distance(sample, target[0]).double() / r.square().sum(1).clamp_min(TINY)
        weighted: Tensor = weight.sqrt()[:, None] * r
        return weighted

    @torch.no_grad()
    def roughness(self, grid: TimeGrid, samples: int = 4) -> float:
        """sum (s(SHORT) - s(SECANT))^2 / sum s(SECANT)^2, with s(h) the secant of D in lam.

        The sums run over the inner points of the student's trajectories on validation pairs. The
        value is near 0 for a smooth network; at 1 and above the slope at a point misleads.
        """
        model, pairs = self.problem.model, self.problem.valid
        schedule, space = model.schedule, space_of(model)

        def make(index: Tensor) -> Tensors:
            denoise, squares = self._denoise(take(pairs.cond, index)), []

            def compare(x: Tensor, t: Tensor) -> Tensor:
                if float(t) < schedule.t_max:
                    lam = schedule.lam(t)
                    near, far = (_secant(denoise, schedule, x, lam, h) for h in (SHORT, SECANT))
                    squares.append([float(d.double().square().sum()) for d in (near - far, far)])
                return denoise(x, t)

            x, k = start(model, pairs.noise[index]), knots(schedule, grid)
            if space is None:
                integrate(compare, self.problem.solver, k, x)
            else:
                compile_table(self.problem.solver, k).run(compare, x, space)
            return {"squares": torch.tensor(squares, dtype=torch.float64, device="cpu")}

        apart = total = 0.0
        for made in self.shared(make, chunks(min(samples, len(pairs)), self.problem.batch)):
            for near, far in made["squares"].tolist():
                apart, total = apart + near, total + far
        return apart / total if total > 0 else 0.0

    def prepare(self) -> None:
        """Evaluate D(x_T, t_max) for all pairs, which hard forcing needs once."""
        for part in self._pairs:
            self._first_answers(part)

    @torch.no_grad()
    def _first_answers(self, part: Part) -> Tensor:
        """D(x_T, t_max) for the noise of all pairs."""
        if part not in self._first:
            model, pairs = self.problem.model, self._pairs[part]
            t = torch.tensor(model.schedule.t_max, dtype=torch.float64, device="cpu")

            def make(i: Tensor) -> Tensors:
                x = start(model, pairs.noise[i])
                return {"answers": self._denoise(take(pairs.cond, i))(x, t)}

            made = self.shared(make, chunks(len(pairs), self.problem.batch))
            self._first[part] = torch.cat([one["answers"] for one in made])
        return self._first[part]

    def known(self, part: Part, noise: Tensor | None = None) -> list[Tensor]:
        """The answers that need no evaluation: the first, unless the student has its own noise."""
        return [self._first_answers(part)] if noise is None else []

    def _denoise(self, cond: Cond, checkpoint: bool = False) -> Denoise:
        """The denoiser; every call adds its cost to `evaluations`.

        A call costs 1 per sample; with a gradient 2 more, and 1 more if it is computed again.
        """
        problem = self.problem
        denoise = bind(problem.model, cond, guidance=problem.guidance, checkpoint=checkpoint)

        def counted(x: Tensor, t: Tensor) -> Tensor:
            backward = 2 + checkpoint if torch.is_grad_enabled() else 0
            self.evaluations += (1 + backward) * len(x)
            return denoise(x, t)

        return counted

    def _target(self, target: Tensor) -> Features:
        if isinstance(self.problem.distance, FeatureDistance):
            return self.problem.distance.target(target)
        return (target,)


def raised(losses: Tensor, power: float) -> Tensor:
    """losses^power; a power below 1 lets distant samples count less."""
    return losses if power == 1 else losses.clamp_min(TINY) ** power


def chunks(count: int, size: int) -> list[Tensor]:
    """0 .. count-1 in order, `size` at a time."""
    return list(torch.split(torch.arange(count, device="cpu"), size)) if count else []


def _in_turn(first: Denoise, count: int, then: Denoise) -> Denoise:
    """A denoiser for one trajectory: `first` for `count` calls, then `then`."""
    left = count

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        nonlocal left
        left -= 1
        return first(x, t) if left >= 0 else then(x, t)

    return denoise


def _with_secant(denoise: Denoise, schedule: Schedule, h: float) -> Denoise:
    """The same values; the slope in time is the secant."""

    def with_secant(x: Tensor, t: Tensor) -> Tensor:
        out = denoise(x, t.detach())
        lam = schedule.lam(t)
        with torch.no_grad():
            slope = _secant(denoise, schedule, x, lam, h)
        return out + slope * (lam - lam.detach()).to(out.device, out.dtype)

    return with_secant


def _secant(denoise: Denoise, schedule: Schedule, x: Tensor, lam: Tensor, h: float) -> Tensor:
    low, high = schedule.lam(ends(schedule))
    below, above = torch.maximum(lam - h, low), torch.minimum(lam + h, high)
    up, down = (denoise(x, schedule.time_at(v)) for v in (above, below))
    return (up - down) / (above - below).to(x.device, x.dtype)
