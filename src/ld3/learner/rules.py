"""Rules of a run: batches, rates, averages, the best values and plateaus. Functions of a state."""

import math
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.learner.recipes import GaussNewton, GradientRecipe, Recipe
from ld3.learner.state import State
from ld3.parameters import Values


def batch_order(count: int, seed: int, epoch: int) -> Tensor:
    """A permutation of the pairs that depends on seed and epoch only."""
    generator = torch.Generator(device="cpu").manual_seed(1_000_003 * seed + epoch)
    return torch.randperm(count, generator=generator, device="cpu")


def rate_factor(recipe: GradientRecipe, done: int, total: int) -> float:
    """min(1, (i + 1) / (warm_up + 1)) after i iterations; cosine decay adds (1 + cos(pi i/n)) / 2.

    The two factors are multiplied; n is the total number of iterations.
    """
    factor = min(1.0, (done + 1) / (recipe.warm_up + 1))
    if recipe.decay == "cosine":
        factor *= 0.5 * (1 + math.cos(math.pi * done / total))
    return factor


def averaged(average: Values, values: Values, decay: float, done: int) -> dict[str, Tensor]:
    """k average + (1 - k) values, with k = min(decay, (i + 1) / (i + 10)) after i iterations."""
    keep = min(decay, (done + 1) / (done + 10))
    return {name: keep * average[name] + (1 - keep) * values[name] for name in values}


def skip_batch(state: State, recipe: Recipe) -> State:
    """Count a batch that is not finite; one more than `max_skipped` is an error."""
    if state.skipped >= recipe.max_skipped:
        raise ModelError(
            f"learning: got a loss or slope that is not finite {state.skipped + 1} times, the "
            f"last at iteration {state.iteration}; try a smaller rate or another start"
        )
    return replace(state, skipped=state.skipped + 1)


def record_validation(state: State, valid: float, recipe: Recipe, epoch: int) -> State:
    """Keep the averaged values if their loss is the lowest; `patience` failures are a plateau."""
    if valid < state.best:
        return replace(state, best=valid, best_values=state.average, since_best=0)
    state = replace(state, since_best=state.since_best + 1)
    if has_plateaus(recipe) and state.since_best >= recipe.patience:
        return _plateau(state, recipe, epoch)
    return state


def has_plateaus(recipe: Recipe) -> TypeGuard[GradientRecipe]:
    """Whether rates decay, and the best values are reloaded, on a plateau."""
    return not isinstance(recipe, GaussNewton) and recipe.decay == "plateau"


def _plateau(state: State, recipe: GradientRecipe, epoch: int) -> State:
    """Reload the best values; multiply the rates that are in use by `factor`, down to a minimum.

    The run is done after `patience` plateaus with all rates at their minimum.
    """
    moved = recipe.moved(epoch)
    last_phase = moved == recipe.moved(recipe.all_epochs)
    rates, at_minimum = dict(state.rates), last_phase
    for name in moved:
        rate, minimum = float(rates[name]), recipe.rates[name][1]
        at_minimum = at_minimum and rate <= minimum
        rates[name] = rates[name].new_tensor(min(rate, max(recipe.factor * rate, minimum)))
    count = state.at_minimum + at_minimum
    return replace(reload_best(state), rates=rates, at_minimum=count, done=count >= recipe.patience)


def reload_best(state: State) -> State:
    """Values and average become the best values."""
    return replace(state, values=state.best_values, average=state.best_values, since_best=0)
