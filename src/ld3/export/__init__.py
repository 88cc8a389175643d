"""Plans for other tools. An exporter is a file of its own and a line here.

Each writes its files, runs them with a known network, and says in single lines what the tool cannot
hold.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ld3.errors import PlanError, unknown
from ld3.export import a1111, comfyui, diffusers, hub, kdiffusion, sigmas, text
from ld3.export.numbers import members
from ld3.export.target import Exported, Wish
from ld3.plan import Plan

__all__ = ["TARGETS", "Exported", "Target", "Wish", "export_plans", "paste_lines"]


@dataclass(frozen=True)
class Target:
    """A tool that plans can go to."""

    summary: str
    write: Callable[[Sequence[Plan], Path, Wish], Exported]
    lines: Callable[[Plan], Iterator[str]] | None  # the few lines to paste


TARGETS: dict[str, Target] = {
    "diffusers": Target("LD3Scheduler and stock schedulers", diffusers.write, diffusers.lines),
    "comfyui": Target("a folder of custom nodes for one plan", comfyui.write, comfyui.lines),
    "comfyui-pack": Target("one custom node for all plans", comfyui.write_pack, None),
    "a1111": Target("a script for AUTOMATIC1111 and Forge", a1111.write, a1111.lines),
    "a1111-pack": Target("one extension for all plans", a1111.write_pack, None),
    "kdiffusion": Target("a Python file", kdiffusion.write, kdiffusion.lines),
    "text": Target("numbers and JSON", text.write, text.lines),
    "sigmas": Target("lists for servers and stable-diffusion.cpp", sigmas.write, sigmas.lines),
    "hub": Target("a folder to upload, with a model card", hub.write, None),
}


GUIDED = ("comfyui-pack",)  # tools that can leave out the unconditional pass


def export_plans(
    target: str, plans: Sequence[Plan], out: Path | str, wish: Wish | None = None
) -> Exported:
    """Write plans of one model for a tool, and check what was written."""
    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    for plan in plans:
        _check_guidance(target, plan)
    return TARGETS[target].write(members(plans), Path(out), wish or Wish())


def paste_lines(target: str, plan: Plan) -> Iterator[str]:
    """The few lines to paste into a tool."""
    known = {name: kind.lines for name, kind in TARGETS.items() if kind.lines is not None}
    if target not in known:
        raise unknown("target", target, known)
    _check_guidance(target, plan)
    return known[target](plan)


def _check_guidance(target: str, plan: Plan) -> None:
    if plan.guidance is not None and target not in GUIDED:
        use = "learn without --passes and +guidance"
        if target == "comfyui":
            use = "use --to comfyui-pack"
        if target == "diffusers":
            use = "in Python use LD3Scheduler.from_plan and ld3.diffusers.guide_by_plan"
        raise PlanError(
            f"export: got a plan with guidance in it, expected one without for {target}, whose "
            f"files do not say which passes to leave out; {use}"
        )
