"""Learning a solver: gradient descent through it, one generator.

Per iteration: numbers -> tuned solver -> student samples of a batch of pairs -> distance to the
teacher's -> slopes. Then the numbers move, and with soft forcing the noises move in their balls.
Now and then the validation pairs judge; the result is what was best on them.

The numbers move in one of three ways: each group by a rule and rate of its own (the paper), all
together by Adam in coordinates in which every direction matters alike, or, for a network that has
no gradients, by Gauss-Newton from forward passes (both in :mod:`.differences`).

`learn` yields after every iteration what there is to see, with a state from which it can go on to
the bit.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ld3.errors import ModelError, SpecError, StoreError
from ld3.grids import TimeGrid
from ld3.learner.differences import gauss_newton, precondition
from ld3.learner.forcing import keep_better, moved, radius
from ld3.learner.optimize import RULES, Memory, adam, clipped
from ld3.parameters import GROUPS, Clock, Numbers, SolverTuning, Tuning
from ld3.problem import Part, Problem, Task, chunks, evaluations, raised, tasks_of
from ld3.table import Tuned
from ld3.teacher import Pairs

Learn = Literal["times", "times+net", "times+net+coefficients"]
POSITIVE = ("epochs", "batch", "power", "patience", "validate_every")  # words of a recipe


@dataclass(frozen=True)
class Recipe:
    """How to learn: everything but the problem."""

    learn: Learn = "times+net"
    exact: bool = True  # corrections of coefficients keep constant networks exact
    variable: Literal["lam", "t"] = "lam"
    window_from: Literal["gaps", "logits"] = "gaps"
    floor: float = 0.01  # of the mean gap
    epochs_times: int = 0  # first epochs: times only; not when preconditioned
    epochs: int = 10  # then: everything
    batch: int = 8
    precondition: int = 0  # samples to find the coordinates with; 0: each group by its own rule
    rate: float = 0.1  # when preconditioned, in units of the error at the start
    gradient_free: bool = False  # Gauss-Newton from forward passes
    rule_times: Literal["sgd", "rmsprop", "adam"] = "adam"
    rule_net: Literal["sgd", "rmsprop", "adam"] = "adam"
    rate_times: float = 0.05
    rate_net: float = 0.05  # in units of the variable
    rate_coefficients: float = 0.01  # by Adam
    clip: float = math.inf
    gamma: float = 0.0  # radius r = gamma d / NFE^2; 0: hard forcing
    rate_noise: float = 0.0  # of the batch mean
    decay: Literal["cosine", "plateau"] = "cosine"
    warm_up: int = 0  # iterations
    patience: int = 5  # of the plateau, in validations
    factor: float = 0.8
    min_rate_times: float = 5e-5
    min_rate_net: float = 1e-6
    validate_every: int = 10  # iterations
    average: float = 0.0  # of the numbers over iterations; 0: none
    power: float = 1.0  # of the distances, before the mean over samples is taken
    max_skipped: int = 20  # batches with a loss or slope that is not finite

    def __post_init__(self) -> None:
        for word, value in vars(self).items():
            number = isinstance(value, int | float)
            if number and not (value > 0 if word in POSITIVE else value >= 0):
                kind = "a positive number" if word in POSITIVE else "0 or more"
                raise SpecError(f"recipe {word}: got {value}, wanted {kind}")


@dataclass(frozen=True)
class State:
    """All a run has in its head between two iterations."""

    iteration: int
    numbers: Numbers
    mean: Numbers  # averages over iterations
    best_numbers: Numbers
    best: float  # validation loss of the best
    rate_times: float
    rate_net: float
    rate_noise: float
    near_train: Tensor  # z' of the pairs (M, *S); empty with hard forcing
    near_valid: Tensor
    scales: Tensor  # (K,) of the losses of the problems: one over those of the start, if several
    basis: Tensor  # (P, P) of the preconditioned coordinates; empty without
    memory: Mapping[str, Memory] = field(default_factory=dict)
    worse: int = 0  # validations since the best
    at_floor: int = 0
    skipped: int = 0
    evaluations: int = 0  # of the network on one sample; a backward pass counts two
    done: bool = False

    def to_tensors(self) -> dict[str, Tensor]:
        """Every field as a tensor, numbers in full precision."""
        return _flatten("", vars(self))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "State":
        """The inverse; a missing or surplus part is a :class:`StoreError`."""
        plain: dict[str, Any] = {"memory": {}}
        for name, value in tensors.items():
            *outer, last = name.split(".")
            inside = plain
            for part in outer:
                inside = inside.setdefault(part, {})
            inside[last] = value
        scalars = {f.name: f.type for f in fields(cls) if f.type in (int, float, bool)}
        try:
            plain |= {name: kind(plain[name].item()) for name, kind in scalars.items()}
            if any(set(plain[name]) != set(GROUPS) for name in ("numbers", "mean", "best_numbers")):
                raise KeyError("numbers")
            return cls(**plain)
        except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise StoreError(f"saved state: got {error}, wanted all parts of a run") from None


def _flatten(name: str, value: Any) -> dict[str, Tensor]:
    """Nested mappings as tensors with dotted names."""
    if isinstance(value, Mapping):
        inner = (_flatten(f"{name}.{key}".lstrip("."), part) for key, part in value.items())
        return {key: tensor for part in inner for key, tensor in part.items()}
    if isinstance(value, Tensor):
        return {name: value}
    kind = torch.float64 if isinstance(value, float) else torch.int64
    return {name: torch.tensor(value, dtype=kind, device="cpu")}


@dataclass(frozen=True)
class Progress:
    """What there is to see after an iteration."""

    iteration: int
    total: int
    loss: float
    valid: float | None  # when the validation pairs were asked
    best: float
    tuned: Tuned  # the best so far
    state: State

    @property
    def grid(self) -> TimeGrid:
        return self.tuned.grid


def tuning_of(problem: Problem, recipe: Recipe) -> SolverTuning:
    """What is learned of a problem by a recipe."""
    clock = Clock(
        problem.model.schedule,
        problem.steps,
        recipe.variable,
        recipe.floor,
        window_from=recipe.window_from,
    )
    learned = tuple(recipe.learn.split("+"))
    return SolverTuning(problem.solver, clock, learned, recipe.exact)


def begin(problem: Problem, recipe: Recipe, start: Tuned | TimeGrid) -> State:
    """The state before the first iteration."""
    tuning = tuning_of(problem, recipe)
    numbers = tuning.numbers(start if isinstance(start, Tuned) else Tuned(start))
    return begin_with([problem], recipe, tuning, numbers)


def begin_with(
    problems: Sequence[Problem], recipe: Recipe, tuning: Tuning, numbers: Numbers
) -> State:
    """The state before the first iteration on several problems at once.

    They differ in steps or guidance. Each counts by its loss over that of the start.
    """
    tasks = tasks_of(problems)
    first = problems[0]
    soft = recipe.gamma > 0
    if soft and len(problems) > 1:
        raise SpecError("gamma: got soft forcing for several problems, wanted 0 (hard forcing)")
    none = torch.empty(0, device="cpu")
    basis = none
    if recipe.precondition > 0 and not recipe.gradient_free:
        basis = precondition(tasks, tuning, numbers, recipe.precondition)
    losses = [
        task.student.mean_loss(
            tuning.table(numbers, task.steps),
            first.valid.noise if soft else None,
            power=recipe.power,
        )
        for task in tasks
    ]
    several = len(losses) > 1
    scales = torch.tensor(
        [1 / max(loss, 1e-12) if several else 1.0 for loss in losses], dtype=torch.float64,
        device="cpu",
    )  # fmt: skip
    asked = {task.student for task in tasks}  # for the answers asked for once
    once = 0 if soft else sum(len(s.problem.train) + len(s.problem.valid) for s in asked)
    return State(
        iteration=0,
        numbers=numbers,
        mean=numbers,
        best_numbers=numbers,
        best=1.0 if several else losses[0],
        rate_times=recipe.rate_times,
        rate_net=recipe.rate_net,
        rate_noise=recipe.rate_noise,
        near_train=first.train.noise if soft else none,
        near_valid=first.valid.noise if soft else none,
        scales=scales,
        basis=basis,
        evaluations=evaluations(tasks) + once,
    )


def learn(problem: Problem, recipe: Recipe, state: State, seed: int = 0) -> Iterator[Progress]:
    """Go on from a state to the end of the recipe."""
    return learn_all([problem], recipe, tuning_of(problem, recipe), state, seed)


def learn_all(
    problems: Sequence[Problem], recipe: Recipe, tuning: Tuning, state: State, seed: int = 0
) -> Iterator[Progress]:
    """The same for several problems, which take turns, an iteration each."""
    tasks = tasks_of(problems, state.scales.tolist())
    spent = state.evaluations
    first = problems[0]
    count = len(first.train)
    per_epoch = math.ceil(count / recipe.batch)
    total = per_epoch * (recipe.epochs_times + recipe.epochs)
    r = radius(recipe.gamma, first.model.shape, first.nfe)
    while state.iteration < total and not state.done:
        epoch, position = divmod(state.iteration, per_epoch)
        if position == 0 and epoch > 0 and recipe.decay == "plateau":
            state = _reloaded(state)
        order = _order(count, seed, epoch)
        index = order[position * recipe.batch : (position + 1) * recipe.batch]
        later = epoch >= recipe.epochs_times
        state, loss = _descend(state, tasks, tuning, recipe, index, later, r, total)
        valid = None
        last = state.iteration == total
        if state.iteration % recipe.validate_every == 0 or last:
            state, valid = _judge(state, tasks, tuning, recipe, later)
        if r > 0 and (position == per_epoch - 1):
            state = _move_validation(state, tasks[0], tuning, recipe, r)
        state = replace(state, evaluations=spent + evaluations(tasks))
        tuned = tuning.tuned(state.best_numbers, first.steps)
        yield Progress(state.iteration, total, loss, valid, state.best, tuned, state)


def finished(tuning: Tuning, steps: int, state: State) -> Progress:
    """What a run that has nothing left to do came to."""
    tuned = tuning.tuned(state.best_numbers, steps)
    done = state.iteration
    return Progress(done, done, state.best, None, state.best, tuned, state)


def _descend(
    state: State,
    tasks: Sequence[Task],
    tuning: Tuning,
    recipe: Recipe,
    index: Tensor,
    later: bool,
    r: float,
    total: int,
) -> tuple[State, float]:
    """One step of the numbers, and of the noises of the batch."""
    if recipe.gradient_free:
        numbers, loss = gauss_newton(tasks, tuning, state.numbers, index)
        state = replace(state, iteration=state.iteration + 1, numbers=numbers, mean=numbers)
        return state, loss
    task = tasks[state.iteration % len(tasks)]
    leaf = tuning.flat(state.numbers).requires_grad_()
    near = state.near_train[index].clone().requires_grad_() if r > 0 else None
    table = tuning.table(tuning.unflat(leaf, state.numbers), task.steps)
    losses = task.scale * task.student.losses("train", index, table, near)
    leaves = (leaf,) if near is None else (leaf, near)
    slopes = torch.autograd.grad(raised(losses, recipe.power).mean(), leaves)
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

    done = state.iteration - 1
    fade = min(1.0, (done + 1) / (recipe.warm_up + 1))
    if recipe.decay == "cosine":
        fade *= 0.5 * (1 + math.cos(math.pi * done / total))
    numbers, memory = _moved(state, tuning, recipe, slopes[0], fade, later)
    keep = min(recipe.average, (done + 1) / (done + 10))
    mean = {name: keep * state.mean[name] + (1 - keep) * numbers[name] for name in numbers}
    state = replace(state, numbers=numbers, mean=mean, memory=memory)
    if r > 0:
        state = _move_noise(state, task, tuning, "train", index, losses, slopes[1], r)
    return state, loss


def _moved(
    state: State, tuning: Tuning, recipe: Recipe, slope: Tensor, fade: float, later: bool
) -> tuple[dict[str, Tensor], dict[str, Memory]]:
    """The numbers after a step, and what their rules remember."""
    memory = dict(state.memory)
    if len(state.basis) > 0:
        basis = state.basis
        step, memory["all"] = adam(clipped(basis @ slope, recipe.clip), memory.get("all", {}))
        theta = tuning.flat(state.numbers) - fade * recipe.rate * (basis @ step)
        return tuning.unflat(theta, state.numbers), memory
    ways = {
        "times": (RULES[recipe.rule_times], state.rate_times),
        "net": (RULES[recipe.rule_net], state.rate_net),
        "coefficients": (adam, recipe.rate_coefficients),
    }
    slopes = tuning.unflat(slope, state.numbers)
    numbers = dict(state.numbers)
    for name in tuning.learned if later else ("times",):
        rule, rate = ways[name]
        step, memory[name] = rule(clipped(slopes[name], recipe.clip), memory.get(name, {}))
        numbers[name] = numbers[name] - fade * rate * step
    return numbers, memory


def _move_noise(
    state: State,
    task: Task,
    tuning: Tuning,
    part: Part,
    index: Tensor,
    losses: Tensor,
    slope: Tensor,
    r: float,
) -> State:
    """Projected step of the noises of a batch, kept where it lowers the loss."""
    student = task.student
    pairs: Pairs = getattr(student.problem, part)
    near: Tensor = getattr(state, f"near_{part}")
    candidate = moved(near[index], pairs.noise[index], slope, state.rate_noise, r)
    with torch.no_grad():
        table = tuning.table(state.numbers, task.steps)
        after = student.losses(part, index, table, candidate)
    near = near.clone()
    near[index] = keep_better(near[index], candidate, losses, after)
    return replace(state, near_train=near) if part == "train" else replace(state, near_valid=near)


def _move_validation(state: State, task: Task, tuning: Tuning, recipe: Recipe, r: float) -> State:
    """The validation noises move too, once an epoch, with the numbers held still."""
    before = state.near_valid
    for index in chunks(len(before), recipe.batch):
        near = state.near_valid[index].clone().requires_grad_()
        table = tuning.table(state.numbers, task.steps)
        losses = task.student.losses("valid", index, table, near)
        (slope,) = torch.autograd.grad(losses.mean(), near)
        state = _move_noise(state, task, tuning, "valid", index, losses.detach(), slope, r)
    if torch.equal(before, state.near_valid):
        state = replace(state, rate_noise=0.5 * state.rate_noise)
    best = tuning.table(state.best_numbers, task.steps)
    valid = task.student.mean_loss(best, state.near_valid, power=recipe.power)
    return replace(state, best=valid)


def _judge(
    state: State, tasks: Sequence[Task], tuning: Tuning, recipe: Recipe, later: bool
) -> tuple[State, float]:
    """Ask the validation pairs; remember the best; on a plateau reload it and slow down."""
    near = state.near_valid if recipe.gamma > 0 else None
    valid = 0.0
    for task in tasks:
        table = tuning.table(state.mean, task.steps)
        loss = task.student.mean_loss(table, near, power=recipe.power)
        valid += task.scale * loss / len(tasks)
    if valid < state.best:
        return replace(state, best=valid, best_numbers=state.mean, worse=0), valid
    state = replace(state, worse=state.worse + 1)
    if recipe.decay == "plateau" and state.worse >= recipe.patience:
        state = _reloaded(state)
        state = replace(
            state, rate_times=max(recipe.factor * state.rate_times, recipe.min_rate_times)
        )
        if later and "net" in tuning.learned:
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
    return replace(state, numbers=state.best_numbers, mean=state.best_numbers, worse=0)


def _order(count: int, seed: int, epoch: int) -> Tensor:
    """The pairs in the order of an epoch, from the seed and the epoch alone."""
    generator = torch.Generator(device="cpu").manual_seed(1_000_003 * seed + epoch)
    return torch.randperm(count, generator=generator, device="cpu")
