"""What all nodes for ComfyUI share: its scale of noise, a SAMPLER, and a MODEL with times kept."""

import copy

from ld3.export.files.ld3_model import (
    answer_for,
    check_model,
    fractional_step,
    told_level,
    told_scale,
)
from ld3.export.files.ld3_sampler import sample_ld3

HISTORY = ["hand over", "restart"]
HISTORY_TIP = (
    "For split sigmas: the second part continues with the history of the first (wire this SAMPLER "
    "to both), or starts without it."
)
SAMPLERS = ["LD3 Sampler", "other"]
SAMPLERS_TIP = (
    "LD3 Sampler asks the network at the plan's times itself. Choose other for a sampler of "
    "ComfyUI: the model then exchanges the times."
)


def begun(plan):
    """ComfyUI begins with sqrt(1 + sigma^2) times the noise, on flows with sigma times it."""
    first = plan["sigmas"][0]
    return first if plan["kind"] == "flow" else (1 + first**2) ** 0.5


def ended(plan):
    """On flows it divides the last state by 1 - sigma."""
    return 1 - plan["sigmas"][-1] if plan["kind"] == "flow" else 1.0


def sample_function(plans, memory=None):
    """The plan's solver, called like those of k-diffusion."""

    def sample(model, x, sigmas, extra_args=None, callback=None, disable=None):
        return sample_ld3(
            plans, model, x, sigmas, extra_args, callback, disable, begun, ended, memory
        )

    return sample


def make_sampler(plans, history):
    """A SAMPLER; it remembers what a first part of the sigmas leaves for the next."""
    import comfy.samplers

    memory = {} if history == HISTORY[0] else None
    return comfy.samplers.KSAMPLER(sample_function(plans, memory))


def with_times(model, plan, sampler):
    """A clone of the MODEL that keeps fractions of times, or exchanges them for the plan's."""
    original = model.get_model_object("model_sampling")
    check_model(plan, original)
    patched = copy.copy(original)
    kind = Fractions if sampler == SAMPLERS[0] else Told
    patched.__class__ = type("LD3Sampling", (kind, type(original)), {})
    patched.ld3_plan = plan
    clone = model.clone()
    clone.add_object_patch("model_sampling", patched)
    return clone


class Fractions:
    """Times between the trained steps, for models that round to a table of noise levels."""

    def timestep(self, sigma):
        rounded = super().timestep(sigma)
        if rounded.is_floating_point():
            return rounded
        return fractional_step(self.log_sigmas, sigma)


class Told(Fractions):
    """The network is told the plan's level, and its answer is read at that level."""

    def timestep(self, sigma):
        return super().timestep(told_level(self.ld3_plan, sigma))

    def calculate_denoised(self, sigma, model_output, model_input):
        level = sigma.view(sigma.shape[:1] + (1,) * (model_input.ndim - 1))
        told = told_level(self.ld3_plan, level)
        scaled = model_input * told_scale(self.ld3_plan, level, told)
        x0 = super().calculate_denoised(told.view(sigma.shape), model_output, scaled)
        return answer_for(self.ld3_plan, model_input, level, scaled, told, x0)
