"""Predictions of networks, and their conversion to x0.

With x = alpha x0 + sigma eps a network may output x0, the noise eps, v = alpha eps - sigma x0
(Salimans and Ho 2022), the flow velocity u = eps - x0 or its reverse w = x0 - eps, which points
from noise to data (InstaFlow). Each is an affine function of x0 given x:

    x0   = out
    x0   = (x - sigma eps) / alpha
    x0   = (alpha x - sigma v) / (alpha^2 + sigma^2)
    x0   = (x - sigma u) / (alpha + sigma)
    x0   = (x + sigma w) / (alpha + sigma)

With decoupled network times alpha and sigma are those at the network time, as in the LD3 paper's
code.
"""

from typing import Literal, get_args

from torch import Tensor

Prediction = Literal["x0", "eps", "v", "flow", "reverse-flow"]
PREDICTIONS: tuple[Prediction, ...] = get_args(Prediction)


def to_x0(prediction: Prediction, out: Tensor, x: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """The data estimate behind a network output."""
    match prediction:
        case "x0":
            return out
        case "eps":
            return (x - sigma * out) / alpha
        case "v":
            norm = alpha**2 + sigma**2
            return (alpha / norm) * x - (sigma / norm) * out
        case "flow":
            return (x - sigma * out) / (alpha + sigma)
        case "reverse-flow":
            return (x + sigma * out) / (alpha + sigma)


def to_eps(x0: Tensor, x: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """The noise estimate that goes with a data estimate."""
    return (x - alpha * x0) / sigma  # subtract first: at small sigma that keeps the digits


def from_x0(prediction: Prediction, x0: Tensor, x: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
    """What a network of this prediction outputs when its data estimate is `x0`."""
    eps = to_eps(x0, x, alpha, sigma)
    match prediction:
        case "x0":
            return x0
        case "eps":
            return eps
        case "v":
            return alpha * eps - sigma * x0
        case "flow":
            return eps - x0
        case "reverse-flow":
            return x0 - eps
