"""Learning the times: gradient descent through the solver, one generator.

Per iteration: logits and shifts -> grid -> student samples of a batch of pairs -> distance to the
teacher's -> slopes. Then the numbers move, and with soft forcing the noises move in their balls.
Now and then the validation pairs judge; the result is the grid that was best on them.

`learn` yields after every iteration what there is to see, with a state from which it can go on to
the bit.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ld3.discretizers.ld3.forcing import keep_better, moved, radius
from ld3.discretizers.ld3.optimize import RULES, clipped
from ld3.discretizers.ld3.parametrize import Clock
from ld3.discretizers.ld3.student import Part, Problem, Student, chunks
from ld3.errors import ModelError, StoreError
from ld3.grids import TimeGrid
from ld3.teacher import Pairs


@dataclass(frozen=True)
class Recipe:
    """How to learn: everything but the problem."""

    variable: Literal["lam", "t"] = "lam"
    window_from: Literal["gaps", "logits"] = "gaps"
    floor: float = 0.01  # of the mean gap
    epochs_times: int = 0  # first epochs: times only
    epochs: int = 10  # then: times and network times
    batch: int = 8
    rule_times: Literal["sgd", "rmsprop", "adam"] = "adam"
    rule_net: Literal["sgd", "rmsprop", "adam"] = "adam"
    rate_times: float = 0.05
    rate_net: float = 0.05  # in units of the variable
    clip: float = math.inf
    gamma: float = 0.0  # radius r = gamma d / NFE^2; 0: hard forcing
    rate_noise: float = 0.0  # of the batch mean
    decay: Literal["cosine", "plateau"] = "cosine"
    patience: int = 5  # of the plateau, in validations
    factor: float = 0.8
    min_rate_times: float = 5e-5
    min_rate_net: float = 1e-6
    validate_every: int = 10  # iterations
    average: float = 0.0  # of the numbers over iterations; 0: none
    learn_net: bool = True
    max_skipped: int = 20  # batches with a loss or slope that is not finite


@dataclass(frozen=True)
class State:
    """All a run has in its head between two iterations."""

    iteration: int
    logits: Tensor  # (N,)
    shifts: Tensor  # (N-1,)
    mean_logits: Tensor  # averages over iterations
    mean_shifts: Tensor
    best_logits: Tensor
    best_shifts: Tensor
    best: float  # validation loss of the best
    rate_times: float
    rate_net: float
    rate_noise: float
    near_train: Tensor  # z' of the pairs (M, *S); empty with hard forcing
    near_valid: Tensor
    memory_times: Mapping[str, Tensor] = field(default_factory=dict)
    memory_net: Mapping[str, Tensor] = field(default_factory=dict)
    worse: int = 0  # validations since the best
    at_floor: int = 0
    skipped: int = 0
    evaluations: int = 0  # of the network on one sample; a backward pass counts two
    done: bool = False

    def to_tensors(self) -> dict[str, Tensor]:
        """Every field as a tensor, numbers in full precision."""
        tensors: dict[str, Tensor] = {}
        for name, value in vars(self).items():
            if isinstance(value, Mapping):
                tensors |= {f"{name}.{key}": part for key, part in value.items()}
            elif isinstance(value, Tensor):
                tensors[name] = value
            else:
                kind = torch.float64 if isinstance(value, float) else torch.int64
                tensors[name] = torch.tensor(value, dtype=kind, device="cpu")
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "State":
        """The inverse; a missing or surplus part is a :class:`StoreError`."""
        plain: dict[str, Any] = {"memory_times": {}, "memory_net": {}}
        for name, value in tensors.items():
            outer, _, inner = name.partition(".")
            if inner:
                plain.setdefault(outer, {})[inner] = value
            else:
                plain[outer] = value
        numbers = {f.name: f.type for f in fields(cls) if f.type in (int, float, bool)}
        try:
            plain |= {name: kind(plain[name].item()) for name, kind in numbers.items()}
            return cls(**plain)
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise StoreError(f"saved state: got {error}, wanted all parts of a run") from None


@dataclass(frozen=True)
class Progress:
    """What there is to see after an iteration."""

    iteration: int
    total: int
    loss: float
    valid: float | None  # when the validation pairs were asked
    best: float
    grid: TimeGrid  # the best so far
    state: State


def clock_of(problem: Problem, recipe: Recipe) -> Clock:
    return Clock(
        problem.model.schedule,
        problem.steps,
        recipe.variable,
        recipe.floor,
        window_from=recipe.window_from,
    )


def begin(problem: Problem, recipe: Recipe, start: TimeGrid) -> State:
    """The state before the first iteration."""
    clock = clock_of(problem, recipe)
    logits, shifts = clock.logits(start), clock.shifts(start)
    if recipe.window_from == "logits":
        logits = logits - logits[0] + 1  # the code compares with a logit that stays at 1
    student = Student(problem)
    grid = clock.grid(logits, shifts)
    soft = recipe.gamma > 0
    best = student.mean_loss(grid, problem.valid.noise if soft else None)
    first = 0 if soft else len(problem.train) + len(problem.valid)  # answers asked for once
    none = torch.empty(0, device="cpu")
    return State(
        iteration=0,
        logits=logits,
        shifts=shifts,
        mean_logits=logits,
        mean_shifts=shifts,
        best_logits=logits,
        best_shifts=shifts,
        best=best,
        rate_times=recipe.rate_times,
        rate_net=recipe.rate_net,
        rate_noise=recipe.rate_noise,
        near_train=problem.train.noise if soft else none,
        near_valid=problem.valid.noise if soft else none,
        evaluations=student.evaluations + first,
    )


def learn(problem: Problem, recipe: Recipe, state: State, seed: int = 0) -> Iterator[Progress]:
    """Go on from a state to the end of the recipe."""
    clock, student = clock_of(problem, recipe), Student(problem)
    student.evaluations = state.evaluations
    per_epoch = math.ceil(len(problem.train) / recipe.batch)
    total = per_epoch * (recipe.epochs_times + recipe.epochs)
    r = radius(recipe.gamma, problem.model.shape, problem.nfe)
    while state.iteration < total and not state.done:
        epoch, position = divmod(state.iteration, per_epoch)
        if position == 0 and epoch > 0 and recipe.decay == "plateau":
            state = _reloaded(state)
        order = _order(len(problem.train), seed, epoch)
        index = order[position * recipe.batch : (position + 1) * recipe.batch]
        nets = recipe.learn_net and epoch >= recipe.epochs_times
        state, loss = _descend(state, student, clock, recipe, index, nets, r, total)
        valid = None
        last = state.iteration == total
        if state.iteration % recipe.validate_every == 0 or last:
            state, valid = _judge(state, student, clock, recipe, nets)
        if r > 0 and (position == per_epoch - 1):
            state = _move_validation(state, student, clock, recipe, r)
        state = replace(state, evaluations=student.evaluations)
        grid = clock.grid(state.best_logits, state.best_shifts)
        yield Progress(state.iteration, total, loss, valid, state.best, grid, state)


def finished(problem: Problem, recipe: Recipe, state: State) -> Progress:
    """What a run that has nothing left to do came to."""
    clock = clock_of(problem, recipe)
    grid = clock.grid(state.best_logits, state.best_shifts)
    done = state.iteration
    return Progress(done, done, state.best, None, state.best, grid, state)


def _descend(
    state: State,
    student: Student,
    clock: Clock,
    recipe: Recipe,
    index: Tensor,
    nets: bool,
    r: float,
    total: int,
) -> tuple[State, float]:
    """One step of the numbers, and of the noises of the batch."""
    logits = state.logits.clone().requires_grad_()
    shifts = state.shifts.clone().requires_grad_()
    near = state.near_train[index].clone().requires_grad_() if r > 0 else None
    losses = student.losses("train", index, clock.grid(logits, shifts), near)
    leaves = (logits, shifts) if near is None else (logits, shifts, near)
    slopes = torch.autograd.grad(losses.mean(), leaves)
    losses = losses.detach()
    loss = float(losses.mean())
    state = replace(state, iteration=state.iteration + 1)
    if not all(bool(torch.isfinite(value).all()) for value in (losses, *slopes)):
        if state.skipped >= recipe.max_skipped:
            raise ModelError(
                f"learning: got a loss or slope that is not finite {state.skipped + 1} times, the "
                f"last at iteration {state.iteration}; try a smaller rate or another start"
            )
        return replace(state, skipped=state.skipped + 1), loss

    fade = 1.0
    if recipe.decay == "cosine":
        fade = 0.5 * (1 + math.cos(math.pi * (state.iteration - 1) / total))
    rule_times, rule_net = RULES[recipe.rule_times], RULES[recipe.rule_net]
    step, memory_times = rule_times(clipped(slopes[0], recipe.clip), state.memory_times)
    moved_logits = state.logits - fade * state.rate_times * step
    moved_shifts, memory_net = state.shifts, state.memory_net
    if nets:
        step, memory_net = rule_net(clipped(slopes[1], recipe.clip), memory_net)
        moved_shifts = state.shifts - fade * state.rate_net * step
    keep = recipe.average
    state = replace(
        state,
        logits=moved_logits,
        shifts=moved_shifts,
        mean_logits=keep * state.mean_logits + (1 - keep) * moved_logits,
        mean_shifts=keep * state.mean_shifts + (1 - keep) * moved_shifts,
        memory_times=memory_times,
        memory_net=memory_net,
    )
    if r > 0:
        state = _move_noise(state, student, clock, "train", index, losses, slopes[2], r)
    return state, loss


def _move_noise(
    state: State,
    student: Student,
    clock: Clock,
    part: Part,
    index: Tensor,
    losses: Tensor,
    slope: Tensor,
    r: float,
) -> State:
    """Projected step of the noises of a batch, kept where it lowers the loss."""
    pairs: Pairs = getattr(student.problem, part)
    near: Tensor = getattr(state, f"near_{part}")
    candidate = moved(near[index], pairs.noise[index], slope, state.rate_noise, r)
    with torch.no_grad():
        grid = clock.grid(state.logits, state.shifts)
        after = student.losses(part, index, grid, candidate)
    near = near.clone()
    near[index] = keep_better(near[index], candidate, losses, after)
    return replace(state, near_train=near) if part == "train" else replace(state, near_valid=near)


def _move_validation(
    state: State, student: Student, clock: Clock, recipe: Recipe, r: float
) -> State:
    """The validation noises move too, once an epoch, with the numbers held still."""
    before = state.near_valid
    for index in chunks(len(before), recipe.batch):
        near = state.near_valid[index].clone().requires_grad_()
        grid = clock.grid(state.logits, state.shifts)
        losses = student.losses("valid", index, grid, near)
        (slope,) = torch.autograd.grad(losses.mean(), near)
        state = _move_noise(state, student, clock, "valid", index, losses.detach(), slope, r)
    if torch.equal(before, state.near_valid):
        state = replace(state, rate_noise=0.5 * state.rate_noise)
    best = clock.grid(state.best_logits, state.best_shifts)
    return replace(state, best=student.mean_loss(best, state.near_valid))


def _judge(
    state: State, student: Student, clock: Clock, recipe: Recipe, nets: bool
) -> tuple[State, float]:
    """Ask the validation pairs; remember the best; on a plateau reload it and slow down."""
    grid = clock.grid(state.mean_logits, state.mean_shifts)
    valid = student.mean_loss(grid, state.near_valid if recipe.gamma > 0 else None)
    if valid < state.best:
        return (
            replace(
                state,
                best=valid,
                best_logits=state.mean_logits,
                best_shifts=state.mean_shifts,
                worse=0,
            ),
            valid,
        )
    state = replace(state, worse=state.worse + 1)
    if recipe.decay == "plateau" and state.worse >= recipe.patience:
        state = _reloaded(state)
        state = replace(
            state, rate_times=max(recipe.factor * state.rate_times, recipe.min_rate_times)
        )
        if nets:
            floor = recipe.min_rate_net
            stuck = state.rate_net <= floor
            state = replace(
                state,
                rate_net=max(recipe.factor * state.rate_net, floor),
                at_floor=state.at_floor + stuck,
            )
            state = replace(state, done=state.at_floor >= recipe.patience)
    return state, valid


def _reloaded(state: State) -> State:
    return replace(
        state,
        logits=state.best_logits,
        shifts=state.best_shifts,
        mean_logits=state.best_logits,
        mean_shifts=state.best_shifts,
        worse=0,
    )


def _order(count: int, seed: int, epoch: int) -> Tensor:
    """The pairs in the order of an epoch, from the seed and the epoch alone."""
    generator = torch.Generator(device="cpu").manual_seed(1_000_003 * seed + epoch)
    return torch.randperm(count, generator=generator, device="cpu")
