"""The state of a run between two iterations."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ld3.learner.optimizers import Memory
from ld3.parameters import Values


@dataclass(frozen=True)
class State:
    """Everything a run needs to continue to the bit."""

    iteration: int
    values: Values
    average: Values  # moving average of the values over iterations
    best_values: Values
    best: float  # validation loss of the best values
    rates: Mapping[str, Tensor]  # () each
    scales: Tensor  # (K,) of the losses of the problems: 1 / loss at the start, if several
    preconditioner: Tensor  # W (P, P); empty without
    noise_train: Tensor  # z' of the pairs (M, *S); empty with hard forcing
    noise_valid: Tensor
    rate_noise: float = 0.0
    secant: float = 0.0
    optimizer: Mapping[str, Memory] = field(default_factory=dict)
    anchor: Values = field(default_factory=dict)  # where the shared error was measured
    since_best: int = 0  # validations
    at_minimum: int = 0  # plateaus with all rates at their minimum
    skipped: int = 0  # batches with a loss or slope that is not finite
    evaluations: int = 0  # of the network on one sample; a backward pass counts two
    passes: int = 0  # the same, with a guided evaluation as two
    done: bool = False
