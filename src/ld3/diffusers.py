"""A plan as a diffusers scheduler: any solver, learned coefficients and network times included.

    pipe.scheduler = LD3Scheduler.from_plan(Plan.load("plan.json"))
    image = pipe(num_inference_steps=plan.nfe).images[0]

The scheduler runs the plan's compiled table. It keeps the noise x_T and the network's outputs
o_0 .. o_n of the run and gives back

    X_{n+1} = V[n+1, 0] x_T + sum_{j <= n} V[n+1, 1+j] o_j

so that one short `step` serves all methods. The network is told the plan's network times, fractions
included, in the units diffusers uses: the step index for discrete schedules, 1000 t for flows.
"""

from typing import Any

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.schedulers.scheduling_utils import SchedulerMixin, SchedulerOutput
from torch import Tensor

from ld3.errors import PlanError
from ld3.plan import Plan
from ld3.schedules import Discrete, Flow, Schedule
from ld3.table import compile_table


class LD3Scheduler(SchedulerMixin, ConfigMixin):  # type: ignore[misc]
    """Samples by plans. `plans` holds the contents of plan.json files, one an NFE or a family."""

    order = 1
    _compatibles: list[str] = []  # noqa: RUF012  # diffusers reads it from the class

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self, plans: list[dict[str, Any]] | None = None, num_train_timesteps: int = 1000
    ) -> None:
        if not plans:
            raise PlanError("LD3Scheduler: got no plan, wanted one; use LD3Scheduler.from_plan")
        self._plans = [Plan.checked(content, "scheduler config") for content in plans]
        self._schedule = self._plans[0].noise_schedule
        if any(plan.schedule != self._plans[0].schedule for plan in self._plans):
            raise PlanError("LD3Scheduler: got plans with different noise schedules, wanted one")
        self.init_noise_sigma = self._schedule.prior_std
        self.set_timesteps(self._plans[0].nfe)

    @classmethod
    def from_plan(cls, *plans: Plan) -> "LD3Scheduler":
        """For one or several plans of a model; their numbers travel in scheduler_config.json."""
        made: LD3Scheduler = cls(plans=[plan.model_dump(mode="json") for plan in plans])
        return made

    def __len__(self) -> int:
        return int(self.config["num_train_timesteps"])

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: torch.device | str | None = None,
        timesteps: list[float] | None = None,
        sigmas: list[float] | None = None,
        **_: object,
    ) -> None:
        """Choose the plan for this number of evaluations; lists only say how many there are."""
        given = sigmas if sigmas is not None else timesteps
        count = num_inference_steps if num_inference_steps is not None else len(given or ())
        plan = self._plan(count)
        solver, each = plan.make_solver(), plan.make_solver().nfe(1)
        self._whole = compile_table(solver, plan.knots(), "x0", plan.tuned.corrections)
        self._prediction = plan.model.prediction
        self._times = plan.grid.times.repeat_interleave(each)[: count + 1]
        self.num_inference_steps = count
        told = _told(self._schedule, self._whole.net_times)
        self.timesteps = told.to(device=device, dtype=torch.float32)
        self.set_begin_index(0)

    def set_begin_index(self, begin_index: int = 0) -> None:
        """Start in the middle, for image to image."""
        table = self._whole.tail(begin_index) if begin_index else self._whole
        self._rows = table.in_outputs(self._prediction, self._schedule).weights.tolist()
        self._index = 0

    def scale_model_input(self, sample: Tensor, timestep: object = None) -> Tensor:
        """The network is given the state as it is."""
        return sample

    def step(
        self,
        model_output: Tensor,
        timestep: object,
        sample: Tensor,
        generator: object = None,
        return_dict: bool = True,
        **_: object,
    ) -> SchedulerOutput | tuple[Tensor]:
        """The next state. Steps are counted, not looked up by time; the last leads to the first."""
        if self._index == 0:
            self._start = sample
            self._outputs: list[Tensor] = []
        self._outputs.append(model_output.to(sample.dtype))
        self._index += 1
        weights = self._rows[self._index]
        state = weights[0] * self._start
        for weight, output in zip(weights[1:], self._outputs, strict=False):
            state = state + weight * output
        self._index %= len(self._rows) - 1
        return SchedulerOutput(prev_sample=state) if return_dict else (state,)

    def _plan(self, count: int) -> Plan:
        for plan in self._plans:
            if count == plan.nfe or any(member.nfe == count for member in plan.members):
                return plan.at(count)
        for plan in self._plans:
            if plan.family is not None:
                return plan.at(count)
        known = ", ".join(str(plan.nfe) for plan in self._plans)
        raise PlanError(
            f"LD3Scheduler: got {count} steps, wanted {known}, for which there are plans; learn a "
            "family with --nfe 4-10 for all"
        )

    def add_noise(self, original_samples: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """alpha x + sigma noise at these timesteps: what image to image starts from.

        At a timestep of the plan the state belongs to the solver's time, not to the network's.
        """
        told = timesteps.double().cpu().reshape(-1)
        apart = (told[:, None] - self.timesteps.double().cpu()).abs()
        near = apart.min(1)
        own = self._times[near.indices]
        t = torch.where(near.values < 1e-3, own, _from_told(self._schedule, told))
        shape = (-1, *[1] * (original_samples.ndim - 1))
        alpha, sigma = (
            value.exp().view(shape).to(original_samples.device, original_samples.dtype)
            for value in (self._schedule.log_alpha(t), self._schedule.log_sigma(t))
        )
        return alpha * original_samples + sigma * noise

    def scale_noise(self, sample: Tensor, timestep: Tensor, noise: Tensor) -> Tensor:
        """The name flow pipelines use."""
        return self.add_noise(sample, noise, timestep)


def _told(schedule: Schedule, t: Tensor) -> Tensor:
    """Times in the units that diffusers' networks take."""
    if isinstance(schedule, Discrete):
        return schedule.index(t)
    return 1000 * t if isinstance(schedule, Flow) else t


def _from_told(schedule: Schedule, told: Tensor) -> Tensor:
    if isinstance(schedule, Discrete):
        return (told + 1) / schedule.steps
    return told / 1000 if isinstance(schedule, Flow) else told
