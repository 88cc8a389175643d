"""AUTOMATIC1111 and Forge: a schedule type and a sampler for one plan, or for all in a folder.

`a1111` makes one script, `a1111-pack` an extension that reads every plan file in its folder
`plans`. Both need nothing of ours, and Python 3.10 at least. These web UIs cannot be installed as
packages: the check runs against a stand-in of the modules of theirs that are touched, and
`tools/webuis` against the real ones.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ld3.errors import ExportError
from ld3.export.check import Spy, load_file, with_modules
from ld3.export.numbers import fixed, level, pack_of, record, slug, solver_name, title
from ld3.export.source import python_file
from ld3.export.stock_samplers import stock_lines
from ld3.export.target import Exported, Wish
from ld3.plan import Plan
from ld3.store import write_bytes, write_json

TOOL = "A1111"


def write(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """`ld3_<name>/scripts/ld3_<name>.py`: a folder for `extensions`."""
    name = title(plans, wish.name)
    label = f"LD3 {name}"
    path = out / f"ld3_{slug(name)}" / "scripts" / f"ld3_{slug(name)}.py"
    values = {"NAME": label, "PLANS": [record(plan) for plan in plans]}
    write_bytes(path, python_file(["a1111_lists", "a1111_script"], values))
    for plan in plans:
        check(plan, path, label)
    return Exported([path], _notes(plans, label))


def write_pack(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """`ld3_plans/`: the extension, and these plans as one more file in its folder `plans`."""
    name = title(plans, wish.name)
    script = out / "ld3_plans" / "scripts" / "ld3_plans.py"
    path = out / "ld3_plans" / "plans" / f"{slug(name)}.json"
    write_json(path, pack_of(plans, name))
    write_bytes(script, python_file(["a1111_lists", "a1111_pack"], {}))
    for plan in plans:
        check(plan, script, f"LD3 {name}")
    return Exported([script, path], _notes(plans, f"LD3 {name}"))


def _notes(plans: Sequence[Plan], label: str) -> list[str]:
    counts = ", ".join(str(len(plan.times) - 1) for plan in plans)
    return [
        "a1111: checked against a stand-in of its interface",
        f"a1111: choose the sampler {label!r}: it runs the plan as it is, with schedule type "
        f"Automatic and steps {counts}; for other steps and for Hires fix the nearest of these",
        *stock_lines(plans[0], "a1111", f"schedule type {label!r}"),
    ]


def lines(plan: Plan) -> Iterator[str]:
    yield f"# {solver_name(plan)}, {plan.nfe} evaluations: for scripts that set"
    yield "# p.sampler_noise_scheduler_override"
    yield f"sigmas = torch.tensor([{', '.join(fixed(level(plan, plan.grid.times)))}])"
    yield "p.sampler_noise_scheduler_override = lambda steps: sigmas"
    yield from (f"# {line}" for line in stock_lines(plan, "a1111", TOOL))
    yield "# `ld3 export --to a1111` makes a script that runs the plan as it is"


def stand_in() -> dict[str, ModuleType]:
    """The modules of the web UI that the script touches, with what it touches of them."""

    def named(*names: str) -> Callable[..., SimpleNamespace]:
        return lambda *values, **more: SimpleNamespace(
            **dict(zip(names, values, strict=True)), **more
        )

    known = SimpleNamespace(name="automatic", label="Automatic", function=None)
    contents: dict[str, dict[str, Any]] = {
        "sd_schedulers": {
            "schedulers": [known],
            "schedulers_map": {"automatic": known, "Automatic": known},
            "Scheduler": named("name", "label", "function"),
        },
        "sd_samplers": {"all_samplers": [], "all_samplers_map": {}, "set_samplers": lambda: None},
        "sd_samplers_common": {"SamplerData": named("name", "constructor", "aliases", "options")},
        "sd_samplers_kdiffusion": {"KDiffusionSampler": named("func", "model")},
    }
    package = ModuleType("modules")
    found = {"modules": package}
    for name, content in contents.items():
        part = found[f"modules.{name}"] = ModuleType(f"modules.{name}")
        part.__dict__.update(content)
        setattr(package, name, part)
    return found


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
    settings = {"sigma_min": 0.03, "sigma_max": 14.6, "inner_model": None, "device": "cpu"}
    sigmas = schedules[0].function(n=steps, **settings).double()
    if len(sigmas) != steps + 1:
        raise ExportError(f"{path.name}: got {len(sigmas)} sigmas for {steps} steps")
    sampler = samplers[0].constructor(None)
    sample = sampler.func(spy.denoiser, spy.noise * sigmas[0], sigmas=sigmas, extra_args={})
    spy.check(sample, path.name, "its numbers are not the plan's")
