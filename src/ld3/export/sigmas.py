"""Noise levels in the forms that servers and other programs take.

diffusers-5.json   the arguments `num_inference_steps` and `sigmas` of a diffusers pipeline, which
                   servers such as cache-dit pass on; vllm-omni's requests have the same field
sglang-5.json      a config file of `sglang generate` with its backend of diffusers pipelines
sdcpp-5.txt        arguments of stable-diffusion.cpp, sdcpp-5.json the body of its server

diffusers' flow schedulers shift the list that they are given, sigma = s u / (1 + (s - 1) u), and
append a zero. So the list leaves the end out, and stands in two forms: for a scheduler with shift 1
and, as u, for one that shifts by s. sglang runs the scheduler of the model, so that its list is u.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ld3.errors import ExportError
from ld3.export.check import Spy
from ld3.export.numbers import fixed, level, solver_name
from ld3.export.stock_samplers import stock_lines, stock_sampler
from ld3.export.target import Exported, Wish
from ld3.plan import Plan
from ld3.schedules import Discrete, Flow
from ld3.store import read_json, write_bytes, write_json
from ld3.tool_units import flow_shift


def write(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """Two to four files for each number of steps."""
    files, notes = [], []
    for plan in plans:
        steps = len(plan.times) - 1
        notes += [f"{steps} steps: {line}" for line in _lost(plan)]
        if isinstance(plan.noise_schedule, Flow | Discrete):
            files.append(out / f"diffusers-{steps}.json")
            write_json(files[-1], request(plan))
            check(plan, read_json(files[-1]))
            files.append(out / f"sglang-{steps}.json")
            write_json(files[-1], sglang(plan))
        files.append(out / f"sdcpp-{steps}.txt")
        write_bytes(files[-1], (sdcpp_line(plan) + "\n").encode())
        files.append(out / f"sdcpp-{steps}.json")
        write_json(files[-1], {"sample_params": _sdcpp(plan)})
    return Exported(files, notes)


def request(plan: Plan) -> dict[str, Any]:
    """The arguments of a diffusers pipeline, and of servers that pass them on."""
    levels = level(plan, plan.grid.times).tolist()
    steps = len(levels) - 1
    if not isinstance(plan.noise_schedule, Flow):
        return {"num_inference_steps": steps, "sigmas": levels}  # Euler: the end is in the list
    shift = float(f"{flow_shift(plan.noise_schedule):.9g}")
    before = [s / (shift - (shift - 1) * s) for s in levels[:-1]]
    return {
        "num_inference_steps": steps,
        "sigmas": levels[:-1],
        "if_the_server_shifts": {"shift": shift, "sigmas": before},
    }


def sglang(plan: Plan) -> dict[str, Any]:
    """What sglang hands to the call of a diffusers pipeline, whose scheduler is the model's."""
    found = request(plan)
    given = {"sigmas": found.get("if_the_server_shifts", found)["sigmas"]}
    steps = {"num_inference_steps": found["num_inference_steps"]}
    return {"backend": "diffusers", **steps, "diffusers_kwargs": given}


def check(plan: Plan, content: dict[str, Any]) -> None:
    """Both lists through the shift: the levels of the plan."""
    wanted = level(plan, plan.grid.times)
    wanted = wanted[:-1] if isinstance(plan.noise_schedule, Flow) else wanted
    lists = [(1.0, content["sigmas"])]
    other = content.get("if_the_server_shifts")
    if other is not None:
        lists.append((other["shift"], other["sigmas"]))
    for shift, numbers in lists:
        u = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        found = shift * u / (1 + (shift - 1) * u) if other is not None else u
        if not torch.allclose(found, wanted, rtol=1e-6, atol=0):
            raise ExportError(
                f"sigmas: shift {shift:g} gives {found.tolist()}, expected the plan's"
            )


def sdcpp_line(plan: Plan) -> str:
    """Arguments of stable-diffusion.cpp."""
    words = _sdcpp(plan)
    method = f"--sampling-method {words['sample_method']} " if "sample_method" in words else ""
    listed = ",".join(fixed(words["custom_sigmas"]))
    return f'{method}--steps {words["sample_steps"]} --sigmas "{listed}"'


def lines(plan: Plan) -> Iterator[str]:
    """To paste."""
    yield f"# {solver_name(plan)}, {plan.nfe} evaluations"
    for line in _lost(plan):
        yield f"# {line}"
    if isinstance(plan.noise_schedule, Flow | Discrete):
        found = request(plan)
        yield f"# diffusers and its servers: pipe(sigmas=[{', '.join(fixed(found['sigmas']))}])"
        other = found.get("if_the_server_shifts")
        if other is not None:
            listed = ", ".join(fixed(other["sigmas"]))
            yield f"# where the scheduler shifts by {other['shift']:.6g}: sigmas=[{listed}]"
    yield f"sd-cli {sdcpp_line(plan)}"


def _sdcpp(plan: Plan) -> dict[str, Any]:
    sampler, _ = stock_sampler(plan)
    method = {} if sampler is None else {"sample_method": sampler.sdcpp}
    numbers = level(plan, plan.grid.times).tolist()
    return {**method, "sample_steps": len(numbers) - 1, "custom_sigmas": numbers}


def _lost(plan: Plan) -> Iterator[str]:
    """What a list cannot hold, and what the tools' own steps cost."""
    yield from stock_lines(plan, "sdcpp", "stable-diffusion.cpp")
    if plan.solver.name != "euler":
        euler = plan.solver.model_copy(update={"name": "euler", "order": 1, "variant": ""})
        own = {"solver": euler, "nfe": len(plan.times) - 1}
        plain = plan.model_copy(update={**own, "corrections": None, "net_times": plan.times})
        apart = Spy.of(plan).loss(Spy.of(plain).ours())
        yield (
            f"the times are for {solver_name(plan)}; a server that steps with Euler ends "
            f"{apart:.1%} of the sample's size away on a test problem"
        )
