"""diffusers: the folder of an `LD3Scheduler`, and lists for stock schedulers where these can do.

`scheduler/scheduler_config.json` runs the plan as it is. `stock.json` says which stock scheduler
comes nearest, how it is to be set up, and how far its sample then is from the plan's.
"""

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ld3.errors import ExportError, import_extra
from ld3.export.check import Spy, quiet
from ld3.export.numbers import fixed, level, solver_name
from ld3.export.target import Exported, Wish
from ld3.plan import Plan
from ld3.schedules import Discrete, Flow, in_network_units
from ld3.store import write_json

TYPES = {"eps": "epsilon", "x0": "sample", "v": "v_prediction", "flow": "flow_prediction"}


@dataclass(frozen=True)
class Stock:
    """A stock scheduler that comes near a plan."""

    scheduler: str  # its class
    config: dict[str, Any]  # to be given to `from_config`
    argument: str  # of the pipeline and of set_timesteps: sigmas or timesteps
    numbers: list[float]


def write(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """`scheduler/` with all plans, and `stock.json`."""
    kind = import_extra("ld3.diffusers", "export: expected diffusers").LD3Scheduler
    kind.from_plan(*plans).save_pretrained(out / "scheduler")
    loaded = kind.from_pretrained(out / "scheduler")
    notes = [f"diffusers {version()}: scheduler/ runs the plan as it is, checked"]
    entries: dict[str, Any] = {}
    for plan in plans:
        check(plan, loaded)
        near = stock(plan)
        if isinstance(near, str):
            entries[str(plan.nfe)] = {"none": near}
            notes.append(f"stock schedulers, {plan.nfe} evaluations: none; {near}")
            continue
        loss = check_stock(plan, near)
        entries[str(plan.nfe)] = {**near.__dict__, "loss": loss}
        said = "; ".join(left_out(plan)) or "times rounded, last step to zero or to sigma_min"
        notes.append(
            f"stock {near.scheduler}, {plan.nfe} evaluations, {near.argument}=: on a test problem "
            f"its sample is {loss:.2%} of its size away from the plan's ({said})"
        )
    write_json(out / "stock.json", entries)
    return Exported([out / "scheduler" / "scheduler_config.json", out / "stock.json"], notes)


def lines(plan: Plan) -> Iterator[str]:
    """To paste into a script."""
    yield "from ld3 import Plan"
    yield "from ld3.diffusers import LD3Scheduler"
    yield ""
    yield 'plan = Plan.load("plan.json")'
    yield "pipe.scheduler = LD3Scheduler.from_config(pipe.scheduler.config, plans=[plan])"
    yield f"images = pipe(..., num_inference_steps={plan.nfe}).images"
    near = stock(plan)
    yield ""
    if isinstance(near, str):
        yield f"# without ld3: none; {near}"
        return
    yield "# without ld3, nearest:" + "".join(f" {line};" for line in left_out(plan)).rstrip(";")
    yield from stock_lines(near)


def stock_lines(near: Stock) -> Iterator[str]:
    """A stock scheduler with its list, to paste."""
    config = "".join(f", {key}={value!r}" for key, value in near.config.items())
    yield f"from diffusers import {near.scheduler}"
    yield f"pipe.scheduler = {near.scheduler}.from_config(pipe.scheduler.config{config})"
    numbers = ", ".join(
        fixed(near.numbers) if near.argument == "sigmas" else [str(int(n)) for n in near.numbers]
    )
    value = f"np.array([{numbers}])" if "UniPC" in near.scheduler else f"[{numbers}]"
    yield f"images = pipe(..., {near.argument}={value}).images"


def stock(plan: Plan) -> Stock | str:
    """The stock scheduler that comes nearest, or why there is none."""
    schedule, times = plan.noise_schedule, plan.grid.times
    sigmas = level(plan, times).tolist()
    predicts = {"prediction_type": TYPES.get(plan.model.prediction, plan.model.prediction)}
    if isinstance(schedule, Flow):
        if plan.solver.name == "euler":
            exact = {"shift": 1.0, "use_dynamic_shifting": False, "shift_terminal": None}
            return Stock("FlowMatchEulerDiscreteScheduler", exact, "sigmas", sigmas[:-1])
        if plan.solver.name == "unipc":
            config = {
                "use_flow_sigmas": True,
                "flow_shift": 1.0,
                "solver_order": plan.solver.order,
                "solver_type": "bh2",  # bh1 gives NaN in the last step, which goes to zero
                **predicts,
            }
            return Stock("UniPCMultistepScheduler", config, "sigmas", sigmas[:-1])
        return f"no scheduler of diffusers takes the times of a flow for {solver_name(plan)}"
    if not isinstance(schedule, Discrete):
        return f"diffusers takes no list of times for {type(schedule).__name__} schedules"
    if plan.solver.name == "euler":
        plain = {"use_karras_sigmas": False, "timestep_spacing": "leading", **predicts}
        return Stock("EulerDiscreteScheduler", plain, "sigmas", sigmas)
    if plan.solver.name == "dpmpp":
        config = {
            "algorithm_type": "dpmsolver++",
            "solver_order": plan.solver.order,
            "final_sigmas_type": "sigma_min",
            "lower_order_final": plan.solver.variant != "full",
            "use_karras_sigmas": False,
            **predicts,
        }
        rounded = in_network_units(schedule, times[:-1]).round().long().tolist()
        if len(set(rounded)) < len(rounded):
            return f"rounded to whole steps the times {rounded} repeat"
        return Stock("DPMSolverMultistepScheduler", config, "timesteps", rounded)
    return f"no scheduler of diffusers takes a list of times for {solver_name(plan)}"


def left_out(plan: Plan) -> Iterator[str]:
    """What a list of times cannot hold."""
    if plan.corrections is not None:
        yield "without the learned coefficients"
    if plan.times[:-1] != plan.net_times[:-1]:
        yield "without the network times"
    if plan.solver.variant == "bh1":
        yield "with bh2 in place of bh1, which stock UniPC cannot end at zero"


def check(plan: Plan, scheduler: Any) -> None:
    """The loaded scheduler in the loop of a pipeline."""
    spy = Spy.of(plan)
    scheduler.set_timesteps(plan.nfe)
    spy.check(
        spy.sample(scheduler),
        f"diffusers {version()}",
        "this version's scheduler classes work in another way",
    )


def check_stock(plan: Plan, near: Stock) -> float:
    """Run the stock scheduler: it must use the numbers as given. How far it is from the plan."""
    import diffusers

    spy, schedule = Spy.of(plan), plan.noise_schedule
    config = dict(near.config)
    if isinstance(schedule, Discrete):
        squares = torch.tensor(schedule.log_alphas, dtype=torch.float64).mul(2).exp()
        before = torch.cat([torch.ones(1, dtype=torch.float64), squares[:-1]])
        config |= {"trained_betas": (1 - squares / before).tolist(), "steps_offset": 1}
        config["num_train_timesteps"] = len(schedule.log_alphas)
    with quiet():
        scheduler = getattr(diffusers, near.scheduler)(**config)
        numbers: Any = near.numbers
        if "UniPC" in near.scheduler:
            numbers = torch.tensor(numbers, dtype=torch.float64).numpy()
        scheduler.set_timesteps(**{near.argument: numbers})
        x = spy.sample(scheduler)
    told = torch.tensor(spy.told, dtype=torch.float64)
    got, wanted = (in_network_units(schedule, t).tolist() for t in (told, plan.grid.times[:-1]))
    if len(got) != len(wanted) or any(abs(a - b) > 1.01 for a, b in zip(got, wanted, strict=True)):
        shown = ", ".join(f"{t:.1f}" for t in got), ", ".join(f"{t:.1f}" for t in wanted)
        raise ExportError(
            f"diffusers {version()}: {near.scheduler} gave the network [{shown[0]}], expected "
            f"[{shown[1]}]: this version changes the {near.argument} that it is given; use "
            "LD3Scheduler"
        )
    return spy.loss(x)


def version() -> str:
    return importlib.metadata.version("diffusers")
