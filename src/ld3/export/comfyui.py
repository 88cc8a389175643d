"""ComfyUI: a folder for `custom_nodes` with three nodes, their numbers, and an example workflow.

SIGMAS alone hold neither learned coefficients nor network times, so that there is a SAMPLER node
that runs the plan's own table, and a MODEL node for the network times. The nodes need nothing of
ours. ComfyUI cannot be installed as a package: the check runs them against a stand-in.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ld3 import __version__
from ld3.export.check import Spy, load_file, with_modules
from ld3.export.comfyui_standin import Model, modules, sample_custom
from ld3.export.numbers import cannot, fixed, level, record, slug, solver_name, title
from ld3.export.source import python_file
from ld3.export.target import Exported, Wish
from ld3.plan import Plan
from ld3.schedules import EDM, Flow
from ld3.store import write_bytes, write_json


def write(plans: Sequence[Plan], out: Path, wish: Wish) -> Exported:
    """`ld3_<name>/`: nodes, numbers, text for ManualSigmas, a workflow."""
    name = title(plans, wish.name)
    folder = out / f"ld3_{slug(name)}"
    steps = [len(plan.times) - 1 for plan in plans]
    pack = {
        "name": name,
        "slug": slug(name),
        "default_steps": steps[-1],
        "plans": [record(plan, *factors(plan)) for plan in plans],
    }
    write_json(folder / "plans.json", pack)
    write_bytes(folder / "__init__.py", python_file("comfyui_nodes", {}))
    project = (
        f'[project]\nname = "ld3-{slug(name).replace("_", "-")}"\nversion = "{__version__}"\n'
        f'description = "A learned sampling plan: {name}"\n\n[tool.comfy]\nPublisherId = ""\n'
        f'DisplayName = "LD3 {name}"\n'
    )
    write_bytes(folder / "pyproject.toml", project.encode())
    manual = [folder / f"manual_sigmas_{n}.txt" for n in steps]
    for plan, path in zip(plans, manual, strict=True):
        write_bytes(path, (manual_sigmas(plan) + "\n").encode())
    write_json(folder / "workflows" / "example.json", workflow(slug(name), steps[-1]))
    for plan in plans:
        check(plan, folder, slug(name))
    files = [folder / file for file in ("__init__.py", "plans.json", "pyproject.toml")]
    notes = [
        "comfyui: checked against a stand-in of its interface, not in ComfyUI itself",
        "comfyui: LD3 Sigmas and LD3 Sampler together run the plan as it is, in steps "
        + ", ".join(map(str, steps))
        + "; LD3 Network Times keeps fractions of times that discrete models round",
        *cannot(plans[0], "ManualSigmas and other samplers"),
    ]
    return Exported([*files, *manual, folder / "workflows" / "example.json"], notes)


def lines(plan: Plan) -> Iterator[str]:
    yield f"ManualSigmas, {plan.nfe} evaluations of {solver_name(plan)}:"
    yield manual_sigmas(plan)
    yield from (f"{line}; `ld3 export --to comfyui` can" for line in cannot(plan, "ManualSigmas"))


def manual_sigmas(plan: Plan) -> str:
    """The text for ManualSigmas, in plain decimals: it reads 1e-3 as 1 and -3."""
    return ", ".join(fixed(level(plan, plan.grid.times)))


def factors(plan: Plan) -> tuple[float, float]:
    """Between ComfyUI's x and ours, at the first level and for the sample.

    It begins with sqrt(1 + sigma^2) times the noise, on flows with sigma times the noise, and on
    flows divides the last state by 1 - sigma.
    """
    schedule = plan.noise_schedule
    first, last = (level(plan, plan.grid.times[i]).item() for i in (0, -1))
    if isinstance(schedule, Flow):
        return schedule.prior_std / first, 1 - last
    begun = (1 + first**2) ** 0.5
    return (schedule.prior_std / begun if isinstance(schedule, EDM) else 1.0), 1.0


def check(plan: Plan, folder: Path, name: str) -> None:
    """The three nodes in a row, as a workflow has them."""
    pack = load_file(folder / "__init__.py", "ld3_exported_comfyui")
    spy, steps = Spy.of(plan), len(plan.times) - 1
    model = Model(plan, spy.output)
    with with_modules(modules()):
        sigmas = _run(pack, f"LD3Sigmas_{name}", steps=steps, denoise=1.0)
        sampler = _run(pack, f"LD3Sampler_{name}")
        patched = _run(
            pack, f"LD3NetworkTimes_{name}", model=model, steps=steps, sampler="LD3 Sampler"
        )
        sample = sample_custom(patched, sampler, sigmas, spy.noise)
    spy.check(
        sample, f"{folder.name} on torch {torch.__version__}", "its numbers are not the plan's"
    )


def _run(pack: Any, name: str, **inputs: Any) -> Any:
    """A V1 node as ComfyUI runs it: an instance's FUNCTION with the inputs by name."""
    node = pack.NODE_CLASS_MAPPINGS[name]
    wanted = set(node.INPUT_TYPES()["required"])
    assert wanted == set(inputs), (name, wanted)
    (found,) = getattr(node(), node.FUNCTION)(**inputs)
    return found


