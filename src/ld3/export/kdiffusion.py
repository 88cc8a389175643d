"""k-diffusion and what is built on it: one Python file with sigmas, solver and denoiser wrapper."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ld3.export.check import Spy, load_file
from ld3.export.numbers import (
    cannot,
    fixed,
    level,
    members,
    record,
    solver_name,
    start_from_sigma,
)
from ld3.export.source import python_file
from ld3.export.target import Exported, Wish
from ld3.plan import Plan
from ld3.store import write_bytes

FILE = "ld3_kdiffusion.py"


def write(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """`ld3_kdiffusion.py`, to be imported beside k_diffusion."""
    records = [record(plan, start=start_from_sigma(plan)) for plan in plans]
    path = out / FILE
    write_bytes(path, python_file("kdiffusion_module", {"PLANS": records}))
    for plan in plans:
        check(plan, path)
    notes = [
        f"k-diffusion: {FILE} runs the plan as it is; the sample is x0-scaled (x, not x/alpha)"
    ]
    for plan in plans[:1]:
        notes += cannot(plan, "k-diffusion's own samplers")
    return Exported([path], notes)


def check(plan: Plan, path: Path) -> None:
    """Sample as a user of k-diffusion does: unit noise times the first sigma."""
    module, spy = load_file(path, "ld3_exported_kdiffusion"), Spy.of(plan)
    sigmas = module.sigmas(len(plan.times) - 1).double()
    sample = module.sample(spy.denoiser, spy.noise * sigmas[0], sigmas)
    spy.check(sample, f"{path.name} on torch {torch.__version__}", "its numbers are not the plan's")


def lines(plan: Plan) -> Iterator[str]:
    numbers = ", ".join(fixed(level(members([plan])[0].at(plan.nfe), plan.grid.times)))
    yield f"sigmas = torch.tensor([{numbers}])  # {plan.nfe} evaluations of {solver_name(plan)}"
    yield "x = torch.randn(shape) * sigmas[0]"
    stock = {"euler-1": "sample_euler", "dpmpp-2": "sample_dpmpp_2m", "heun-2": "sample_heun"}
    name = stock.get(solver_name(plan))
    if name is not None:
        yield f"sample = k_diffusion.sampling.{name}(denoiser, x, sigmas)"
    yield from (
        f"# {line}; `ld3 export --to kdiffusion` can" for line in cannot(plan, "k-diffusion")
    )
