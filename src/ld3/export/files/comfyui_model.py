"""What all nodes for ComfyUI share: its scale of noise, a SAMPLER, and a MODEL with times kept."""

import copy

import torch

from ld3.export.files.ld3_model import (
    answer_for,
    check_model,
    fractional_step,
    told_level,
    told_scale,
)
from ld3.export.files.ld3_plans import NEAR, sigmas_of
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
DENOISE_TIP = "Below 1 for image to image: the last part of the steps."
DENOISE = ("FLOAT", {"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.01, "tooltip": DENOISE_TIP})


class Node:
    """What all nodes have in common."""

    CATEGORY = "sampling/custom_sampling/LD3"
    FUNCTION = "run"


def levels_of(plans, steps, denoise):
    """SIGMAS; none where nothing is left of them."""
    levels = sigmas_of(plans, steps, denoise)
    return levels if len(levels) > 1 else torch.FloatTensor([])


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


class Mixer:
    """m_j = c_j + sum_i A[j, i] (w - 1)(c_i - u_i), over the evaluations i that run without
    the condition, too. A run that begins in the middle runs both passes at once, for all that came
    before."""

    def __init__(self, plan, scale):
        self.plan, self.scale = plan, scale
        self.last, self.begin, self.directions = -1, 0, {}

    def evaluation(self, level):
        """The number of the evaluation at a noise level: the first such one that is still ahead."""
        told = self.plan["told"]
        nearest = min(abs(one - level) for one in told)
        near = [n for n, one in enumerate(told) if abs(one - level) <= nearest + NEAR * level]
        ahead = [n for n in near if n > self.last]
        return ahead[0] if ahead else near[0]

    def mixed(self, level, ask):
        """`ask(both)` gives [c] or [c, u] at this level."""
        n, guided = self.evaluation(level), self.plan["guided"]
        if n <= self.last or self.last < 0:
            self.begin, self.directions = n, {}
        self.last = n
        both = n in guided or (n == self.begin and any(i < n for i in guided))
        answer, *without = ask(both)
        if without:
            self.directions[n] = (self.scale - 1) * (answer - without[0])
        for i, weight in zip(guided, self.plan["guidance"][n], strict=False):
            answer = answer + weight * self.directions[max(i, self.begin)]
        return answer


def make_guider(model, positive, negative, plan, scale):
    """A GUIDER that runs the pass without the condition only where the plan does."""
    import comfy.samplers

    mixer = Mixer(plan, scale or plan["scale"])

    class Guider(comfy.samplers.CFGGuider):
        ld3_guided = True

        def predict_noise(self, x, timestep, model_options=None, seed=None):
            def ask(both):
                names = ("positive", "negative") if both else ("positive",)
                conds = [self.conds.get(name) for name in names]
                options = model_options or {}
                batch = comfy.samplers.calc_cond_batch
                return batch(self.inner_model, conds, x, timestep, options)

            return mixer.mixed(float(timestep.flatten()[0]), ask)

    guider = Guider(model)
    guider.set_conds(positive, negative)
    guider.set_cfg(mixer.scale)
    return guider


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
    """The network gets the plan's level, and its answer is read at that level."""

    def timestep(self, sigma):
        return super().timestep(told_level(self.ld3_plan, sigma))

    def calculate_denoised(self, sigma, model_output, model_input):
        level = sigma.view(sigma.shape[:1] + (1,) * (model_input.ndim - 1))
        told = told_level(self.ld3_plan, level)
        scaled = model_input * told_scale(self.ld3_plan, level, told)
        x0 = super().calculate_denoised(told.view(sigma.shape), model_output, scaled)
        return answer_for(self.ld3_plan, model_input, level, scaled, told, x0)
