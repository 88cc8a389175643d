"""Plain numbers: one a line for people and small programs, and JSON with everything.

`sigmas-5.txt` has the noise levels of 5 steps, `timesteps-5.txt` the network time of each
evaluation, `plan-5.json` both and the table that `files/ld3_sampler.py` runs.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from ld3.export.check import Spy
from ld3.export.files import ld3_sampler
from ld3.export.numbers import decoupled, fixed, level, record, solver_name
from ld3.export.target import Exported, Wish
from ld3.plan import Plan
from ld3.store import read_json, write_bytes, write_json


def write(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """One set of files for each number of evaluations."""
    files = []
    for plan in plans:
        content = record(plan)
        steps = len(plan.times) - 1
        for name, numbers in (("sigmas", content["sigmas"]), ("timesteps", content["timesteps"])):
            path = out / f"{name}-{steps}.txt"
            write_bytes(path, ("\n".join(fixed(numbers)) + "\n").encode())
            files.append(path)
        files.append(out / f"plan-{steps}.json")
        write_json(files[-1], content)
        check(plan, files[-1])
    return Exported(files, ["text: sigmas are those of the solver; the last is not zero, and there"
                            " is one more than steps"])  # fmt: skip


def check(plan: Plan, path: Path) -> None:
    """Run the numbers that were written."""
    content, spy = read_json(path), Spy.of(plan)
    sigmas = content["sigmas"]
    run: Callable[..., Tensor] = ld3_sampler.sample_ld3
    sample = run([content], spy.denoiser, spy.noise * sigmas[0], sigmas)
    spy.check(sample, path.name, "numbers were lost in writing")


def lines(plan: Plan) -> Iterator[str]:
    """To paste anywhere."""
    yield f"# {solver_name(plan)}, {plan.nfe} evaluations"
    yield f"sigmas     {', '.join(fixed(level(plan, plan.grid.times)))}"
    yield f"timesteps  {', '.join(fixed(record(plan)['timesteps']))}"
    if decoupled(plan) or plan.corrections is not None:
        yield json.dumps(
            {key: record(plan)[key] for key in ("told", "on_state", "on_x0", "ratios", "weights")}
        )
