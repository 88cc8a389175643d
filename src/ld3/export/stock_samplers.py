"""Samplers of k-diffusion, ComfyUI, the web UIs and stable-diffusion.cpp that are solvers of ours.

Their "DPM++ 2M" is first order in the last step only if the last noise level is zero. A plan's is
not, so that it equals `dpmpp:2:full`, and differs from `dpmpp:2` in that step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ld3.export.check import Spy
from ld3.export.numbers import cannot
from ld3.plan import Plan
from ld3.schedules import Flow


@dataclass(frozen=True)
class StockSampler:
    """One sampler under the names of the tools."""

    kdiffusion: str
    comfyui: str
    a1111: str
    sdcpp: str


SAMPLERS = {
    ("euler", 1, ""): StockSampler("sample_euler", "euler", "Euler", "euler"),
    ("heun", 2, ""): StockSampler("sample_heun", "heun", "Heun", "heun"),
    ("dpmpp", 2, "full"): StockSampler("sample_dpmpp_2m", "dpmpp_2m", "DPM++ 2M", "dpm++2m"),
}


def stock_sampler(plan: Plan) -> tuple[StockSampler | None, Plan]:
    """The sampler nearest to the plan's solver, and the plan with the solver that it equals."""
    solver = plan.solver
    if (solver.name, solver.order) == ("dpmpp", 2):
        if isinstance(plan.noise_schedule, Flow):  # theirs takes sigma / alpha for the level
            return None, plan
        plan = plan.model_copy(
            update={"solver": solver.model_copy(update={"variant": "full"}), "corrections": None}
        )
    solver = plan.solver
    return SAMPLERS.get((solver.name, solver.order, solver.variant)), plan


def stock_lines(plan: Plan, tool: str, label: str) -> Iterator[str]:
    """Which sampler of a tool to use with the sigmas alone, and what is lost, in single lines."""
    found, theirs = stock_sampler(plan)
    if found is None:
        yield f"{label}: no sampler of its own is the plan's solver"
    else:
        name = getattr(found, tool)
        if theirs.solver != plan.solver:
            plain = plan.model_copy(update={"corrections": None, "net_times": plan.times})
            full = plain.model_copy(update={"solver": theirs.solver})
            apart = Spy.of(plain).loss(Spy.of(full).ours())
            yield (
                f"{label}: {name} keeps second order in the last step, the plan's solver does not; "
                f"on a test problem that is {apart:.1%} of the sample's size; --solver "
                "dpmpp:2:full learns for theirs"
            )
        else:
            yield f"{label}: {name} is the plan's solver"
    yield from cannot(plan, label)
