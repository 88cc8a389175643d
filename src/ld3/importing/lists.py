"""A list of noise levels, timesteps or times as a grid.

Tools write the same schedule in different ways. Noise levels are sigma / alpha on variance
preserving schedules, sigma on flows and for EDM. Timesteps are what the network gets: the
trained step, 1000 t on flows. A list may hold its end or leave it out:

    sigmas      N + 1 numbers for N steps, the last may be 0
    timesteps   N numbers for N steps
    times       N + 1 times of the schedule

Our schedules end at t_min, short of zero: an end at zero becomes t_min.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.grids import TimeGrid
from ld3.schedules import Flow, Schedule, ends, in_network_units
from ld3.tool_units import from_network_units, noise_level

Kind = Literal["auto", "sigmas", "timesteps", "times"]
FAR = 4.0  # a list that ends this many times above the smallest noise level lacks its end
BEYOND = 1.05  # how far a list may begin above the largest, as a factor


@dataclass(frozen=True)
class Read:
    """A grid that was read, corrections of the solver on it, and what was changed."""

    grid: TimeGrid
    notes: tuple[str, ...] = ()
    corrections: Tensor | None = None  # (M, M+1)


def from_list(numbers: Sequence[float], kind: Kind, schedule: Schedule) -> Read:
    """The grid of a list. `auto` takes whole numbers above 1 for timesteps, all others for noise
    levels."""
    if len(numbers) < 1 or not all(a > b for a, b in pairwise(numbers)) or numbers[-1] < 0:
        raise SpecError(
            f"list: got {_show(numbers)}, expected numbers that fall from noise to data, none "
            "negative"
        )
    if kind == "auto":
        whole = all(float(n).is_integer() for n in numbers) and numbers[0] > 1
        kind = "timesteps" if whole else "sigmas"
    values = torch.tensor(numbers, dtype=torch.float64, device="cpu")
    if kind == "timesteps":
        return _from_timesteps(values, schedule)
    if kind == "times":
        return within(values, schedule, (f"read as {len(values)} times",))
    return _from_sigmas(values, schedule)


def times_at(levels: Tensor, schedule: Schedule) -> Tensor:
    """Times of noise levels as tools write them; zero and below the smallest: t_min."""
    if isinstance(schedule, Flow):
        return levels
    high, low = noise_level(schedule, ends(schedule)).tolist()
    inside = levels.clamp(low, high)
    return schedule.time_at(-inside.log()).clamp(schedule.t_min, schedule.t_max)


def _from_sigmas(levels: Tensor, schedule: Schedule) -> Read:
    high, low = noise_level(schedule, ends(schedule)).tolist()
    if levels[0] > BEYOND * high:
        raise SpecError(
            f"sigmas: got {levels[0]:g} at the beginning, expected at most {high:g}, the largest "
            "noise level of the model; is the list for another model?"
        )
    notes = []
    if levels[-1] > FAR * low:
        notes.append(f"the list ends at {levels[-1]:.4g}; a step to the end, {low:.4g}, is added")
        levels = torch.cat([levels, levels.new_tensor([0.0])])
    elif levels[-1] < low * (1 - 1e-3):
        notes.append(f"the end at {levels[-1]:.4g} is moved to the schedule's, {low:.4g}")
    return within(times_at(levels, schedule), schedule, tuple(notes))


def _from_timesteps(told: Tensor, schedule: Schedule) -> Read:
    last = in_network_units(schedule, torch.tensor(schedule.t_min, dtype=torch.float64))
    notes = []
    if told[-1] > last + 1e-9:
        notes.append(f"a step from {told[-1]:g} to the end, {float(last):g}, is added")
        told = torch.cat([told, last.reshape(1)])
    return within(from_network_units(schedule, told), schedule, tuple(notes))


def within(
    times: Tensor, schedule: Schedule, notes: tuple[str, ...], net_times: Tensor | None = None
) -> Read:
    """Times (and network times) moved inside of the schedule's range."""
    inside = _snapped(times.clamp(schedule.t_min, schedule.t_max), schedule)
    if not bool((inside[1:] < inside[:-1]).all()):
        raise SpecError(
            f"list: got times {_show(times.tolist())}, expected them to fall within the "
            f"schedule's range, {schedule.t_max:g} to {schedule.t_min:g}; is the list for another "
            "model?"
        )
    told = inside if net_times is None else net_times.clamp(schedule.t_min, schedule.t_max)
    for name, before, after in (("times", times, inside), ("network times", net_times, told)):
        if before is not None and bool(((before - after).abs() > 1e-9)[:-1].any()):
            pairs = zip(before.tolist()[:-1], after.tolist()[:-1], strict=True)
            moved = [f"{a:.5g} to {b:.5g}" for a, b in pairs if abs(a - b) > 1e-9]
            notes = (*notes, f"{name} outside of the schedule are moved: {', '.join(moved)}")
    return Read(TimeGrid.of(inside, told).checked(schedule), notes)


def _snapped(times: Tensor, schedule: Schedule) -> Tensor:
    """Ends that are a rounding away, on the ends."""
    for end in (schedule.t_min, schedule.t_max):
        times = torch.where((times - end).abs() < 1e-9, torch.full_like(times, end), times)
    return times


def _show(numbers: Sequence[float]) -> str:
    return f"[{', '.join(f'{n:g}' for n in numbers[:8])}{', ..' if len(numbers) > 8 else ''}]"
