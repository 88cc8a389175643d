"""Recipes: the settings of the three algorithms that learn a solver.

PreconditionedAdam   Adam on all parameters at once, in coordinates W phi (ours)
PaperRules           one optimiser and rate per group (the LD3 paper)
GaussNewton          least squares by forward passes, for networks without gradients
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from ld3.errors import SpecError, unknown

Learn = Literal[
    "times",
    "times+net",
    "times+net+coefficients",
    "times+net+guidance",
    "times+net+coefficients+guidance",
]
Rule = Literal["sgd", "rmsprop", "adam"]
POSITIVE = {"epochs", "batch", "part", "power", "patience", "validate_every", "precondition"}
MOST = 1_000_000  # of what is counted
HIGHEST = {"floor": 1, "factor": 1, "average": 1, "clip": math.inf}  # inf: nothing is clipped


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """Settings of all three."""

    learn: Learn = "times+net"  # groups of parameters that are learned
    exact: bool = True  # corrections integrate a constant x0 without error
    variable: Literal["lam", "t"] = "lam"  # variable whose gaps are learned
    floor: float = 0.01  # smallest gap over the mean gap
    epochs: int = 10  # passes over the training pairs
    batch: int = 8  # pairs of one iteration
    power: float = 1.0  # p of the loss mean(d^p)
    validate_every: int = 10  # iterations between validations
    max_skipped: int = 20  # largest number of batches with a loss or slope that is not finite

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name, value in vars(self).items():
            if choices := get_args(hints[name]):
                fits, wanted = value in choices, f"one of {', '.join(choices)}"
            else:
                low = "a positive number" if name in POSITIVE else "0 or more"
                most = HIGHEST.get(name, MOST if isinstance(value, int) else sys.float_info.max)
                fits = (value > 0 if name in POSITIVE else value >= 0) and value <= most
                wanted = low if most > MOST else f"{low}, at most {most:,}"
            if not fits:
                raise SpecError(f"recipe {name}: got {value!r}, expected {wanted}")

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of parameters that are learned."""
        return tuple(self.learn.split("+"))

    @property
    def all_epochs(self) -> int:
        return self.epochs


@dataclass(frozen=True, kw_only=True)
class _Descent(_Shared):
    """Settings of gradient descent."""

    part: int = 8  # samples of one backward pass; ranks share the parts of a batch
    clip: float = math.inf  # largest norm of the gradient
    gamma: float = 0.0  # soft forcing within r = gamma d / NFE^2; 0: hard forcing
    rate_noise: float = 0.0  # rate of the noise in soft forcing, for the mean over a batch
    decay: Literal["cosine", "plateau"] = "cosine"  # how the rates fall
    warm_up: int = 0  # iterations in which the rates rise to their values
    patience: int = 5  # validations without a new best that make a plateau
    factor: float = 0.8  # factor of the rates at a plateau
    average: float = 0.0  # decay of the moving average of parameters; 0: none


@dataclass(frozen=True, kw_only=True)
class PreconditionedAdam(_Descent):
    """Adam on phi, theta = theta_0 + W phi, with W from forward differences at the start."""

    precondition: int = 12  # samples for W
    rate: float = 0.1  # learning rate, in units of the error at the start
    min_rate: float = 0.001  # rate at the end
    shared: float = 0.0  # kappa: weight of what the errors of all samples have in common

    @property
    def rates(self) -> dict[str, tuple[float, float]]:
        """Rate and minimal rate of each set of parameters that moves together."""
        return {"all": (self.rate, self.min_rate)}

    def moved(self, epoch: int) -> tuple[str, ...]:
        """The sets that move in an epoch, numbered from 0."""
        return ("all",)


@dataclass(frozen=True, kw_only=True)
class PaperRules(_Descent):
    """One optimiser per group; the first epochs move the times only. Coefficients use Adam."""

    floor: float = 0.0
    window_from: Literal["gaps", "logits"] = "gaps"  # what bounds the network times
    epochs_times: int = 2  # first epochs, in which only the times move
    epochs: int = 5  # later epochs, in which all groups move
    rule_times: Rule = "rmsprop"  # optimiser of the times
    rule_net: Rule = "sgd"  # optimiser of the network times
    rate_times: float = 0.005  # learning rate of the times
    rate_net: float = 0.02  # learning rate of the network times, in units of the variable
    rate_coefficients: float = 0.01  # learning rate of the coefficients
    min_rate_times: float = 5e-5  # lowest rate of the times
    min_rate_net: float = 1e-6  # lowest rate of the network times
    min_rate_coefficients: float = 1e-5  # lowest rate of the coefficients
    clip: float = 1.0
    gamma: float = 0.001
    decay: Literal["cosine", "plateau"] = "plateau"
    validate_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if "guidance" in self.groups:
            raise SpecError(
                f"learn: got {self.learn} with a preset of the paper, expected one of standard, "
                "fast, best: the paper has no rate for guidance"
            )

    @property
    def all_epochs(self) -> int:
        return self.epochs_times + self.epochs

    @property
    def rates(self) -> dict[str, tuple[float, float]]:
        """Rate and minimal rate of each group."""
        return {
            "times": (self.rate_times, self.min_rate_times),
            "net": (self.rate_net, self.min_rate_net),
            "coefficients": (self.rate_coefficients, self.min_rate_coefficients),
        }

    @property
    def rules(self) -> dict[str, Rule]:
        return {"times": self.rule_times, "net": self.rule_net, "coefficients": "adam"}

    def moved(self, epoch: int) -> tuple[str, ...]:
        """The groups that move in an epoch, numbered from 0."""
        return self.groups if epoch >= self.epochs_times else ("times",)


@dataclass(frozen=True, kw_only=True)
class GaussNewton(_Shared):
    """Damped least-squares steps whose Jacobian comes from forward differences."""

    batch: int = 32
    validate_every: int = 1


GradientRecipe = PreconditionedAdam | PaperRules
Recipe = GradientRecipe | GaussNewton
R = TypeVar("R", bound=_Shared)


def change_recipe(recipe: R, changes: Mapping[str, object]) -> R:
    """The recipe with other settings; unknown names and wrong types raise :class:`SpecError`."""
    present = vars(recipe)
    checked: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in present:
            raise unknown(f"setting of the recipe {type(recipe).__name__}", name, present)
        old = present[name]
        if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not type(old):
            raise SpecError(f"recipe {name}: got {value!r}, expected something like {old!r}")
        checked[name] = value
    return replace(recipe, **checked)
