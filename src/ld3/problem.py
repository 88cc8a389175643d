"""A learning problem, and the student: a solver with few steps, compared with a teacher's samples.

The student runs tables in x0 form on training or validation pairs. It counts what that costs, in
evaluations of the network on one sample. A backward pass counts as two. *Passes* count an
evaluation with classifier-free guidance twice, because it runs the network with and without the
condition.

Memory: the backward pass keeps the activations of the last `KEPT` network calls. Earlier ones are
computed again, so that memory does not grow with the number of steps.

Pieces of this work, batches of pairs or whole tables, may be made by several processes
(:mod:`ld3.share`). Losses and counts are those of all of them.

Secants: some networks ripple in time, so that their slope at a point misleads. With `secant` h > 0
the student replaces the slope of the denoiser D in lam by

    (D(x, lam + h) - D(x, lam - h)) / 2h        two more evaluations per call

with lam - h and lam + h cut at the ends of the schedule.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

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
PARTS: tuple[Part, ...] = get_args(Part)
Output = Literal["guided", "both", "conditional"]
"""Of one evaluation: D with guidance inside; or, with guidance in the table, D with the condition
and the direction of guidance, or D with the condition alone."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Problem:
    """The input of a search or the learner: make few steps of `solver` match the teacher."""

    model: Model
    solver: Solver
    steps: int
    distance: Distance
    train: Pairs
    valid: Pairs
    guidance: float = 1.0
    guided: tuple[int, ...] | None = None  # evaluations with both passes, if guidance is learned
    secant: float = 0.0  # h in lam; 0: the slope at the point
    batch: int = 64  # samples at a time where no gradient is needed
    share: Share = alone  # which process makes which piece of the work

    @property
    def nfe(self) -> int:
        return self.solver.nfe(self.steps)

    def pairs(self, part: Part) -> Pairs:
        return self.train if part == "train" else self.valid


