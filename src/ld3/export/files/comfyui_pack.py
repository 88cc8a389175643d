"""One node for all plans in a folder: MODEL, SAMPLER and SIGMAS from a plan and its steps.

Plan files lie in `plans` beside this file and in `models/ld3` of ComfyUI. Each is also a scheduler
and a sampler in the lists of KSampler, both called ld3_ and the name of the file.
"""

from functools import partial
from pathlib import Path

import torch

from ld3.export.files.comfyui_model import (
    HISTORY,
    HISTORY_TIP,
    SAMPLERS,
    SAMPLERS_TIP,
    make_sampler,
    sample_function,
    with_times,
)
from ld3.export.files.ld3_model import check_model
from ld3.export.files.ld3_plans import plan_of, read_plans, sigmas_of, steps_known

NODE_ID, TITLE = "LD3Plan", "LD3 Plan"
CATEGORY = "sampling/custom_sampling/LD3"
ABOUT = (
    "A learned plan: noise levels, solver and network times for few steps of one model. Wire all "
    "three outputs to SamplerCustom. Refuses a model that the plan was not learned for."
)
PLAN_TIP = "A plan file in models/ld3 or in the folder plans of this pack."
STEPS_TIP = "A number of steps that the chosen plan was learned for."
DENOISE_TIP = "Below 1 for image to image: the last part of the steps."
OUTPUTS = {
    "MODEL": "The model with the plan's network times.",
    "SAMPLER": "The plan's solver, with its learned numbers.",
    "SIGMAS": "The plan's noise levels. The last is not zero.",
}


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
        return f"LD3: got plan {plan!r}, wanted a file in models/ld3 or plans: {known}"
    if int(steps) not in steps_known(found[plan]):
        return f"LD3: got {steps} steps, wanted one of {steps_known(found[plan])} for {plan}"
    return True


def load(model, plan, steps, denoise, sampler, history):
    """MODEL, SAMPLER, SIGMAS."""
    fault = valid(plan, steps)
    if fault is not True:
        raise ValueError(fault)
    plans = packs()[plan]
    levels = sigmas_of(plans, int(steps), denoise)
    return (
        with_times(model, plan_of(plans, int(steps)), sampler),
        make_sampler(plans, history),
        levels if len(levels) > 1 else torch.FloatTensor([]),
    )


class PlanNode:
    """The V1 form."""

    CATEGORY = CATEGORY
    DESCRIPTION = ABOUT
    RETURN_TYPES = tuple(OUTPUTS)
    OUTPUT_TOOLTIPS = tuple(OUTPUTS.values())
    FUNCTION = "load"

    @classmethod
    def INPUT_TYPES(cls):
        plans, steps = choices()
        denoise = {"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.01, "tooltip": DENOISE_TIP}
        return {
            "required": {
                "model": ("MODEL",),
                "plan": (plans, {"tooltip": PLAN_TIP}),
                "steps": (steps, {"tooltip": STEPS_TIP}),
                "denoise": ("FLOAT", denoise),
                "sampler": (SAMPLERS, {"tooltip": SAMPLERS_TIP}),
                "history": (HISTORY, {"tooltip": HISTORY_TIP}),
            }
        }

    @classmethod
    def VALIDATE_INPUTS(cls, plan, steps):
        return valid(plan, steps)

    def load(self, model, plan, steps, denoise, sampler, history):
        return load(model, plan, steps, denoise, sampler, history)


def levels_for(plans, model_sampling, steps):
    """A scheduler of KSampler."""
    check_model(plans[0], model_sampling)
    return sigmas_of(plans, steps)


def register():
    """Every plan in the lists of schedulers and samplers, where this ComfyUI has them."""
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
        key = "ld3_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in name.lower())
        handlers[key] = kind(partial(levels_for, plans), True)
        setattr(sampling, f"sample_{key}", sample_function(plans, {}))
        for listed in ("SCHEDULER_NAMES", "KSAMPLER_NAMES", "SAMPLER_NAMES"):
            names = getattr(comfy.samplers, listed, None)
            if isinstance(names, list) and key not in names:
                names.append(key)


register()
try:
    from comfy_api.latest import ComfyExtension, io
except ImportError:
    NODE_CLASS_MAPPINGS = {NODE_ID: PlanNode}
    NODE_DISPLAY_NAME_MAPPINGS = {NODE_ID: TITLE}
else:

    class PlanNodeV3(io.ComfyNode):
        """The V3 form, with the same inputs and outputs."""

        @classmethod
        def define_schema(cls):
            plans, steps = choices()
            return io.Schema(
                node_id=NODE_ID,
                display_name=TITLE,
                category=CATEGORY,
                description=ABOUT,
                inputs=[
                    io.Model.Input("model"),
                    io.Combo.Input("plan", options=plans, tooltip=PLAN_TIP),
                    io.Combo.Input("steps", options=steps, tooltip=STEPS_TIP),
                    io.Float.Input(
                        "denoise", default=1.0, min=0.0, max=1.0, step=0.01, tooltip=DENOISE_TIP
                    ),
                    io.Combo.Input("sampler", options=SAMPLERS, tooltip=SAMPLERS_TIP),
                    io.Combo.Input("history", options=HISTORY, tooltip=HISTORY_TIP),
                ],
                outputs=[
                    io.Model.Output(display_name="MODEL", tooltip=OUTPUTS["MODEL"]),
                    io.Sampler.Output(display_name="SAMPLER", tooltip=OUTPUTS["SAMPLER"]),
                    io.Sigmas.Output(display_name="SIGMAS", tooltip=OUTPUTS["SIGMAS"]),
                ],
            )

        @classmethod
        def validate_inputs(cls, plan, steps):
            return valid(plan, steps)

        @classmethod
        def execute(cls, model, plan, steps, denoise, sampler, history):
            return io.NodeOutput(*load(model, plan, steps, denoise, sampler, history))

    class Extension(ComfyExtension):
        async def get_node_list(self):
            return [PlanNodeV3]

    async def comfy_entrypoint():
        return Extension()
