"""A plan's noise as diffusers names it: what stock schedulers read in a config.

A config of `LD3Scheduler` holds, besides the plans, what a stock scheduler must know of the model:

    discrete    beta_schedule, beta_start, beta_end or trained_betas; prediction_type
    flow        use_flow_sigmas, flow_shift = shift = s; prediction_type
    EDM         sigma_min, sigma_max, sigma_data; prediction_type

with s from the first time t: t = s u / (1 + (s - 1) u), u = 0.999. So `OtherScheduler.from_config`
is right. Where no stock scheduler can be, `beta_schedule` or `prediction_type` has a word that they
refuse.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch

from ld3.errors import PlanError
from ld3.plan import Plan
from ld3.predictions import Prediction
from ld3.schedules import EDM, Discrete, Flow, Schedule
from ld3.tool_units import flow_shift

PREDICTION_TYPES: dict[str, Prediction] = {
    "epsilon": "eps",
    "sample": "x0",
    "v_prediction": "v",
    "flow_prediction": "flow",
    "reverse_flow_prediction": "reverse-flow",  # no stock scheduler takes it
}
NONE = "none of diffusers"  # a beta_schedule and a prediction_type that stock schedulers refuse
NEAR = 1e-3  # how far two tables of alpha^2 may be apart
FLOWS = (
    "FlowMatchEulerDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "UniPCMultistepScheduler",
)
PRECONDITIONED = ("EDMEulerScheduler", "EDMDPMSolverMultistepScheduler")


def noise_config(
    schedule: Schedule, prediction: Prediction, sigma_data: float | None
) -> dict[str, Any]:
    """The part of a config that says which noise a network was trained with."""
    words = {kind: word for word, kind in PREDICTION_TYPES.items()}
    predicts = {"num_train_timesteps": 1000, "prediction_type": words[prediction]}
    if isinstance(schedule, Discrete):
        return {**predicts, "num_train_timesteps": schedule.steps, **_betas(schedule)}
    if isinstance(schedule, Flow):
        shift = float(f"{flow_shift(schedule):.9g}")
        return {"use_flow_sigmas": True, "flow_shift": shift, "shift": shift, **predicts}
    if isinstance(schedule, EDM):
        ends = {"sigma_min": schedule.t_min, "sigma_max": schedule.t_max, "beta_schedule": NONE}
        read = NONE if sigma_data is None else "epsilon"
        return {**ends, **predicts, "prediction_type": read}
    return {"beta_schedule": NONE, **predicts}


def _betas(schedule: Discrete) -> dict[str, Any]:
    """By name where the table has one, else the betas; a table without its end has none."""
    logs = (0.0, *schedule.log_alphas)
    betas = [-math.expm1(2 * (b - a)) for a, b in pairwise(logs)]
    first, last = (float(f"{beta:.9g}") for beta in (betas[0], betas[-1]))
    whole = len(betas) == schedule.steps
    for name, make in (("linear", Discrete.linear), ("scaled_linear", Discrete.scaled_linear)):
        if whole and _near(make(first, last, schedule.steps), schedule):
            return {"beta_schedule": name, "beta_start": first, "beta_end": last}
    if _near(Discrete.cosine(schedule.steps, -math.inf), schedule):
        return {"beta_schedule": "squaredcos_cap_v2"}
    return {"trained_betas": betas} if whole else {"beta_schedule": NONE}


def _near(one: Discrete, other: Discrete) -> bool:
    pairs = zip(one.log_alphas, other.log_alphas, strict=False)
    return all(abs(a - b) < 1e-6 for a, b in pairs)


def stock_classes(schedule: Schedule, sigma_data: float | None, usual: Sequence[str]) -> list[str]:
    """The stock schedulers that are right for this noise; `usual` are those that take betas."""
    if isinstance(schedule, Flow):
        return list(FLOWS)
    if isinstance(schedule, EDM):
        return [] if sigma_data is None else list(PRECONDITIONED)
    return [name for name in usual if name not in PRECONDITIONED]


def check_config(config: Mapping[str, Any], plan: Plan) -> None:
    """Refuse a scheduler's config that describes another model than the plan's."""
    name = str(config.get("_class_name", "a scheduler"))
    schedule = plan.noise_schedule
    if config.get("plans"):
        other = Plan.checked(config["plans"][0], "scheduler config")
        if (other.schedule, other.model.prediction) != (plan.schedule, plan.model.prediction):
            raise _other("LD3Scheduler", f"plans for {_said(other)}", _said(plan))
        return
    tables = "beta_schedule" in config or "trained_betas" in config
    flow = bool(config.get("use_flow_sigmas")) or ("shift" in config and not tables)
    kind = "rectified flow" if flow else "discrete" if tables else "EDM"
    if kind == "EDM" and "sigma_data" not in config:
        raise _other(name, "a noise schedule that is neither betas, flow nor EDM", "one of these")
    if kind != _kind(schedule):
        raise _other(name, f"a {kind} noise schedule", _kind(schedule))
    if kind == "discrete":
        _check_table(config, name, cast(Discrete, schedule))
    elif kind == "EDM":
        ends = (config.get("sigma_min", 0.002), config.get("sigma_max", 80.0))
        if ends != (schedule.t_min, schedule.t_max):
            raise _other(
                name, f"sigma {ends[0]} to {ends[1]}", f"{schedule.t_min} to {schedule.t_max}"
            )
        return  # its prediction_type says how diffusers preconditions, not what we read
    told = config.get("prediction_type", "flow_prediction" if flow else "epsilon")
    read = PREDICTION_TYPES.get(str(told))
    if read != plan.model.prediction and not (flow and plan.model.prediction.endswith("flow")):
        raise _other(name, f"prediction_type {told!r}", f"{plan.model.prediction!r}")


def check_like(like: Any, plans: Sequence[Plan]) -> None:
    """Plans against the pipeline, or scheduler, that they are for."""
    if like is None:
        return
    scheduler = getattr(like, "scheduler", like)
    config = getattr(scheduler, "config", None)
    if config is None:
        raise PlanError(
            f"LD3Scheduler: like: got {type(like).__name__}, expected a pipeline or its scheduler"
        )
    for plan in plans:
        check_config({"_class_name": type(scheduler).__name__, **config}, plan)


def check_alike(plans: Sequence[Plan]) -> None:
    """Several plans in one scheduler are of one model."""
    first = plans[0]
    for plan in plans[1:]:
        for what, got, wanted in (
            ("noise schedule", plan.schedule, first.schedule),
            ("prediction", plan.model.prediction, first.model.prediction),
            ("model", plan.model.digest, first.model.digest),
        ):
            if got != wanted:
                raise PlanError(
                    f"LD3Scheduler: got plans with different {what}s ({wanted}, {got}), expected "
                    "plans of one model"
                )
    counts = [plan.nfe for plan in plans]
    if len(set(counts)) < len(counts):
        raise PlanError(f"LD3Scheduler: got plans of {counts} evaluations, expected one of each")


def _check_table(config: Mapping[str, Any], name: str, schedule: Discrete) -> None:
    """alphas_cumprod as a stock scheduler makes them, against the plan's."""
    from diffusers import CogVideoXDDIMScheduler, DDIMScheduler

    make = cast(Any, CogVideoXDDIMScheduler if "snr_shift_scale" in config else DDIMScheduler)
    keys = ["num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas"]
    keys += ["rescale_betas_zero_snr", "snr_shift_scale"]
    try:
        theirs = make(**{key: config[key] for key in keys if key in config}).alphas_cumprod
    except NotImplementedError:
        raise _other(name, f"beta_schedule {config.get('beta_schedule')!r}", "betas") from None
    ours = torch.tensor(schedule.log_alphas, dtype=torch.float64, device="cpu").mul(2).exp()
    if len(theirs) != schedule.steps:
        raise _other(name, f"{len(theirs)} trained steps", str(schedule.steps))
    apart = (theirs[: len(ours)].double() - ours).abs() / ours.clamp(min=NEAR)
    if apart.max().item() > NEAR:
        rescaled = ", rescale_betas_zero_snr" if config.get("rescale_betas_zero_snr") else ""
        if config.get("snr_shift_scale", 1.0) != 1.0:
            rescaled += f", snr_shift_scale {config['snr_shift_scale']}"
        raise _other(
            name,
            f"betas {config.get('beta_start')} to {config.get('beta_end')} "
            f"({config.get('beta_schedule')}{rescaled})",
            "those of the plan",
        )


def _kind(schedule: Schedule) -> str:
    names = {Flow: "rectified flow", EDM: "EDM", Discrete: "discrete"}
    return names.get(type(schedule), type(schedule).__name__)


def _said(plan: Plan) -> str:
    name = plan.schedule.get("name", _kind(plan.noise_schedule))
    return f"{name!s} noise and {plan.model.prediction!r}"


def _other(name: str, got: str, wanted: str) -> PlanError:
    return PlanError(
        f"LD3Scheduler: got {name} with {got}, expected {wanted}: the plan was learned for another "
        "model; learn one for this model"
    )