def workflow(name: str, steps: int) -> dict[str, Any]:
    """Text to image with SamplerCustom, in the form ComfyUI saves."""
    nodes: list[dict[str, Any]] = []
    links: list[list[Any]] = []

    def add(
        kind: str, outputs: str, inputs: dict[str, tuple[int, int]] | None = None, *widgets: Any
    ) -> int:
        number = len(nodes) + 1
        wired = []
        for slot, (key, (source, port)) in enumerate((inputs or {}).items()):
            out = nodes[source - 1]["outputs"][port]
            links.append([len(links) + 1, source, port, number, slot, out["type"]])
            out["links"].append(len(links))
            wired.append({"name": key, "type": out["type"], "link": len(links)})
        nodes.append(
            {
                "id": number,
                "type": kind,
                "pos": [40 + 320 * ((number - 1) % 4), 60 + 260 * ((number - 1) // 4)],
                "size": [280, 180],
                "flags": {},
                "order": number - 1,
                "mode": 0,
                "inputs": wired,
                "outputs": [
                    {"name": each, "type": each, "links": [], "slot_index": slot}
                    for slot, each in enumerate(outputs.split())
                ],
                "properties": {"Node name for S&R": kind},
                "widgets_values": list(widgets),
            }
        )
        return number

    loader = add("CheckpointLoaderSimple", "MODEL CLIP VAE", None, "model.safetensors")
    positive = add("CLIPTextEncode", "CONDITIONING", {"clip": (loader, 1)}, "a photo of a cat")
    negative = add("CLIPTextEncode", "CONDITIONING", {"clip": (loader, 1)}, "")
    latent = add("EmptyLatentImage", "LATENT", None, 512, 512, 1)
    times = add(f"LD3NetworkTimes_{name}", "MODEL", {"model": (loader, 0)}, steps, "LD3 Sampler")
    sampler = add(f"LD3Sampler_{name}", "SAMPLER")
    sigmas = add(f"LD3Sigmas_{name}", "SIGMAS", None, steps, 1.0)
    inputs = {
        "model": (times, 0),
        "positive": (positive, 0),
        "negative": (negative, 0),
        "sampler": (sampler, 0),
        "sigmas": (sigmas, 0),
        "latent_image": (latent, 0),
    }
    drawn = add("SamplerCustom", "LATENT LATENT", inputs, True, 0, "fixed", 7.5)
    image = add("VAEDecode", "IMAGE", {"samples": (drawn, 0), "vae": (loader, 2)})
    add("SaveImage", "", {"images": (image, 0)}, "ld3")
    return {
        "last_node_id": len(nodes),
        "last_link_id": len(links),
        "nodes": nodes,
        "links": links,
        "groups": [],
        "config": {},
        "extra": {},
        "version": 0.4,
    }
