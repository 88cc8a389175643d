"""Timesteps of diffusers: what a network gets, and what its output says.

A network gets the step index for discrete schedules, 1000 t for flows, log(sigma)/4 where
diffusers preconditions it. Of its output o at state x a plan reads m = a x + b o.
"""

import torch
from torch import Tensor

from ld3.predictions import Prediction, from_x0, to_x0
from ld3.schedules import Schedule, in_network_units
from ld3.table import Increments
from ld3.tool_units import from_network_units


def told(schedule: Schedule, t: Tensor, sigma_data: float | None = None) -> Tensor:
    """Times in the units that the network takes."""
    return in_network_units(schedule, t) if sigma_data is None else 0.25 * t.log()


def heard(schedule: Schedule, timesteps: Tensor, sigma_data: float | None = None) -> Tensor:
    """The times behind timesteps: the inverse of :func:`told`."""
    if sigma_data is not None:
        return torch.exp(4 * timesteps)
    return from_network_units(schedule, timesteps)


def distinct(timesteps: Tensor) -> Tensor:
    """Timesteps (M,) of which no two are equal: a repeated one moves to the float below it, so that
    each names its step. Heun asks twice at the same time."""
    found: list[float] = []
    for value in timesteps:
        while value.item() in found:
            value = torch.nextafter(value, value - 1)
        found.append(value.item())
    return torch.tensor(found, dtype=timesteps.dtype)


def network_side(
    run: Increments, schedule: Schedule, prediction: Prediction, sigma_data: float | None
) -> tuple[list[float] | None, list[tuple[float, float]]]:
    """What the state is multiplied by for the network, and m = a x + b out, per evaluation."""
    t = run.net_times
    alpha, sigma = (f(t).exp() for f in (schedule.log_alpha, schedule.log_sigma))
    one, zero = torch.ones_like(t), torch.zeros_like(t)
    if sigma_data is None:
        scales = None
        x0 = [to_x0(prediction, *pair, alpha, sigma) for pair in ((zero, one), (one, zero))]
    else:
        norm = (t**2 + sigma_data**2).sqrt()
        scales = (1 / norm).tolist()
        x0 = [sigma_data**2 / norm**2, t * sigma_data / norm]
    on_x = from_x0(run.form, x0[0], one, alpha, sigma)
    on_out = from_x0(run.form, x0[1], zero, alpha, sigma)
    return scales, list(zip(on_x.tolist(), on_out.tolist(), strict=True))
