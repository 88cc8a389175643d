"""Plans with all that a plan can have, made by hand: no learning, no waiting."""

import math
from collections.abc import Sequence
from typing import Any

import torch

import ld3
from ld3.plan import Plan
from ld3.schedule_json import schedule_to_json


def make_plan(
    schedule: str | ld3.Schedule = "sd",
    solver: str = "dpmpp",
    order: int | None = None,
    *,
    variant: str | None = None,
    prediction: str = "eps",
    steps: int = 5,
    net_times: bool = True,
    corrections: bool = True,
    times: Sequence[float] | None = None,
    name: str = "toy",
    shape: Sequence[int] = (24,),
) -> Plan:
    """`net_times`: the network is told lam + 0.1 sin(2i + 1); `corrections`: 0.02 from the first
    answer to the second in every row that has both."""
    made = ld3.make_schedule(schedule) if isinstance(schedule, str) else schedule
    grid = ld3.make_grid("edm", made, steps) if times is None else ld3.TimeGrid.of(times)
    method = ld3.make_solver(solver, order, variant)
    told = grid.times
    if net_times:
        shift = 0.1 * torch.tensor([math.sin(2 * i + 1) for i in range(grid.steps + 1)]).double()
        shift[0] = 0
        told = made.time_at(made.lam(grid.times) + shift).clamp(made.t_min, made.t_max)
    nfe = method.nfe(grid.steps)
    rows = [[0.0] * (n + 2) for n in range(nfe)]
    for row in rows[1:]:
        row[1], row[2] = -0.02, 0.02
    content: dict[str, Any] = {
        "nfe": nfe,
        "solver": {"name": method.name, "order": method.order, "variant": method.variant},
        "times": grid.times.tolist(),
        "net_times": told.tolist(),
        "corrections": rows if corrections else None,
        "schedule": schedule_to_json(made),
        "model": {"name": name, "digest": "0", "shape": list(shape), "prediction": prediction},
    }
    return Plan.checked(content)


def with_guidance(
    plan: Plan, guided: Sequence[int], rows: Sequence[Sequence[float]], scale: float
) -> Plan:
    """The plan with both passes at the evaluations `guided`, and weights A in `rows`."""
    content = plan.model_dump(mode="json")
    content |= {"format": "ld3-plan-2", "guidance": {"guided": list(guided), "rows": list(rows)}}
    content["model"]["guidance"] = scale
    return Plan.checked(content)
