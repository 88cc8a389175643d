"""A plan as a diffusers scheduler: any solver, learned coefficients and network times included.

    pipe.scheduler = LD3Scheduler.from_plan(Plan.load("plan.json"))
    image = pipe(num_inference_steps=plan.nfe).images[0]

The scheduler runs the plan's compiled table, step by step. With m_j = a_j X_j + b_j o_j what the
network's output o_j says of x0 or, for methods that work on the noise, of the noise,

    X_{n+1} = r_n X_n + sum_{j <= n} w_nj m_j

so that one short `step` serves all methods, and a pipeline may change X_n between steps, to inpaint
or in a callback: the step goes on from the state it is given. The network gets the plan's
network times, fractions included, in the units diffusers uses: the step index for discrete
schedules, 1000 t for flows, log(sigma)/4 for EDM networks that diffusers preconditions.

A plan with guidance needs a hook on the network as well, see :mod:`ld3.diffusers.guidance`.
"""

import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.schedulers.scheduling_utils import (
    KarrasDiffusionSchedulers,
    SchedulerMixin,
    SchedulerOutput,
)
from torch import Tensor

from ld3.diffusers.guidance import GuidanceHook, Mix, guide_by_plan
from ld3.diffusers.noise import check_alike, check_config, check_like, noise_config, stock_classes
from ld3.diffusers.timesteps import distinct, heard, network_side, told
from ld3.errors import PlanError
from ld3.interpolate import guess
from ld3.plan import Plan
from ld3.schedules import EDM, Flow
from ld3.tool_units import noise_level

__all__ = ["GuidanceHook", "LD3Scheduler", "guide_by_plan"]