class Student:
    """Samples and losses of tables on the pairs of a problem, with a count of evaluations."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.evaluations = 0
        self.passes = 0
        self._first: dict[tuple[Part, Output], list[Tensor]] = {}
        self._targets: dict[Part, Features] = {}
        for part in PARTS:
            y, d = problem.pairs(part).target, problem.distance
            self._targets[part] = d.target(y) if isinstance(d, FeatureDistance) else (y,)

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

        for guided in {table.guided for table in tables}:
            self.known(part, guided, noise)
        made = self.shared(make, [(table, i) for table in tables for i in batches])
        for _ in tables:
            yield torch.cat([next(made)["losses"] for _ in batches])

    def shared(self, make: Callable[[Item], Tensors], items: Sequence[Item]) -> Iterator[Tensors]:
        """`make(item)` for each item, in order; evaluations count, whichever process made them."""

        def counted(item: Item) -> Tensors:
            before = (self.evaluations, self.passes)
            made = make(item)
            spent = (self.evaluations - before[0], self.passes - before[1])
            self.evaluations, self.passes = before
            return {**made, "spent": torch.tensor(spent, device="cpu")}

        for made in self.problem.share(counted, items):
            evaluations, passes = made.pop("spent").tolist()
            self.evaluations += evaluations
            self.passes += passes
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
        model, pairs = self.problem.model, self.problem.pairs(part)
        if known is None:
            known = [first[index] for first in self.known(part, table.guided, noise)]
        networks = self._networks(take(pairs.cond, index), table)
        z = pairs.noise[index] if noise is None else noise
        return table.follow(networks, start(model, z), known, space_of(model))

    def _networks(self, cond: Cond, table: Table) -> list[Denoise]:
        """The denoiser of each evaluation; with gradients, the last KEPT keep their activations."""
        with_gradient, made = torch.is_grad_enabled(), dict[tuple[Output, bool], Denoise]()
        schedule, h = self.problem.model.schedule, self.problem.secant
        networks = []
        for n in range(table.nfe):
            key = (output_of(n, table.guided), with_gradient and n < table.nfe - KEPT)
            if key not in made:
                made[key] = self._denoise(cond, *key)
                if with_gradient and h > 0:
                    made[key] = _with_secant(made[key], schedule, h)
            networks.append(made[key])
        return networks

    def mean_loss(
        self, table: Table, noise: Tensor | None = None, limit: int = 0, power: float = 1.0
    ) -> float:
        """(mean d^power)^(1/power) over the validation pairs, or the first `limit` of them."""
        return next(self.mean_losses([table], noise, limit, power))

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
        target = self.problem.pairs(part).target
        error = (self.problem.model.decode(x) - target[index]).double().square().flatten(1).mean(1)
        return float(error.mean() * self.vectors(x).double().var() / target.double().var())

    def vectors(self, x: Tensor) -> Tensor:
        """x (B, ...) where it is a vector; else the decoded sample, whose changes have a size."""
        return x if space_of(self.problem.model) is None else self.problem.model.decode(x)

    def residual(self, x: Tensor, index: Tensor, part: Part = "train") -> Tensor:
        """r (B, F) for the pairs at `index`, whose squared length is d.

        Exact for l2 and feature distances. For others r is the l2 residual with one weight per
        sample, without a slope, that makes it so at this x.
        """
        sample = self.problem.model.decode(x)
        target = tuple(f[index] for f in self._targets[part])
        distance = self.problem.distance
        if isinstance(distance, FeatureDistance):
            return distance.residual(sample, target)
        r = (sample - target[0]).double().flatten(1) / sample[0].numel() ** 0.5
        with torch.no_grad():
            weight = distance(sample, target[0]).double() / r.square().sum(1).clamp_min(TINY)
        weighted: Tensor = weight.sqrt()[:, None] * r
        return weighted

    @torch.no_grad()
    def roughness(self, grid: TimeGrid, samples: int = 4) -> float:
        """sum (s(SHORT) - s(SECANT))^2 / sum s(SECANT)^2, with s(h) the secant of D in lam.

        The sums run over the inner points of the student's trajectories on validation pairs. The
        value is near 0 for a smooth network; at 1 and above the slope at a point misleads. It is 0
        where a sum is not finite.
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
        return apart / total if total > 0 and math.isfinite(apart / total) else 0.0

    @torch.no_grad()
    def known(
        self, part: Part, guided: tuple[int, ...] | None = None, noise: Tensor | None = None
    ) -> list[Tensor]:
        """D(x_T, t_max) of all pairs, evaluated once; with both passes also the direction.

        Nothing if the student has noise of its own. `guided` are the evaluations with both passes,
        as a table has them.
        """
        key = (part, output_of(0, guided))
        if noise is not None:
            return []
        if key not in self._first:
            model, pairs = self.problem.model, self.problem.pairs(part)
            t = torch.tensor(model.schedule.t_max, dtype=torch.float64, device="cpu")

            def make(i: Tensor) -> Tensors:
                denoise = self._denoise(take(pairs.cond, i), key[1])
                answer = denoise(start(model, pairs.noise[i]), t)
                return {"answers": answer if key[1] == "both" else answer[None]}

            made = list(self.shared(make, chunks(len(pairs), self.problem.batch)))
            self._first[key] = list(torch.cat([one["answers"] for one in made], 1))
        return self._first[key]

    def _denoise(self, cond: Cond, kind: Output = "guided", checkpoint: bool = False) -> Denoise:
        """The denoiser; every call adds its cost to `evaluations` and `passes`.

        A call costs 1 per sample; with a gradient 2 more, and 1 more if it is computed again.
        """
        scale = 1.0 if kind == "conditional" else self.problem.guidance
        model, both = self.problem.model, kind == "both"
        denoise = bind(model, cond, guidance=scale, checkpoint=checkpoint, both=both)
        each = 1 if scale == 1 else 2  # passes

        def counted(x: Tensor, t: Tensor) -> Tensor:
            backward = 2 + checkpoint if torch.is_grad_enabled() else 0
            self.evaluations += (1 + backward) * len(x)
            self.passes += each * (1 + backward) * len(x)
            return denoise(x, t)

        return counted


def raised(losses: Tensor, power: float) -> Tensor:
    """losses^power; a power below 1 gives outliers less weight."""
    return losses if power == 1 else losses.clamp_min(TINY) ** power


def output_of(n: int, guided: Sequence[int] | None) -> Output:
    """The output of evaluation n of a table."""
    if guided is None:
        return "guided"
    return "both" if n in guided else "conditional"


def chunks(count: int, size: int) -> list[Tensor]:
    """0 .. count-1 in order, `size` at a time."""
    return list(torch.split(torch.arange(count, device="cpu"), size)) if count else []


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
