"""k-diffusion: the sigmas, the solver, and a denoiser with the plan's network times."""

import torch

from ld3.export.files.ld3_model import answer_for, check_model, told_level, told_scale
from ld3.export.files.ld3_plans import plan_of, sigmas_of, steps_known
from ld3.export.files.ld3_sampler import sample_ld3

PLANS = []  # filled in by ld3 export


def sigmas(steps, denoise=1.0):
    """The sigmas tensor for `k_diffusion.sampling.sample_*` and for `sample` below."""
    return sigmas_of(PLANS, steps, denoise)


def sample(model, x, sigmas, extra_args=None, callback=None, disable=None, memory=None):
    """The plan's own solver, called like `k_diffusion.sampling.sample_euler`.

    Sigmas may be split, sigmas[:3] and sigmas[2:], for two models; one dict as `memory` in both
    calls hands the first one's answers over.
    """
    return sample_ld3(PLANS, model, x, sigmas, extra_args, callback, disable, memory=memory)


class NetworkTimes(torch.nn.Module):
    """A denoiser that gets the plan's network times, for k-diffusion's own samplers.

    `inner` is a denoiser of k-diffusion; discrete ones must be made with quantize=False.
    """

    def __init__(self, inner, steps):
        super().__init__()
        self.inner_model = inner
        self.plan = plan_of(PLANS, steps)
        if self.plan is None:
            raise ValueError(f"LD3: got {steps} steps, expected one of {steps_known(PLANS)}")
        check_model(self.plan, inner)

    def forward(self, x, sigma, **extra_args):
        level = sigma.view(sigma.shape[:1] + (1,) * (x.ndim - 1))
        told = told_level(self.plan, level)
        scaled = x * told_scale(self.plan, level, told)
        x0 = self.inner_model(scaled, told.view(sigma.shape), **extra_args)
        return answer_for(self.plan, x, level, scaled, told, x0)
