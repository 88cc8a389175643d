"""A plan in numbers that other tools understand.

Most tools speak k-diffusion: the state is x / alpha on variance preserving schedules and x itself
on flows and for EDM, the noise level is sigma / alpha or, on flows, sigma, and the network is a
denoiser (x, level) -> x0. A run is then the table of the plan in its x0 form, step by step.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ld3.errors import PlanError
from ld3.export.check import Spy
from ld3.interpolate import guess
from ld3.plan import MAX_STEPS, Plan
from ld3.predictions import from_x0
from ld3.schedules import EDM, Discrete, Flow, ends, in_network_units
from ld3.tool_units import noise_level


def members(plans: Sequence[Plan]) -> list[Plan]:
    """One plan for each learned number of evaluations, fewest first; all of one model."""
    if not plans:
        raise PlanError("export: got no plan, expected one or more plan.json files")
    first = plans[0]
    for plan in plans[1:]:
        for what, got, wanted in (
            ("model", plan.model.digest, first.model.digest),
            ("noise schedule", plan.schedule, first.schedule),
            ("prediction", plan.model.prediction, first.model.prediction),
        ):
            if got != wanted:
                raise PlanError(
                    f"export: got plans with another {what} ({plan.model.name!r}, "
                    f"{first.model.name!r}), expected plans of one model; export them apart"
                )
    found = [plan.at(nfe) for plan in plans for nfe in plan.counts]
    counts = [plan.nfe for plan in found]
    if len(set(counts)) < len(counts):
        raise PlanError(f"export: got plans of {counts} evaluations, expected one of each number")
    return sorted(found, key=lambda plan: plan.nfe)


def level(plan: Plan, t: Tensor) -> Tensor:
    """The noise level of a tool at time t."""
    return noise_level(plan.noise_schedule, t)


def record(plan: Plan) -> dict[str, Any]:
    """The plan as `files/ld3_sampler.py` runs it."""
    schedule = plan.noise_schedule
    run = plan.without_guidance().increments()
    told = run.net_times
    kind = "flow" if isinstance(schedule, Flow) else "ve" if isinstance(schedule, EDM) else "vp"

    def alpha(t: Tensor) -> list[float]:
        return (schedule.log_alpha(t).exp() if kind == "vp" else torch.ones_like(t)).tolist()

    net = (schedule.log_alpha(told).exp(), schedule.log_sigma(told).exp())
    one, zero = torch.ones_like(told), torch.zeros_like(told)
    guidance: dict[str, Any] = {}
    if plan.guidance is not None:
        own = plan.guidance
        guidance = {"guided": own.guided, "guidance": own.rows, "scale": plan.model.guidance}
    return {
        **guidance,
        "kind": kind,
        "solver": solver_name(plan),
        "form": plan.make_solver().form,
        "nfe": plan.nfe,
        "per_step": plan.nfe_per_step,
        "sigmas": level(plan, plan.grid.times).tolist(),
        "told": level(plan, told).tolist(),
        "told_steps": level(plan, plan.grid.net_times[:-1]).tolist(),
        "timesteps": in_network_units(schedule, told).tolist(),
        "alphas": alpha(plan.grid.times),
        "told_alphas": alpha(told),
        "on_state": from_x0(run.form, zero, one, *net).tolist(),
        "on_x0": from_x0(run.form, one, zero, *net).tolist(),
        "ratios": run.ratios,
        "weights": run.weights,
        "answers": run.form,
        "prior": schedule.prior_std,
        "others": [level(plan, other.grid.times).tolist() for other in _guesses(plan)],
        "model": model_record(plan),
    }


def model_record(plan: Plan) -> dict[str, Any]:
    """What tools compare with the model they have loaded: its prediction and noise levels."""
    schedule = plan.noise_schedule
    table: dict[str, Any] = {}
    if isinstance(schedule, Discrete) and len(schedule.log_alphas) == schedule.steps:
        at = [0, schedule.steps // 4, schedule.steps // 2, schedule.steps - 1]
        trained = (torch.tensor(at, dtype=torch.float64, device="cpu") + 1) / schedule.steps
        table = {"count": schedule.steps, "at": at, "sigmas": level(plan, trained).tolist()}
    return {
        "name": clean(plan.model.name),
        "prediction": plan.model.prediction,
        "levels": level(plan, ends(schedule).flip(0)).tolist(),
        "table": table,
    }


def pack_of(plans: Sequence[Plan], name: str) -> dict[str, Any]:
    """The content of a plan file: plans of one model for several numbers of steps."""
    records = [record(plan) for plan in plans]
    return {"format": "ld3-pack-1", "name": name, "slug": slug(name), "plans": records}


def _guesses(plan: Plan) -> Iterator[Plan]:
    """For half to twice as many steps."""
    each, steps = plan.nfe_per_step, len(plan.times) - 1
    for other in range(max(1, steps // 2), min(2 * steps, MAX_STEPS // each) + 1):
        if other != steps:
            yield guess(plan, each * other)


def solver_name(plan: Plan) -> str:
    """Such as unipc-3-bh1."""
    variant = f"-{plan.solver.variant}" if plan.solver.variant else ""
    return f"{plan.solver.name}-{plan.solver.order}{variant}"


def decoupled(plan: Plan) -> bool:
    """Whether network times differ from the solver's times."""
    return bool((plan.grid.times - plan.grid.net_times)[:-1].abs().max() > 1e-9)


def fixed(numbers: Sequence[float] | Tensor) -> list[str]:
    """Plain decimals with nine digits that count: some tools misread 1e-05 as 1 and -5."""
    values = numbers.tolist() if isinstance(numbers, Tensor) else numbers
    return [_decimal(float(value)) for value in values]


def _decimal(value: float) -> str:
    if value == 0:
        return "0.0"
    zeros = max(0, -int(f"{value:e}".partition("e")[2]) - 1)  # after the point: 0.00123 has two
    digits = max(1, 9 - len(str(int(abs(value)))) if abs(value) >= 1 else zeros + 9)
    text = f"{value:.{digits}f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def clean(name: str) -> str:
    """A name that can stand in any file: plain letters, digits and spaces, at most 60."""
    kept = re.sub(r"[^A-Za-z0-9 .:+-]+", " ", name)
    return " ".join(kept.split())[:60].strip() or "plan"


def slug(name: str) -> str:
    """A name for folders and node ids: letters, digits and _."""
    return re.sub(r"[^a-z0-9]+", "_", clean(name).lower())[:40].strip("_") or "plan"


def title(plans: Sequence[Plan], name: str | None) -> str:
    """The name of the export: `name`, or the last part of the model's name and the solver."""
    if name is not None:
        return clean(name)
    last = re.split(r"[:/]", plans[0].model.name)[-1]
    return clean(f"{last} {solver_name(plans[0])}")


def cannot(plan: Plan, tool: str) -> Iterator[str]:
    """What the sigmas alone leave behind in a tool, and what that costs, in one line."""
    lost = ["learned coefficients"] if plan.corrections is not None else []
    lost += ["network times"] if decoupled(plan) else []
    if lost:
        plain = plan.model_copy(update={"corrections": None, "net_times": plan.times})
        apart = Spy.of(plan).loss(Spy.of(plain).ours())
        yield (
            f"{tool}: sigmas alone cannot hold the plan's {' and '.join(lost)}; on a test problem "
            f"the same solver without them ends {apart:.1%} of the sample's size away"
        )
