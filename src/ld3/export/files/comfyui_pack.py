"""One node for all plans in a folder: MODEL, SAMPLER and SIGMAS from a plan and its steps.

Plan files lie in `plans` beside this file and in `models/ld3` of ComfyUI. Each is also a scheduler
and a sampler in the lists of KSampler, both called ld3_ and the name of the file.
"""

from functools import partial
from pathlib import Path

from ld3.export.files.comfyui_model import (
    DENOISE,
    HISTORY,
    HISTORY_TIP,
    SAMPLERS,
    SAMPLERS_TIP,
    Node,
    levels_of,
    make_guider,
    make_sampler,
    sample_function,
    with_times,
)
from ld3.export.files.ld3_model import check_model
from ld3.export.files.ld3_plans import plan_of, read_plans, sigmas_of, steps_known

PLAN_TIP = "A plan file in models/ld3 or in the folder plans of this pack."
STEPS_TIP = "A number of steps that the chosen plan was learned for."
SCALE_TIP = "Guidance scale; 0 is the one that the plan was learned for."


def folders():
    """Where plan files lie."""
    found = [Path(__file__).parent / "plans"]
    try:
        import folder_paths
    except ImportError:  # outside of ComfyUI
        return found
    folder_paths.add_model_folder_path("ld3", str(Path(folder_paths.models_dir) / "ld3"))
    return [*found, *map(Path, folder_paths.get_folder_paths("ld3"))]


def packs():
    return read_plans(*dict.fromkeys(folders()))


def choices():
    """Names of plans, and all numbers of steps that one of them has."""
    found = packs()
    steps = sorted({n for plans in found.values() for n in steps_known(plans)})
    return list(found) or ["none"], [str(n) for n in steps] or ["0"]


def valid(plan, steps):
    """True, or what is wrong."""
    found = packs()
    if plan not in found:
        known = ", ".join(found) or "none; put files of `ld3 export --to comfyui-pack` there"
        return f"LD3: got plan {plan!r}, expected a file in models/ld3 or plans: {known}"
    if int(steps) not in steps_known(found[plan]):
        return f"LD3: got {steps} steps, expected one of {steps_known(found[plan])} for {plan}"
    return True


def chosen(plan, steps):
    """The plans of that name, and the one with that number of steps."""
    fault = valid(plan, steps)
    if fault is not True:
        raise ValueError(fault)
    plans = packs()[plan]
    return plans, plan_of(plans, int(steps))


class PlanNode(Node):
    """MODEL, SAMPLER and SIGMAS of a plan."""

    DESCRIPTION = (
        "A learned plan: noise levels, solver and network times for few steps of one model. Wire "
        "all three outputs to SamplerCustom. Refuses a model that the plan was not learned for."
    )
    RETURN_TYPES = ("MODEL", "SAMPLER", "SIGMAS")
    OUTPUT_TOOLTIPS = (
        "The model with the plan's network times.",
        "The plan's solver, with its learned numbers.",
        "The plan's noise levels. The last is not zero.",
    )

    @classmethod
    def INPUT_TYPES(cls):
        plans, steps = choices()
        return {
            "required": {
                "model": ("MODEL",),
                "plan": (plans, {"tooltip": PLAN_TIP}),
                "steps": (steps, {"tooltip": STEPS_TIP}),
                "denoise": DENOISE,
                "sampler": (SAMPLERS, {"tooltip": SAMPLERS_TIP}),
                "history": (HISTORY, {"tooltip": HISTORY_TIP}),
            }
        }

    @classmethod
    def VALIDATE_INPUTS(cls, plan, steps):
        return valid(plan, steps)

    def run(self, model, plan, steps, denoise, sampler, history):
        plans, one = chosen(plan, steps)
        return (
            with_times(model, one, sampler),
            make_sampler(plans, history),
            levels_of(plans, int(steps), denoise),
        )


