"""Three nodes: the noise levels of a plan, its solver, and its network times.

    LD3 Sigmas          SIGMAS, for SamplerCustom
    LD3 Sampler         SAMPLER: the plan's own solver with its learned coefficients
    LD3 Network Times   MODEL: fractions of network times are kept, which discrete models else round

With LD3 Sampler a plan runs as it was learned. Another sampler gets the plan's noise levels and,
through LD3 Network Times, its network times. The numbers are in plans.json.
"""

import copy
import json
from pathlib import Path

import torch

PACK = json.loads((Path(__file__).parent / "plans.json").read_text(encoding="utf-8"))
PLANS = PACK["plans"]
CATEGORY = "sampling/custom_sampling/LD3"
STEPS = ("INT", {"default": PACK["default_steps"], "min": 1, "max": 1000})


class Sigmas:
    """The noise levels for a number of steps; `denoise` below 1 keeps the last part of them."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("SIGMAS",)
    FUNCTION = "make"

    @classmethod
    def INPUT_TYPES(cls):
        denoise = {"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.01}
        return {"required": {"steps": STEPS, "denoise": ("FLOAT", denoise)}}

    def make(self, steps, denoise):
        levels = sigmas_of(PLANS, steps, denoise)
        return (levels if len(levels) > 1 else torch.FloatTensor([]),)


class Sampler:
    """The plan's solver. It wants the sigmas of LD3 Sigmas, for a number of steps it has."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("SAMPLER",)
    FUNCTION = "make"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def make(self):
        import comfy.samplers

        def sample(model, x, sigmas, extra_args=None, callback=None, disable=None):
            return sample_ld3(PLANS, model, x, sigmas, extra_args, callback, disable)

        return (comfy.samplers.KSAMPLER(sample),)


class NetworkTimes:
    """What the network is told. `sampler`: "LD3 Sampler" asks at the right levels itself and needs
    only the fractions; for others the levels are exchanged here."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    @classmethod
    def INPUT_TYPES(cls):
        samplers = (["LD3 Sampler", "other"],)
        return {"required": {"model": ("MODEL",), "steps": STEPS, "sampler": samplers}}

    def patch(self, model, steps, sampler):
        plan = plan_of(PLANS, steps)
        if plan is None and sampler == "other":
            raise ValueError(
                f"LD3: got {steps} steps, wanted one of {steps_known(PLANS)}, which have network "
                "times"
            )
        original = model.get_model_object("model_sampling")
        patched = copy.copy(original)
        patched.__class__ = type(
            "LD3Sampling", (_Fractions if sampler == "LD3 Sampler" else _Told, type(original)), {}
        )
        patched.ld3_plan = plan
        clone = model.clone()
        clone.add_object_patch("model_sampling", patched)
        return (clone,)


class _Fractions:
    """Times between the trained steps, for models that keep a table of noise levels."""

    def timestep(self, sigma):
        table = getattr(self, "log_sigmas", None)
        if table is None:
            return super().timestep(sigma)
        # between two trained steps log(alpha) = -log(1 + sigma^2)/2 is linear in the step
        table = torch.log1p(torch.exp(2 * table.to(sigma.device, torch.float64)))
        at = torch.log1p(sigma.double() ** 2)
        right = torch.searchsorted(table, at).clamp(1, len(table) - 1)
        share = (at - table[right - 1]) / (table[right] - table[right - 1])
        return (right - 1 + share.clamp(0, 1)).view(sigma.shape).float()


class _Told(_Fractions):
    """The network is told the plan's level, and its answer is read at that level."""

    def timestep(self, sigma):
        return super().timestep(told_level(self.ld3_plan, sigma))

    def calculate_denoised(self, sigma, model_output, model_input):
        level = sigma.view(sigma.shape[:1] + (1,) * (model_input.ndim - 1))
        told = told_level(self.ld3_plan, level)
        scaled = model_input * told_scale(self.ld3_plan, level, told)
        x0 = super().calculate_denoised(told.view(sigma.shape), model_output, scaled)
        return answer_for(self.ld3_plan, model_input, level, scaled, told, x0)


NODES = {"Sigmas": Sigmas, "Sampler": Sampler, "NetworkTimes": NetworkTimes}
TITLES = {"Sigmas": "Sigmas", "Sampler": "Sampler", "NetworkTimes": "Network Times"}
NODE_CLASS_MAPPINGS = {f"LD3{key}_{PACK['slug']}": node for key, node in NODES.items()}
NODE_DISPLAY_NAME_MAPPINGS = {
    f"LD3{key}_{PACK['slug']}": f"LD3 {title} ({PACK['name']})" for key, title in TITLES.items()
}
