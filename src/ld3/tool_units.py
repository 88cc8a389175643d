"""Units of diffusers and k-diffusion: network times, noise levels, and the shift of a flow."""

from typing import TypeVar

import torch
from torch import Tensor

from ld3.schedules import Discrete, Flow, Schedule

FIRST = 0.999  # the first time of a flow, before its shift
Number = TypeVar("Number", float, Tensor)


def from_network_units(schedule: Schedule, time: Number) -> Number:
    """The time t of a network time: the inverse of :func:`ld3.schedules.in_network_units`."""
    if isinstance(schedule, Discrete):
        return (time + 1) / schedule.steps
    return time / 1000 if isinstance(schedule, Flow) else time


def noise_level(schedule: Schedule, t: Tensor) -> Tensor:
    """What tools call sigma: sigma on flows, else sigma / alpha."""
    flow = isinstance(schedule, Flow)
    return schedule.log_sigma(t).exp() if flow else torch.exp(-schedule.lam(t))


def flow_shift(schedule: Flow) -> float:
    """s from the first time t = s u / (1 + (s - 1) u), u = 0.999."""
    t = schedule.t_max
    return t * (1 - FIRST) / (FIRST * (1 - t))