class GuiderNode(Node):
    """The GUIDER of a plan with guidance."""

    DESCRIPTION = (
        "For plans with guidance: asks without the prompt only where the plan does. Wire it to "
        "SamplerCustomAdvanced, with the outputs of LD3 Plan. Patches of CFG do not apply."
    )
    RETURN_TYPES = ("GUIDER",)
    OUTPUT_TOOLTIPS = ("Runs fewer passes of the network than CFGGuider.",)

    @classmethod
    def INPUT_TYPES(cls):
        plans, steps = choices()
        scale = {"default": 0.0, "min": 0.0, "max": 100.0, "step": 0.1, "tooltip": SCALE_TIP}
        return {
            "required": {
                "model": ("MODEL",),
                "positive": ("CONDITIONING",),
                "negative": ("CONDITIONING",),
                "plan": (plans, {"tooltip": PLAN_TIP}),
                "steps": (steps, {"tooltip": STEPS_TIP}),
                "cfg": ("FLOAT", scale),
            }
        }

    def run(self, model, positive, negative, plan, steps, cfg):
        _, one = chosen(plan, steps)
        if "guided" not in one:
            raise ValueError(f"LD3: got {plan}, a plan without guidance; expected CFGGuider for it")
        return (make_guider(model, positive, negative, one, cfg),)


NODES = {"LD3Plan": (PlanNode, "LD3 Plan"), "LD3Guider": (GuiderNode, "LD3 Guider")}


def levels_for(plans, model_sampling, steps):
    """A scheduler of KSampler."""
    check_model(plans[0], model_sampling)
    return sigmas_of(plans, steps)


def register():
    """Every plan in the lists of schedulers and samplers, where this ComfyUI has them. Plans with
    guidance are left out: KSampler has a guider of its own."""
    try:
        import comfy.samplers
        from comfy.k_diffusion import sampling
    except ImportError:
        return
    handlers = getattr(comfy.samplers, "SCHEDULER_HANDLERS", None)
    kind = getattr(comfy.samplers, "SchedulerHandler", None)
    if handlers is None or kind is None:
        return
    for name, plans in packs().items():
        if any("guided" in plan for plan in plans):
            continue
        key = "ld3_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in name.lower())
        handlers[key] = kind(partial(levels_for, plans), True)
        setattr(sampling, f"sample_{key}", sample_function(plans, {}))
        for listed in ("SCHEDULER_NAMES", "KSAMPLER_NAMES", "SAMPLER_NAMES"):
            names = getattr(comfy.samplers, listed, None)
            if isinstance(names, list) and key not in names:
                names.append(key)


def v3_form(io, node_id, node, title):
    """A node in the V3 form, with the inputs and outputs of its V1 form."""

    def v3_input(name, kind, options=None):
        if isinstance(kind, list):
            return io.Combo.Input(name, options=kind, **options)
        return getattr(io, kind.capitalize()).Input(name, **(options or {}))

    class V3(io.ComfyNode):
        @classmethod
        def define_schema(cls):
            outputs = zip(node.RETURN_TYPES, node.OUTPUT_TOOLTIPS, strict=True)
            inputs = node.INPUT_TYPES()["required"]
            return io.Schema(
                node_id=node_id,
                display_name=title,
                category=node.CATEGORY,
                description=node.DESCRIPTION,
                inputs=[v3_input(name, *entry) for name, entry in inputs.items()],
                outputs=[
                    getattr(io, kind.capitalize()).Output(display_name=kind, tooltip=tip)
                    for kind, tip in outputs
                ],
            )

        @classmethod
        def execute(cls, *args, **inputs):
            return io.NodeOutput(*node().run(*args, **inputs))

    if hasattr(node, "VALIDATE_INPUTS"):
        V3.validate_inputs = classmethod(lambda cls, plan, steps: valid(plan, steps))
    return V3


register()
try:
    from comfy_api.latest import ComfyExtension, io
except ImportError:
    NODE_CLASS_MAPPINGS = {key: node for key, (node, _) in NODES.items()}
    NODE_DISPLAY_NAME_MAPPINGS = {key: title for key, (_, title) in NODES.items()}
else:

    class Extension(ComfyExtension):
        async def get_node_list(self):
            return [v3_form(io, key, *entry) for key, entry in NODES.items()]

    async def comfy_entrypoint():
        return Extension()
