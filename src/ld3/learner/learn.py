"""Learning a solver: one generator.

Each iteration runs the student on a batch of training pairs and moves the parameters theta to lower
mean(d^p), where d is the distance of the student's samples to the teacher's. Depending on the
recipe, theta moves by Adam on phi with theta = theta_0 + W phi, by one optimiser per group, or by a
Gauss-Newton step. With soft forcing, the noise of the batch moves as well.

Validation runs every few iterations, on the moving average of theta. The result is the average with
the lowest validation loss.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.grids import TimeGrid
from ld3.known_grids import make_grid
from ld3.learner import rules
from ld3.learner.course import Course, Task, cost, make_tasks
from ld3.learner.forcing import keep_better, projected_step, radius
from ld3.learner.least_squares import gauss_newton_step, preconditioner
from ld3.learner.optimizers import Memory, clipped, optimizer_step
from ld3.learner.recipes import (
    GaussNewton,
    GradientRecipe,
    PaperRules,
    PreconditionedAdam,
    Recipe,
)  # fmt: skip
from ld3.learner.shared_error import Anchor, anchor_at, objective, residuals_of
from ld3.learner.starts import find_starts, with_secant
from ld3.learner.state import State
from ld3.parameters import GUIDANCE, GridParameters, Parameters, SolverParameters, Values
from ld3.problem import PARTS, Part, Problem, chunks, raised
from ld3.share import Tensors
from ld3.table import Table, TunedSolver


@dataclass(frozen=True)
class Progress:
    """A run after an iteration."""

    iteration: int
    total: int
    loss: float | None  # of the batch; None before the first iteration
    valid: float | None  # of the validation pairs, if they were evaluated
    best: float  # the lowest validation loss
    tuned: TunedSolver  # the one with the lowest validation loss
    state: State


def solver_parameters(problem: Problem, recipe: Recipe) -> SolverParameters:
    """The parameters that a recipe learns of a problem."""
    window = recipe.window_from if isinstance(recipe, PaperRules) else "gaps"
    schedule, steps = problem.model.schedule, problem.steps
    grids = GridParameters(schedule, steps, recipe.variable, recipe.floor, window_from=window)
    guided = None
    if GUIDANCE in recipe.groups:
        guided = tuple(range(problem.nfe)) if problem.guided is None else problem.guided
    return SolverParameters(problem.solver, grids, recipe.groups, recipe.exact, guided)


def learning(
    problem: Problem,
    recipe: Recipe,
    start: TunedSolver | TimeGrid | None = None,
    *,
    seed: int = 0,
    state: State | None = None,
) -> Iterator[Progress]:
    """Learn one problem: yields the start (iteration 0), then once after each iteration.

    `start` None is the best known grid on the validation pairs; secants are then used if the
    network ripples in time. `seed` orders the batches. With `state`, a run continues to the bit:
    the first item is that state.
    """
    spent = (0, 0)
    if state is not None:
        problem = replace(problem, secant=state.secant)
    elif start is None:
        found = find_starts(problem, 1, recipe.power)
        problem, spent = with_secant(problem, found.roughness), (found.evaluations, found.passes)
        start = make_grid(found.names[0], problem.model.schedule, problem.steps)
    parameters = solver_parameters(problem, recipe)
    values = {} if start is None else parameters.start_values(start)
    course = Course((problem,), parameters, values, *spent)
    yield from learn_course(course, recipe, seed=seed, state=state)


def learn_course(
    course: Course, recipe: Recipe, *, seed: int = 0, state: State | None = None
) -> Iterator[Progress]:
    """Learn several problems at once; they take turns, one iteration each.

    Yields as :func:`learning` does; `tuned` is the solver of the first problem.
    """
    pairs, tasks = len(course.problems[0].train), make_tasks(course.problems)
    batches, extras = math.ceil(pairs / recipe.batch), _radius_and_kappa(course, recipe)
    run = _Run(course.parameters, recipe, tasks, batches * recipe.all_epochs, *extras)
    if state is None:
        run.prepare()
        state = run.first_state(course)
    run = run.scaled(state.scales)
    yield run.progress(state, None, None)
    if state.iteration < run.total and not state.done:
        run.prepare()
    anchor = run.anchor(state.anchor) if state.iteration % batches else None
    evaluations, passes = cost(run.tasks)  # what a resumed run prepares again counts once
    before = (state.evaluations - evaluations, state.passes - passes)
    while state.iteration < run.total and not state.done:
        epoch, position = divmod(state.iteration, batches)
        if position == 0 and epoch > 0 and rules.has_plateaus(recipe):
            state = rules.reload_best(state)
        order = rules.batch_order(pairs, seed, epoch)
        index = order[position * recipe.batch : (position + 1) * recipe.batch]
        if position == 0 and run.kappa > 0:
            state = replace(state, anchor=state.values)
            anchor = run.anchor(state.anchor)
        state, loss = run.step(state, index, epoch, anchor)
        valid = None
        if state.iteration % recipe.validate_every == 0 or state.iteration == run.total:
            valid = run.validation_loss(state)
            state = rules.record_validation(state, valid, recipe, epoch)
        if run.radius > 0 and position == batches - 1:
            state = run.move_validation_noise(state)
        evaluations, passes = cost(run.tasks)
        state = replace(state, evaluations=before[0] + evaluations, passes=before[1] + passes)
        yield run.progress(state, loss, valid)


def _radius_and_kappa(course: Course, recipe: Recipe) -> tuple[float, float]:
    """The radius of soft forcing and the weight of the shared error; both need one problem."""
    gamma = 0.0 if isinstance(recipe, GaussNewton) else recipe.gamma
    kappa = recipe.shared if isinstance(recipe, PreconditionedAdam) else 0.0
    first, *others = course.problems
    if gamma > 0 and others:
        raise SpecError("recipe gamma: got soft forcing for several problems, expected 0")
    if kappa > 0 and (others or gamma > 0):
        raise SpecError(
            f"recipe shared: got {kappa:g} for several problems or with soft forcing, expected 0"
        )
    return radius(gamma, first.model.shape, first.nfe), kappa


def _scalar(value: float | list[float]) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class _Run:
    """What stays the same during a run."""

    parameters: Parameters
    recipe: Recipe
    tasks: list[Task]
    total: int  # iterations
    radius: float  # of soft forcing
    kappa: float  # of the shared error

    def prepare(self) -> None:
        """Evaluate the first answers of all pairs once; they are known with hard forcing only."""
        for task, part in product(self.tasks if self.radius == 0 else (), PARTS):
            task.student.known(part, self.parameters.guided)

    def first_state(self, course: Course) -> State:
        """The state before the first iteration.

        With several problems the loss of each is divided by its loss at the start; then best = 1.
        """
        first, values, recipe = course.problems[0], course.start, self.recipe
        none = torch.empty(0, device="cpu")
        basis, rates, rate_noise = none, {}, 0.0
        if isinstance(recipe, PreconditionedAdam):
            basis = preconditioner(self.tasks, self.parameters, values, recipe.precondition)
        if not isinstance(recipe, GaussNewton):
            rates = {name: _scalar(rate) for name, (rate, _) in recipe.rates.items()}
            rate_noise = recipe.rate_noise
        losses = [self._valid_loss(task, values, None) for task in self.tasks]
        several = len(losses) > 1
        best = 1.0 if several else losses[0]
        evaluations, passes = cost(self.tasks)
        return State(
            iteration=0,
            values=values,
            average=values,
            best_values=values,
            best=best if math.isfinite(best) else math.inf,
            rates=rates,
            scales=_scalar([1 / max(loss, 1e-12) if several else 1.0 for loss in losses]),
            preconditioner=basis,
            noise_train=first.train.noise if self.radius > 0 else none,
            noise_valid=first.valid.noise if self.radius > 0 else none,
            rate_noise=rate_noise,
            secant=first.secant,
            evaluations=course.evaluations + evaluations,
            passes=course.passes + passes,
        )

    def scaled(self, scales: Tensor) -> "_Run":
        """With the scales (K,) of the losses of the problems."""
        pairs = zip(self.tasks, scales.tolist(), strict=True)
        return replace(self, tasks=[replace(task, scale=scale) for task, scale in pairs])

    def progress(self, state: State, loss: float | None, valid: float | None) -> Progress:
        tuned = self.parameters.tuned(state.best_values, self.tasks[0].steps)
        return Progress(state.iteration, self.total, loss, valid, state.best, tuned, state)

    def anchor(self, values: Values) -> Anchor | None:
        """The errors of all training pairs at some values, if what they share counts."""
        if self.kappa == 0:
            return None
        table = self.parameters.table(values, self.tasks[0].steps)
        return anchor_at(self.tasks[0], table, self.kappa, self.recipe.power)

    def step(
        self, state: State, index: Tensor, epoch: int, anchor: Anchor | None = None
    ) -> tuple[State, float]:
        """One iteration on the batch `index`, and its loss."""
        done = replace(state, iteration=state.iteration + 1)
        recipe = self.recipe
        if isinstance(recipe, GaussNewton):
            values, loss = gauss_newton_step(self.tasks, self.parameters, state.values, index)
            if not math.isfinite(loss):
                return rules.skip_batch(done, recipe), loss
            return replace(done, values=values, average=values), loss
        losses, slope, noise_slope = self._slopes(recipe, state, index, anchor)
        loss = float(losses.mean())
        if not all(bool(torch.isfinite(t).all()) for t in (losses, slope, noise_slope)):
            return rules.skip_batch(done, recipe), loss
        factor = rules.rate_factor(recipe, state.iteration, self.total)
        values, memory = self._moved(recipe, state, slope, factor, epoch)
        average = rules.averaged(state.average, values, recipe.average, state.iteration)
        state = replace(done, values=values, average=average, optimizer=memory)
        if self.radius > 0:
            state = self._move_noise(state, "train", index, losses, noise_slope)
        return state, loss

    @torch.enable_grad()
    def _slopes(
        self, recipe: GradientRecipe, state: State, index: Tensor, anchor: Anchor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Losses (B,) of a batch, and the slopes of the loss in theta and in the noise.

        The batch is cut into parts of a fixed size. Each gives the slope in the table, under 200
        numbers; their sum, in order and in float64, is carried on to theta.
        """
        task = self.tasks[state.iteration % len(self.tasks)]
        leaf = self.parameters.flat(state.values).requires_grad_()
        table = self.parameters.table(self.parameters.unflat(leaf, state.values), task.steps)
        noise = state.noise_train if self.radius > 0 else None
        parts = torch.split(index, recipe.part)
        made = list(self._sloped(task, "train", table, noise, parts, len(index), anchor))
        ends = {"weights": table.weights, "net_times": table.net_times}
        moved = {name: end for name, end in ends.items() if end.requires_grad}
        totals = [reduce(torch.add, (one[name] for one in made)) for name in moved]  # in order
        (slope,) = torch.autograd.grad(list(moved.values()), leaf, totals)
        losses, on_noise = ([part[name] for part in made] for name in ("losses", "noise"))
        return torch.cat(losses), slope, torch.cat(on_noise)

    def _sloped(
        self,
        task: Task,
        pairs: Part,
        table: Table,
        noise: Tensor | None,
        parts: Sequence[Tensor],
        count: int | None = None,
        anchor: Anchor | None = None,
    ) -> Iterator[Tensors]:
        """For each part of some pairs: its losses, and the slopes of sum(d^p) / count; without a
        count, of its mean. With an anchor, the shared error is added."""
        power = self.recipe.power if pairs == "train" else 1.0

        @torch.enable_grad()
        def make(index: Tensor) -> Tensors:
            leaves = [leaf.detach().requires_grad_() for leaf in (table.weights, table.net_times)]
            own = Table(leaves[0], leaves[1], table.guided)
            z = None if noise is None else noise[index].requires_grad_()
            if anchor is None:
                losses = task.scale * task.student.losses(pairs, index, own, z)
                total = raised(losses, power).sum()
            else:
                x, _ = task.student.sample(pairs, index, own)
                residuals = task.student.residual(x, index)
                losses = residuals.square().sum(1)
                total = (raised(losses, power) + anchor.term(residuals, index)).sum()
            leaves += [] if z is None else [z]
            slopes = torch.autograd.grad(
                total / (count or len(index)), leaves, allow_unused=True, materialize_grads=True
            )
            found = dict(zip(("weights", "net_times", "noise"), slopes, strict=False))
            return {"noise": losses.new_zeros(0), **found, "losses": losses.detach()}

        task.student.known(pairs, table.guided, noise)
        return task.student.shared(make, parts)

    def _moved(
        self, recipe: GradientRecipe, state: State, slope: Tensor, factor: float, epoch: int
    ) -> tuple[dict[str, Tensor], dict[str, Memory]]:
        """The values after a step, and the memory of the optimisers."""
        memory = dict(state.optimizer)
        if isinstance(recipe, PreconditionedAdam):
            basis, rate = state.preconditioner, factor * float(state.rates["all"])
            on_phi, none = clipped(basis @ slope, recipe.clip), torch.zeros_like(slope)
            phi, memory["all"] = optimizer_step("adam", none, on_phi, rate, memory.get("all", {}))
            theta = self.parameters.flat(state.values) + basis @ phi
            return self.parameters.unflat(theta, state.values), memory
        slopes, values = self.parameters.unflat(slope, state.values), dict(state.values)
        for name in (name for name in recipe.moved(epoch) if name in self.parameters.learned):
            values[name], memory[name] = optimizer_step(
                recipe.rules[name], values[name], clipped(slopes[name], recipe.clip),
                factor * float(state.rates[name]), memory.get(name, {}),
            )  # fmt: skip
        return values, memory

    def validation_loss(self, state: State) -> float:
        """Mean over the problems of scale * loss, for the averaged values."""
        noise = state.noise_valid if self.radius > 0 else None
        total = 0.0
        for task in self.tasks:
            total += task.scale * self._valid_loss(task, state.average, noise) / len(self.tasks)
        return total

    def _valid_loss(self, task: Task, values: Values, noise: Tensor | None) -> float:
        """mean(d^p)^(1/p) over the validation pairs; with kappa > 0 plus the shared error."""
        table, power = self.parameters.table(values, task.steps), self.recipe.power
        if self.kappa == 0:
            return task.student.mean_loss(table, noise, power=power)
        return objective(residuals_of(task, "valid", table), self.kappa, power)

    def move_validation_noise(self, state: State) -> State:
        """One step of the noise of all validation pairs; the best loss is computed again.

        If no noise moved, its rate is halved.
        """
        task, before = self.tasks[0], state.noise_valid
        table = self.parameters.table(state.values, task.steps)
        parts = chunks(len(before), self.recipe.batch)
        made = self._sloped(task, "valid", table, before, parts)
        for index, found in zip(parts, made, strict=True):
            state = self._move_noise(state, "valid", index, found["losses"], found["noise"])
        if torch.equal(before, state.noise_valid):
            state = replace(state, rate_noise=0.5 * state.rate_noise)
        best = self.parameters.table(state.best_values, task.steps)
        loss = task.student.mean_loss(best, state.noise_valid, power=self.recipe.power)
        return replace(state, best=loss)

    @torch.no_grad()
    def _move_noise(
        self, state: State, part: Part, index: Tensor, losses: Tensor, slope: Tensor
    ) -> State:
        """A projected step of the noise of a batch, kept where it lowers the loss."""
        student, steps = self.tasks[0].student, self.tasks[0].steps
        noise = state.noise_train if part == "train" else state.noise_valid
        old = noise[index]
        centre = student.problem.pairs(part).noise[index]
        new = projected_step(old, centre, slope, state.rate_noise, self.radius)
        after = student.losses(part, index, self.parameters.table(state.values, steps), new)
        noise = noise.clone()
        noise[index] = keep_better(old, new, losses, after)
        if part == "train":
            return replace(state, noise_train=noise)
        return replace(state, noise_valid=noise)
