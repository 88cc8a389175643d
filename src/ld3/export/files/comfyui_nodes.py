"""Three nodes: the noise levels of a plan, its solver, and its network times.

    LD3 Sigmas          SIGMAS, for SamplerCustom
    LD3 Sampler         SAMPLER: the plan's own solver with its learned coefficients
    LD3 Network Times   MODEL: for other samplers, the plan's network times

With LD3 Sampler a plan runs as it was learned. Another sampler gets the plan's noise levels and,
through LD3 Network Times, its network times. The numbers are in plans.json.
"""

import json
from pathlib import Path

from ld3.export.files.comfyui_model import (
    DENOISE,
    HISTORY,
    HISTORY_TIP,
    SAMPLERS,
    SAMPLERS_TIP,
    Node,
    levels_of,
    make_sampler,
    with_times,
)
from ld3.export.files.ld3_plans import plan_of, steps_known

PACK = json.loads((Path(__file__).parent / "plans.json").read_text(encoding="utf-8"))
PLANS = PACK["plans"]
LEARNED = ", ".join(map(str, steps_known(PLANS)))
STEPS = (
    "INT",
    {
        "default": steps_known(PLANS)[-1],
        "min": 1,
        "max": 1000,
        "tooltip": f"Learned: {LEARNED}. Other numbers are guessed from these.",
    },
)


class Sigmas(Node):
    """The noise levels for a number of steps; `denoise` below 1 keeps the last part of them."""

    DESCRIPTION = f"The noise levels of {PACK['name']}, learned for {LEARNED} steps."
    RETURN_TYPES = ("SIGMAS",)
    OUTPUT_TOOLTIPS = ("One more than steps. The last is not zero.",)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"steps": STEPS, "denoise": DENOISE}}

    def run(self, steps, denoise):
        return (levels_of(PLANS, steps, denoise),)


class Sampler(Node):
    """The plan's solver. It wants the sigmas of LD3 Sigmas, or a part of them."""

    DESCRIPTION = f"The solver of {PACK['name']} with its learned numbers, for LD3 Sigmas."
    RETURN_TYPES = ("SAMPLER",)
    OUTPUT_TOOLTIPS = ("For SamplerCustom and SamplerCustomAdvanced.",)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}, "optional": {"history": (HISTORY, {"tooltip": HISTORY_TIP})}}

    def run(self, history=HISTORY[0]):
        return (make_sampler(PLANS, history),)


class NetworkTimes(Node):
    """The network times; a model that the plan is not for is refused."""

    DESCRIPTION = f"The network times of {PACK['name']}; refuses a model it was not learned for."
    RETURN_TYPES = ("MODEL",)
    OUTPUT_TOOLTIPS = ("The model with the plan's network times.",)

    @classmethod
    def INPUT_TYPES(cls):
        samplers = (SAMPLERS, {"tooltip": SAMPLERS_TIP})
        return {"required": {"model": ("MODEL",), "steps": STEPS, "sampler": samplers}}

    def run(self, model, steps, sampler):
        plan = plan_of(PLANS, steps)
        if plan is None and sampler == "other":
            raise ValueError(
                f"LD3: got {steps} steps, expected one of {steps_known(PLANS)}, which have network "
                "times"
            )
        return (with_times(model, plan or PLANS[0], sampler),)


NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = {}, {}
for node, title in ((Sigmas, "Sigmas"), (Sampler, "Sampler"), (NetworkTimes, "Network Times")):
    key = f"LD3{node.__name__}_{PACK['slug']}"
    NODE_CLASS_MAPPINGS[key] = node
    NODE_DISPLAY_NAME_MAPPINGS[key] = f"LD3 {title} ({PACK['name']})"