class LD3Scheduler(SchedulerMixin, ConfigMixin):  # type: ignore[misc]
    """Samples by plans. `plans` holds the contents of plan.json files, one an NFE or a family.

    `sigma_data` is for EDM networks in diffusers' way: these are given c_in x and log(sigma)/4, and
    their output becomes c_skip x + c_out out.
    """

    order = 1
    _compatibles = [  # noqa: RUF012  # diffusers reads it from the class
        *(kind.name for kind in KarrasDiffusionSchedulers),
        "EDMDPMSolverMultistepScheduler",
        "FlowMatchEulerDiscreteScheduler",
    ]

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        plans: list[dict[str, Any]] | None = None,
        num_train_timesteps: int = 1000,
        sigma_data: float | None = None,
    ) -> None:
        if not plans:
            raise PlanError("LD3Scheduler: got no plan, expected one; use LD3Scheduler.from_plan")
        self._plans = [Plan.checked(content, "scheduler config") for content in plans]
        check_alike(self._plans)
        self._schedule = self._plans[0].noise_schedule
        self._prediction = self._plans[0].model.prediction
        if sigma_data is not None and not isinstance(self._schedule, EDM):
            raise PlanError(
                "LD3Scheduler: got sigma_data for a plan whose noise schedule is not EDM, expected "
                "none"
            )
        self.init_noise_sigma = self._schedule.prior_std
        noise = noise_config(self._schedule, self._prediction, sigma_data)
        if "_use_default_values" in self.config:  # what a stock scheduler would not read
            defaults = [key for key in self.config["_use_default_values"] if key not in noise]
            noise["_use_default_values"] = defaults
        self.register_to_config(**noise)  # type: ignore[no-untyped-call]
        self.set_timesteps(self._plans[0].nfe)

    @classmethod
    def from_plan(
        cls, *plans: Plan, sigma_data: float | None = None, like: Any = None
    ) -> "LD3Scheduler":
        """For one or several plans of a model; their numbers travel in scheduler_config.json.

        `like` is the pipeline, or its scheduler, that it is for: plans of another noise schedule or
        prediction are refused.
        """
        contents = [plan.model_dump(mode="json") for plan in plans]
        check_like(like, plans)
        return cast(LD3Scheduler, cls(plans=contents, sigma_data=sigma_data))

    @classmethod
    def from_config(
        cls,
        config: Any = None,
        return_unused_kwargs: bool = False,
        plans: Sequence[Plan | dict[str, Any]] | None = None,
        like: Any = None,
        **kwargs: Any,  # diffusers' own signature
    ) -> Any:
        """From its own config, or in place of a stock scheduler: `from_config(stock.config,
        plans=[plan])`. There the noise schedule and what the network predicts must be the plan's.
        With its own config `like` is the pipeline, or its scheduler, for which that is checked;
        `from_pretrained(..., like=pipe)` passes it on.
        """
        config = {} if config is None else config
        if plans is None and not config.get("plans"):
            raise PlanError(
                "LD3Scheduler: got the config of another scheduler and no plan, expected "
                "LD3Scheduler.from_config(pipe.scheduler.config, plans=[plan])"
            )
        if plans is not None:
            made = [
                plan if isinstance(plan, Plan) else Plan.checked(plan, "plans") for plan in plans
            ]
            for plan in made if config else ():
                check_config(config, plan)
            kwargs["plans"] = [plan.model_dump(mode="json") for plan in made]
        if like is not None:
            contents = kwargs.get("plans") or config["plans"]
            check_like(like, [Plan.checked(content, "scheduler config") for content in contents])
        # what another scheduler left at its own default must not fall back to ours
        whole = {key: value for key, value in config.items() if key != "_use_default_values"}
        return super().from_config(whole, return_unused_kwargs=return_unused_kwargs, **kwargs)

    def __len__(self) -> int:
        return int(self.config["num_train_timesteps"])

    @property
    def compatibles(self) -> list[Any]:
        """The stock schedulers that can take its place by `from_config`."""
        import diffusers

        usual = [kind.name for kind in KarrasDiffusionSchedulers]
        names = stock_classes(self._schedule, self.config["sigma_data"], usual)
        kinds = [getattr(diffusers, name) for name in names if hasattr(diffusers, name)]
        return [kind for kind in kinds if issubclass(kind, SchedulerMixin)]  # no missing packages

    @property
    def step_index(self) -> int | None:
        """The number of the next step; None before the first, if no pipeline has set it."""
        return None if self._begin is None else self._begin + len(self._answers)

    @property
    def begin_index(self) -> int | None:
        return self._begin

    def index_for_timestep(self, timestep: float | Tensor) -> int:
        """The step that belongs to a timestep. All timesteps differ, so there is one."""
        asked = torch.as_tensor(timestep).double().cpu().reshape(-1)[0]
        return int((self.timesteps.double().cpu() - asked).abs().argmin())

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: torch.device | str | None = None,
        timesteps: Sequence[float] | Tensor | None = None,
        sigmas: Sequence[float] | Tensor | None = None,
        mu: float | None = None,
    ) -> None:
        """Choose the plan for this number of evaluations; lists only say how many there are."""
        given = sigmas if sigmas is not None else timesteps
        if num_inference_steps is None and given is None:
            raise PlanError("set_timesteps: got no number of steps, expected num_inference_steps")
        count = len(given) if num_inference_steps is None else num_inference_steps  # type: ignore[arg-type]
        plan = self._plan(count)
        run = plan.without_guidance().increments()
        self._ratios, self._weights, self._form = run.ratios, run.weights, run.form
        data = self.config["sigma_data"]
        self._scales, self._reads = network_side(run, self._schedule, self._prediction, data)
        self.mix, self.guidance, self.mixed = self._mix(plan), plan.model.guidance, -1
        self._times = plan.state_times
        self.num_inference_steps = count
        self.timesteps = distinct(told(self._schedule, run.net_times, data).float()).to(device)
        self.sigmas = noise_level(self._schedule, self._times).float().to(device)
        self._begin: int | None = None
        self._answers: list[Tensor] = []

    def set_begin_index(self, begin_index: int = 0) -> None:
        """Start in the middle, for image to image."""
        if not 0 <= begin_index < len(self._ratios):
            raise PlanError(
                f"set_begin_index: got {begin_index}, expected 0 to {len(self._ratios) - 1}"
            )
        self._begin = begin_index
        self._answers = []

    def _next(self, timestep: Any) -> int:
        """The number of the next step. The first one is found by its timestep: many pipelines
        slice `timesteps` to start in the middle and do not call `set_begin_index`."""
        if self._begin is None:
            self._begin = self.index_for_timestep(timestep)
        return self._begin + len(self._answers)

    def scale_model_input(self, sample: Tensor, timestep: float | Tensor) -> Tensor:
        """The network is given the state as it is, but for EDM networks with `sigma_data`."""
        n = self._next(timestep)
        if self._scales is None:
            return sample
        return sample * self._scales[min(n, len(self._scales) - 1)]

    def step(
        self,
        model_output: Tensor,
        timestep: float | Tensor,
        sample: Tensor,
        generator: object = None,
        return_dict: bool = True,
        per_token_timesteps: Tensor | None = None,
    ) -> SchedulerOutput | tuple[Tensor]:
        """The next state, computed in float32 or better. The first step is found by its timestep,
        the others are counted; `generator` is there for the pipelines.

        `per_token_timesteps` (B, T) are for LTX, whose tokens of a given image have times of their
        own and are put back by the pipeline. It gives the velocity with its sign changed.
        """
        n = self._next(timestep)
        if n == len(self._ratios):
            raise PlanError(
                f"step: got a call after the last of {n} steps, expected set_timesteps before a "
                "new run"
            )
        if self.mix is not None and self.mixed != n:
            raise PlanError(
                "step: got a plan with guidance in a pipeline without its hook, expected "
                "ld3.diffusers.guide_by_plan(pipe) first, or plan.without_guidance()"
            )
        dtype = torch.promote_types(sample.dtype, torch.float32)
        x = sample.to(dtype)
        out = model_output[:, : sample.shape[1]].to(dtype)  # a learned variance is left out
        if per_token_timesteps is None:
            on_x, on_out = self._reads[n]
            self._answers.append(on_x * x + on_out * out)
        else:
            own = self._per_token(per_token_timesteps).to(x)  # (B, T, 1)
            self._answers.append(x + own * out if self._form == "x0" else -out)
        missing = n - len(self._answers) + 2  # answers up to the first one that was asked
        weights = (sum(self._weights[n][:missing]), *self._weights[n][missing:])
        state = self._ratios[n] * x
        for weight, answer in zip(weights, self._answers, strict=True):
            state = state + weight * answer
        state = state.to(sample.dtype)
        return SchedulerOutput(prev_sample=state) if return_dict else (state,)

    def add_noise(self, original_samples: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """alpha x + sigma noise at these timesteps: what image to image starts from.

        At a timestep of the plan the state belongs to the solver's time, not to the network's.
        """
        asked = timesteps.double().cpu().reshape(-1)
        own = self.timesteps.double().cpu()
        near = (asked[:, None] - own).abs().min(1)
        same = near.values <= 1e-6 * (1 + asked.abs())  # float32 apart
        t = heard(self._schedule, asked, self.config["sigma_data"])
        t = torch.where(same, self._times[near.indices], t)
        shape = (-1, *[1] * (original_samples.ndim - 1))
        alpha, sigma = (
            value.exp().view(shape).to(original_samples.device, original_samples.dtype)
            for value in (self._schedule.log_alpha(t), self._schedule.log_sigma(t))
        )
        return alpha * original_samples + sigma * noise

    def scale_noise(self, sample: Tensor, timestep: Tensor, noise: Tensor) -> Tensor:
        """The name flow pipelines use."""
        return self.add_noise(sample, noise, timestep)

    def _plan(self, count: int) -> Plan:
        """The plan with this number of evaluations: learned, from a family, or a guess."""
        for plan in self._plans:
            if count == plan.nfe or any(member.nfe == count for member in plan.members):
                return plan.at(count)
        families = [plan for plan in self._plans if plan.family is not None]
        if families and count in families[0].counts:
            return families[0].at(count)
        learned = [(plan, nfe) for plan in self._plans for nfe in plan.counts]
        if families:
            how = "taken from the family outside of its range"
            other = families[0].at(count)
        else:
            source, nfe = min(learned, key=lambda pair: (abs(pair[1] - count), -pair[1]))
            other = guess(source.at(nfe), count)
            how = f"guessed from the plan of {nfe}, without its corrections"
        known = ", ".join(str(nfe) for _, nfe in learned)
        warnings.warn(
            f"LD3Scheduler: {count} evaluations were not learned (learned: {known}); the times "
            f"are {how}. Expect less; learn a family with --nfe 4-10 for all",
            stacklevel=3,
        )
        return other

    def _mix(self, plan: Plan) -> Mix | None:
        """Guidance of a plan, for the outputs of the network."""
        if plan.guidance is None:
            return None
        x0 = plan.without_guidance().table_for(self._schedule, "x0")
        run, data = x0.increments("x0", self._schedule), self.config["sigma_data"]
        _, reads = network_side(run, self._schedule, self._prediction, data)
        return Mix(plan.guidance.numbers(), tuple(on_out for _, on_out in reads))

    def _per_token(self, timesteps: Tensor) -> Tensor:
        """Times (B, T, 1) of the tokens."""
        if not isinstance(self._schedule, Flow):
            raise PlanError(
                "step: got per_token_timesteps for a plan that is no flow, expected none"
            )
        return heard(self._schedule, timesteps)[..., None]
