"""The noise schedule of a pipeline, read from the config of its scheduler.

A scheduler of diffusers holds three things: the noise a network was trained with, what the network
predicts, and a way of stepping. The first two are read here; the last is what `ld3` replaces, so
grids, orders, clipping and thresholds of the scheduler say nothing.

Discrete schedulers have betas for K trained steps, alpha_n^2 = prod (1 - beta). Flow schedulers
have x_t = (1 - t) x_0 + t noise whatever their shift s, which only warps the grid,

    t -> s t / (1 + (s - 1) t),

so it sets the first time: that of 1 - 0.001 before the shift. What cannot be expressed is refused
by its name.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any

from ld3.errors import ModelError, SpecError
from ld3.predictions import Prediction
from ld3.schedule_json import schedule_from_json
from ld3.schedules import Discrete, Flow, Schedule

DISCRETE = (
    "DDPMScheduler", "DDPMParallelScheduler", "DDIMScheduler", "DDIMParallelScheduler",
    "PNDMScheduler", "DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler",
    "UniPCMultistepScheduler", "DEISMultistepScheduler", "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler", "HeunDiscreteScheduler", "KDPM2DiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler", "LMSDiscreteScheduler", "DPMSolverSDEScheduler",
    "SASolverScheduler", "CogVideoXDDIMScheduler", "CogVideoXDPMScheduler",
)  # fmt: skip
FLOWS = ("FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler")
TYPES: dict[str, Prediction] = {
    "epsilon": "eps",
    "v_prediction": "v",
    "sample": "x0",
    "flow_prediction": "flow",
}
NOISIEST = -5.1  # lam below which an eps network cannot tell x0: its error is multiplied by 1/alpha
END = 1e-3  # of flows: how near the times come to 0 and, before the shift, to 1

log = logging.getLogger(__name__)


def read_noise(
    scheduler: Any, tokens: int | None = None, mu: float | None = None
) -> tuple[Schedule, Prediction]:
    """Schedule and prediction of a diffusers scheduler.

    `tokens` is the length of the sequence that a transformer sees, for shifts that depend on it;
    `mu` is the logarithm of the shift where the pipeline has its own rule.
    """
    name, config = type(scheduler).__name__, scheduler.config
    if name == "LD3Scheduler":  # its plans hold both
        plan = config["plans"][0]
        return schedule_from_json(plan["schedule"]), plan["model"]["prediction"]
    if name not in (*DISCRETE, *FLOWS):
        raise ModelError(
            f"scheduler: got {name}, expected one whose config has the noise that the network was "
            f"trained with: {', '.join((*DISCRETE, *FLOWS))}; put such a scheduler into the "
            "pipeline"
        )
    predicts = "flow_prediction" if name in FLOWS else str(config.get("prediction_type", "epsilon"))
    if predicts not in TYPES:
        raise ModelError(
            f"scheduler: got {name} with prediction_type {predicts!r}, expected one of "
            f"{', '.join(TYPES)}"
        )
    flow = name in FLOWS or bool(config.get("use_flow_sigmas"))
    if flow != (predicts == "flow_prediction"):
        raise ModelError(
            f"scheduler: got {name} with prediction_type {predicts!r} and use_flow_sigmas "
            f"{bool(config.get('use_flow_sigmas'))}, expected both for a flow or neither"
        )
    if flow:
        return _flow(name, config, tokens, mu), "flow"
    return _discrete(name, config, TYPES[predicts]), TYPES[predicts]


def _flow(name: str, config: Mapping[str, Any], tokens: int | None, mu: float | None) -> Flow:
    for word, wanted in (("invert_sigmas", False), ("num_train_timesteps", 1000)):
        if config.get(word, wanted) != wanted:
            raise ModelError(f"scheduler: got {name} with {word} {config[word]}, expected {wanted}")
    first = 1 - END
    shift = _shift(name, config, tokens, mu)
    return Flow(END, shift * first / (1 + (shift - 1) * first))


def _shift(name: str, config: Mapping[str, Any], tokens: int | None, mu: float | None) -> float:
    if not config.get("use_dynamic_shifting"):
        return float(config.get("shift") or config.get("flow_shift") or 1.0)
    if tokens is None and mu is None:
        raise ModelError(
            f"scheduler: got {name} with use_dynamic_shifting, expected a fixed shift for this "
            "pipeline: it does not say for which length"
        )
    if mu is None:
        low, high = (float(config[f"{end}_image_seq_len"]) for end in ("base", "max"))
        small, large = float(config["base_shift"]), float(config["max_shift"])
        mu = small + (large - small) * (float(tokens or 0) - low) / (high - low)
    return math.exp(mu) if config.get("time_shift_type", "exponential") == "exponential" else mu


def _discrete(name: str, config: Mapping[str, Any], prediction: Prediction) -> Discrete:
    if config.get("timestep_type", "discrete") != "discrete":
        raise ModelError(
            f"scheduler: got {name} with timestep_type {config['timestep_type']!r}, "
            "expected discrete"
        )
    steps, kind = int(config["num_train_timesteps"]), str(config.get("beta_schedule"))
    first, last = float(config["beta_start"]), float(config["beta_end"])
    try:
        if config.get("trained_betas") is not None:
            whole = Discrete.from_betas([float(beta) for beta in config["trained_betas"]])
        elif kind == "linear":
            whole = Discrete.linear(first, last, steps)
        elif kind == "scaled_linear":
            whole = Discrete.scaled_linear(first, last, steps)
        elif kind == "squaredcos_cap_v2":
            whole = Discrete.cosine(steps, -math.inf)
        else:
            raise ModelError(
                f"scheduler: got {name} with beta_schedule {kind!r}, expected linear, "
                "scaled_linear, squaredcos_cap_v2 or trained_betas"
            )
    except SpecError as error:
        raise ModelError(f"scheduler {name}: {error}") from None
    logs = list(whole.log_alphas)
    if config.get("snr_shift_scale", 1.0) != 1.0:
        logs = _snr_shift(logs, float(config["snr_shift_scale"]))
    if config.get("rescale_betas_zero_snr"):
        logs = _zero_terminal(logs)
    kept = [value for value in logs if prediction != "eps" or _lam(value) >= NOISIEST]
    if len(kept) < len(whole.log_alphas):
        log.warning(
            "scheduler: %s has steps of almost pure noise, which hold no x0; the last "
            "%d of %d are left out and sampling begins at step %d",
            name,
            len(whole.log_alphas) - len(kept),
            len(whole.log_alphas),
            len(kept) - 1,
        )
    same = kept == list(whole.log_alphas)
    return whole if same else Discrete(tuple(kept), whole.steps)


def _snr_shift(logs: list[float], scale: float) -> list[float]:
    """alpha^2 / sigma^2 divided by `scale`: the noise of CogVideoX."""
    return [a - 0.5 * math.log(scale + (1 - scale) * math.exp(2 * a)) for a in logs]


def _zero_terminal(logs: list[float]) -> list[float]:
    """alpha moved and stretched to end at zero (Lin et al. 2023, arXiv 2305.08891, algorithm 1);
    the last step, all noise, has no finite lam and is dropped."""
    alphas = [math.exp(value) for value in logs]
    first, last = alphas[0], alphas[-1]
    return [math.log((a - last) * first / (first - last)) for a in alphas[:-1]]


def _lam(log_alpha: float) -> float:
    return log_alpha - 0.5 * math.log(-math.expm1(2 * log_alpha))
