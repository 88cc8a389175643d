"""ComfyUI: a folder for `custom_nodes`, with nodes, their numbers and example workflows.

`comfyui` makes three nodes for one plan. `comfyui-pack` makes one node for all plan files in a
folder. SIGMAS alone hold neither learned coefficients nor network times, so that there is a SAMPLER
that runs the plan's own table, and a MODEL for the network times. The nodes need nothing of ours.
ComfyUI cannot be installed as a package: the check runs them against a stand-in, and
`tools/webuis` in ComfyUI itself.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ld3 import __version__
from ld3.errors import ExportError, SpecError
from ld3.export.check import EXACT, Spy, load_file, with_modules
from ld3.export.comfyui_standin import Model, modules, sample_custom
from ld3.export.comfyui_workflows import examples, single
from ld3.export.numbers import fixed, level, pack_of, slug, solver_name, title
from ld3.export.source import python_file
from ld3.export.stock_samplers import stock_lines
from ld3.export.target import Exported, Wish
from ld3.models import bind
from ld3.plan import Plan
from ld3.store import write_bytes, write_json

PACK = "ld3_plans"
NEGATIVE = 0.5  # what the stand-in's negative condition multiplies x0 by


def write(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """`ld3_<name>/`: nodes, numbers, text for ManualSigmas, a workflow."""
    name = title(plans, wish.name)
    folder = out / f"ld3_{slug(name)}"
    steps = [len(plan.times) - 1 for plan in plans]
    write_json(folder / "plans.json", pack_of(plans, name))
    write_bytes(folder / "__init__.py", python_file(["comfyui_model", "comfyui_nodes"], {}))
    about = f"A learned sampling plan: {name}"
    project(folder, f"ld3-{slug(name).replace('_', '-')}", f"LD3 {name}", about, wish)
    manual = [folder / f"manual_sigmas_{n}.txt" for n in steps]
    for plan, path in zip(plans, manual, strict=True):
        write_bytes(path, (manual_sigmas(plan) + "\n").encode())
    write_json(folder / "workflows" / "example.json", single(slug(name), steps[-1]).saved())
    for plan in plans:
        check(plan, folder, slug(name))
    files = [folder / file for file in ("__init__.py", "plans.json", "pyproject.toml")]
    notes = [
        "comfyui: checked against a stand-in of its interface",
        "comfyui: LD3 Sigmas and LD3 Sampler together run the plan as it is, in steps "
        + _counts(plans),
        *stock_lines(plans[0], "comfyui", "other samplers"),
    ]
    return Exported([*files, *manual, folder / "workflows" / "example.json"], notes)


def write_pack(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """`ld3_plans/`: the node, and these plans as one more file in its folder `plans`."""
    name = title(plans, wish.name)
    folder = out / PACK
    path = folder / "plans" / f"{slug(name)}.json"
    write_json(path, pack_of(plans, name))
    write_bytes(folder / "__init__.py", python_file(["comfyui_model", "comfyui_pack"], {}))
    about = "Learned sampling plans: few steps, for the model they were learned for"
    project(folder, "ld3-plans", "LD3 Plans", about, wish)
    files = [folder / "__init__.py", path, folder / "pyproject.toml"]
    for key, flow in examples(name, len(plans[-1].times) - 1).items():
        files.append(folder / "example_workflows" / f"{key}.json")
        write_json(files[-1], flow.saved())
    for plan in plans:
        check_pack(plan, folder, name)
    runs = f"comfyui: the node LD3 Plan runs {name!r} as it is, in steps {_counts(plans)}; "
    if any(plan.guidance is not None for plan in plans):
        runs += "guidance is in the plan: wire LD3 Guider to SamplerCustomAdvanced"
    else:
        runs += f"KSampler has it as scheduler and sampler ld3_{slug(name)}"
    stock = stock_lines(plans[0].without_guidance(), "comfyui", "other samplers")
    return Exported(files, ["comfyui: checked against a stand-in of its interface", runs, *stock])


def _counts(plans: Sequence[Plan]) -> str:
    return ", ".join(str(len(plan.times) - 1) for plan in plans)


def project(folder: Path, name: str, display: str, about: str, wish: Wish) -> None:
    """`pyproject.toml`, as ComfyUI's registry of nodes wants it."""
    if not re.fullmatch(r"[A-Za-z0-9-]*", wish.publisher):
        raise SpecError(f"publisher: got {wish.publisher!r}, expected letters, digits and hyphens")
    if not re.fullmatch(r"[A-Za-z0-9.+-]+", wish.licence):
        raise SpecError(f"licence: got {wish.licence!r}, expected a short name such as apache-2.0")
    numbers = re.match(r"\d+\.\d+\.\d+", __version__)
    text = (
        f'[project]\nname = "{name}"\nversion = "{numbers.group() if numbers else "1.0.0"}"\n'
        f'description = "{about}"\nrequires-python = ">=3.10"\ndependencies = []\n'
        f'license = {{text = "{wish.licence}"}}\n\n[tool.comfy]\n'
        f'PublisherId = "{wish.publisher}"\nDisplayName = "{display}"\n'
    )
    write_bytes(folder / "pyproject.toml", text.encode())


