"""AUTOMATIC1111 and Forge: one script that adds a schedule type and a sampler.

The script needs nothing of ours, and Python 3.10 at least. It goes to
`extensions/ld3_<name>/scripts/`. These web UIs cannot be installed as packages: the check runs the
script against a stand-in of the four modules of theirs that it uses.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ld3.errors import ExportError
from ld3.export.check import Spy, load_file, with_modules
from ld3.export.numbers import (
    cannot,
    fixed,
    level,
    record,
    slug,
    solver_name,
    start_from_sigma,
    title,
)
from ld3.export.source import python_file
from ld3.export.target import Exported, Wish
from ld3.plan import Plan
from ld3.store import write_bytes


def write(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """`ld3_<name>/scripts/ld3_<name>.py`: a folder for `extensions`."""
    name = title(plans, wish.name)
    records = [record(plan, start=start_from_sigma(plan)) for plan in plans]
    label = f"LD3 {name}"
    path = out / f"ld3_{slug(name)}" / "scripts" / f"ld3_{slug(name)}.py"
    write_bytes(path, python_file("a1111_script", {"NAME": label, "PLANS": records}))
    for plan in plans:
        check(plan, path, label)
    notes = [
        "a1111: checked against a stand-in of its interface, not in the web UI itself",
        f"a1111: choose the sampler {label!r}: it runs the plan as it is, with schedule type "
        "Automatic and steps " + ", ".join(str(len(plan.times) - 1) for plan in plans),
    ]
    notes += cannot(plans[0], f"other samplers with the schedule type {label!r}")
    return Exported([path], notes)


def lines(plan: Plan) -> Iterator[str]:
    yield f"# {solver_name(plan)}, {plan.nfe} evaluations: for scripts that set"
    yield "# p.sampler_noise_scheduler_override"
    yield f"sigmas = torch.tensor([{', '.join(fixed(level(plan, plan.grid.times)))}])"
    yield "p.sampler_noise_scheduler_override = lambda steps: sigmas"
    yield from (f"# {line}; `ld3 export --to a1111` can" for line in cannot(plan, "A1111"))


def stand_in() -> dict[str, ModuleType]:
    """The modules of the web UI that the script touches, with what it touches of them."""
    package = ModuleType("modules")
    parts = {
        name: ModuleType(f"modules.{name}")
        for name in ("sd_samplers", "sd_samplers_common", "sd_samplers_kdiffusion", "sd_schedulers")
    }
    known = SimpleNamespace(name="automatic", label="Automatic", function=None)
    contents: dict[str, dict[str, Any]] = {
        "sd_schedulers": {
            "schedulers": [known],
            "schedulers_map": {"automatic": known, "Automatic": known},
            "Scheduler": lambda name, label, function: SimpleNamespace(
                name=name, label=label, function=function
            ),
        },
        "sd_samplers": {"all_samplers": [], "all_samplers_map": {}, "set_samplers": lambda: None},
        "sd_samplers_common": {
            "SamplerData": lambda name, constructor, aliases, options: SimpleNamespace(
                name=name, constructor=constructor, aliases=aliases, options=options
            )
        },
        "sd_samplers_kdiffusion": {
            "KDiffusionSampler": lambda function, model: SimpleNamespace(func=function, model=model)
        },
    }
    for name, part in parts.items():
        part.__dict__.update(contents[name])
        setattr(package, name, part)
    return {"modules": package, **{f"modules.{name}": part for name, part in parts.items()}}


def check(plan: Plan, path: Path, label: str) -> None:
    """Register the script, then sample as the web UI does with what it registered."""
    modules = stand_in()
    with with_modules(modules):
        load_file(path, "ld3_exported_a1111")
        load_file(path, "ld3_exported_a1111")  # the web UI may load scripts again
    schedules = [s for s in modules["modules.sd_schedulers"].schedulers if s.label == label]
    samplers = [s for s in modules["modules.sd_samplers"].all_samplers if s.name == label]
    if len(schedules) != 1 or len(samplers) != 1:
        raise ExportError(f"{path.name}: was not registered once as {label!r}")
    spy, steps = Spy.of(plan), len(plan.times) - 1
    sigmas = schedules[0].function(n=steps, sigma_min=0.03, sigma_max=14.6, device="cpu").double()
    if len(sigmas) != steps + 1:
        raise ExportError(f"{path.name}: got {len(sigmas)} sigmas for {steps} steps")
    sampler = samplers[0].constructor(None)
    sample = sampler.func(spy.denoiser, spy.noise * sigmas[0], sigmas=sigmas, extra_args={})
    spy.check(sample, path.name, "its numbers are not the plan's")
