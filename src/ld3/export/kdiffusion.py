"""k-diffusion and what is built on it: one Python file with sigmas, solver and denoiser wrapper."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ld3.export.check import Spy, load_file
from ld3.export.numbers import fixed, level, members, record, solver_name
from ld3.export.source import python_file
from ld3.export.stock_samplers import stock_lines, stock_sampler
from ld3.export.target import Exported, Wish
from ld3.plan import Plan
from ld3.store import write_bytes

FILE = "ld3_kdiffusion.py"


def write(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """`ld3_kdiffusion.py`, to be imported beside k_diffusion."""
    records = [record(plan) for plan in plans]
    path = out / FILE
    write_bytes(path, python_file(["kdiffusion_module"], {"PLANS": records}))
    for plan in plans:
        check(plan, path)
    notes = [
        f"k-diffusion: {FILE} runs the plan as it is; the sample is x0-scaled (x, not x/alpha)"
    ]
    return Exported([path], [*notes, *stock_lines(plans[0], "kdiffusion", "k-diffusion")])


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
    found, _ = stock_sampler(plan)
    if found is not None:
        yield f"sample = k_diffusion.sampling.{found.kdiffusion}(denoiser, x, sigmas)"
    yield from (f"# {line}" for line in stock_lines(plan, "kdiffusion", "k-diffusion"))
    yield "# `ld3 export --to kdiffusion` makes a file that runs the plan as it is"