def lines(plan: Plan) -> Iterator[str]:
    yield f"ManualSigmas, {plan.nfe} evaluations of {solver_name(plan)}:"
    yield manual_sigmas(plan)
    yield from stock_lines(plan, "comfyui", "ManualSigmas")
    yield "`ld3 export --to comfyui` makes nodes that run the plan as it is"


def manual_sigmas(plan: Plan) -> str:
    """The text for ManualSigmas, in plain decimals: it reads 1e-3 as 1 and -3."""
    return ", ".join(fixed(level(plan, plan.grid.times)))


def check(plan: Plan, folder: Path, name: str) -> None:
    """The three nodes in a row, as a workflow has them."""
    pack = load_file(folder / "__init__.py", "ld3_exported_comfyui").NODE_CLASS_MAPPINGS
    spy, steps = Spy.of(plan), len(plan.times) - 1
    model = Model(plan, spy.output)
    with with_modules(modules()):
        (sigmas,) = run_node(pack[f"LD3Sigmas_{name}"], steps=steps, denoise=1.0)
        (sampler,) = run_node(pack[f"LD3Sampler_{name}"])
        (patched,) = run_node(
            pack[f"LD3NetworkTimes_{name}"], model=model, steps=steps, sampler="LD3 Sampler"
        )
        sample = sample_custom(patched, sampler, sigmas, spy.noise)
    _same(spy, sample, folder)


def check_pack(plan: Plan, folder: Path, name: str) -> None:
    """The node for all plans, with the plan chosen by name."""
    spy, steps = Spy.of(plan.without_guidance()), len(plan.times) - 1
    own = dict.fromkeys(("comfy_api", "comfy_api.latest", "folder_paths"))  # of a ComfyUI here
    with with_modules({**own, **modules()}):
        nodes = load_file(folder / "__init__.py", "ld3_exported_pack").NODE_CLASS_MAPPINGS
        choice = {"plan": name, "steps": str(steps)}
        usual = {"denoise": 1.0, "sampler": "LD3 Sampler", "history": "hand over"}
        model, sampler, sigmas = run_node(
            nodes["LD3Plan"], model=Model(plan, spy.output), **choice, **usual
        )
        if plan.guidance is not None:
            (guider,) = run_node(
                nodes["LD3Guider"], model=model, positive=1.0, negative=NEGATIVE, cfg=0.0, **choice
            )
            sample = sample_custom(model, sampler, sigmas, spy.noise, guider=guider)
            _check_guider(plan, spy, sample, folder)
            return
        sample = sample_custom(model, sampler, sigmas, spy.noise)
    _same(spy, sample, folder)


def _check_guider(plan: Plan, spy: Spy, sample: torch.Tensor, folder: Path) -> None:
    """The sample and the number of passes are those of the plan's table."""
    table, denoise = plan.table_for(plan.noise_schedule, "x0"), bind(spy.model)

    def both(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x0 = denoise(x, t)
        return torch.stack([x0, (plan.model.guidance - 1) * (1 - NEGATIVE) * x0])

    passes = len(spy.told)
    wanted = table.run([both if n in (table.guided or ()) else denoise for n in range(plan.nfe)],
                       spy.start)  # fmt: skip
    apart = float((sample.double() - wanted).norm() / wanted.norm())
    if passes != plan.passes or not apart < EXACT:
        raise ExportError(
            f"{folder.name}: the guider ran {passes} passes and ends {apart:.2g} of the sample's "
            f"size away, expected {plan.passes} passes and less than {EXACT:g}"
        )


def _same(spy: Spy, sample: torch.Tensor, folder: Path) -> None:
    where = f"{folder.name} on torch {torch.__version__}"
    spy.check(sample, where, "its numbers are not the plan's")


def run_node(node: Any, **inputs: Any) -> tuple[Any, ...]:
    """A V1 node as ComfyUI runs it: an instance's FUNCTION with the inputs by name."""
    kinds = node.INPUT_TYPES()
    wanted = set(kinds["required"])
    assert wanted <= set(inputs) <= wanted | set(kinds.get("optional", ())), (node, wanted)
    found: tuple[Any, ...] = getattr(node(), node.FUNCTION)(**inputs)
    assert len(found) == len(node.RETURN_TYPES)
    return found
