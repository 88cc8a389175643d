"""A stock scheduler of diffusers with N steps, as a grid and a solver.

Noise levels and timesteps are those that the scheduler sets, so that all of its options count:
Karras or beta grids, spacing, shift. Its class says the solver. The plan is then run beside the
scheduler on a test problem, because orders of last steps and ends at zero differ.
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ld3.diffusers.noise import noise_config, stock_classes
from ld3.errors import SpecError, import_extra, one_line, unknown
from ld3.export.check import Spy, quiet
from ld3.importing.lists import Read, times_at, within
from ld3.plan import Plan
from ld3.predictions import Prediction
from ld3.schedules import Discrete, Flow, Schedule
from ld3.solvers import Solver, make_solver
from ld3.tool_units import flow_shift, from_network_units

SOLVERS = {  # class: our solver
    "DDIMScheduler": "euler",
    "EulerDiscreteScheduler": "euler",
    "FlowMatchEulerDiscreteScheduler": "euler",
    "DPMSolverMultistepScheduler": "dpmpp",
    "UniPCMultistepScheduler": "unipc",
    "DEISMultistepScheduler": "deis",
}
FLOW_ONLY = ("FlowMatchEulerDiscreteScheduler",)


@dataclass(frozen=True)
class Stock:
    """What was read from a scheduler."""

    scheduler: Any
    steps: int
    read: Read
    solver: Solver

    def difference(self, plan: Plan) -> str:
        """How far the plan is from the scheduler itself, on a test problem."""
        spy = Spy.of(plan)
        _set(self.scheduler, self.steps, plan.noise_schedule)
        apart = spy.loss(spy.sample(self.scheduler, inside=True))
        return (
            f"on a test problem the plan's sample is {apart:.2%} of its size away from "
            f"{type(self.scheduler).__name__}'s own"
        )


def from_scheduler(name: str, steps: int, schedule: Schedule, prediction: Prediction) -> Stock:
    """A class by its name, with the noise of the model, or the folder or scheduler_config.json of a
    scheduler."""
    diffusers = import_extra("diffusers", "import: expected diffusers")
    own: Mapping[str, Any] = {}
    path = Path(name).expanduser()
    if path.exists():
        own = _config(diffusers, path)
        name = str(own.get("_class_name"))
    if name not in SOLVERS:
        raise unknown("scheduler", name, SOLVERS)
    if not isinstance(schedule, Discrete | Flow):
        raise SpecError(
            f"{name}: got a model with {type(schedule).__name__} noise, expected betas or a flow"
        )
    right = stock_classes(schedule, None, [key for key in SOLVERS if key not in FLOW_ONLY])
    if name not in right:
        needs = "a rectified flow" if isinstance(schedule, Flow) else "betas"
        raise SpecError(
            f"{name}: got a model with {needs}, which this scheduler cannot step; expected one of "
            f"{', '.join(right)}"
        )
    kind = getattr(diffusers, name)
    takes = inspect.signature(kind.__init__).parameters  # diffusers logs a line about any other
    noise = noise_config(schedule, prediction, None)
    scheduler = kind.from_config({key: noise[key] for key in noise if key in takes} | dict(own))
    try:
        _set(scheduler, steps, schedule)
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise SpecError(f"{name}: cannot make {steps} steps ({one_line(str(error))})") from None
    order = variant = None
    if SOLVERS[name] != "euler":
        order = int(scheduler.config["solver_order"])
    if name == "UniPCMultistepScheduler":
        variant = str(scheduler.config["solver_type"])
    read = _read(scheduler, schedule)
    return Stock(scheduler, steps, read, make_solver(SOLVERS[name], order, variant))


def _set(scheduler: Any, steps: int, schedule: Schedule) -> None:
    """As pipelines do: with a shift that depends on the length, these give the sigmas, too."""
    with quiet():
        if scheduler.config.get("use_dynamic_shifting") and isinstance(schedule, Flow):
            even = [1 - n / steps for n in range(steps)]
            scheduler.set_timesteps(sigmas=even, mu=math.log(flow_shift(schedule)))
        else:
            scheduler.set_timesteps(steps)


def _read(scheduler: Any, schedule: Schedule) -> Read:
    """Times from the noise levels, network times from the timesteps."""
    end = torch.tensor([schedule.t_min], dtype=torch.float64, device="cpu")
    steps = torch.as_tensor(scheduler.timesteps).double()
    told = torch.cat([from_network_units(schedule, steps), end])
    times = told
    if hasattr(scheduler, "sigmas"):  # DDIM has none: its levels are those of its timesteps
        times = times_at(torch.as_tensor(scheduler.sigmas).double(), schedule)
    notes: tuple[str, ...] = ()
    if len(times) > 2 and times[-2] <= schedule.t_min * (1 + 1e-3):
        notes = ("the scheduler's last step begins at the end of the schedule and is left out",)
        times, told = times[:-1], told[:-1]
    return within(times, schedule, notes, told)


def _config(diffusers: Any, path: Path) -> Mapping[str, Any]:
    folder = path / "scheduler" if (path / "scheduler").is_dir() else path
    try:
        found = diffusers.DDIMScheduler.load_config(str(folder))
    except (OSError, ValueError):
        raise SpecError(
            f"{path}: got no scheduler_config.json of diffusers, expected one"
        ) from None
    return {key: value for key, value in found.items() if value is not None}
