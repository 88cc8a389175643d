"""A stand-in for the part of ComfyUI that the exported nodes touch, from its documented interface.

A MODEL is a patcher with `clone`, `get_model_object` and `add_object_patch`; its `model_sampling`
says how a state at a noise level is shown to the network (`calculate_input`, `timestep`) and how
the answer is read (`calculate_denoised`). SamplerCustom scales the noise, runs the function inside
a KSAMPLER on the sigmas and scales back. Discrete models round network times to trained steps.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ld3.plan import Plan
from ld3.schedules import EDM, Discrete, Flow
from ld3.tool_units import from_network_units

Network = Callable[[Tensor, float], Tensor]
"""(x, the plan's time) -> output"""


class Sampling(torch.nn.Module):
    """Noise levels of a model, and how its network is called and read."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        schedule = plan.noise_schedule
        self.plan, self.predicts = plan, plan.model.prediction
        if isinstance(schedule, Discrete):
            trained = (torch.arange(len(schedule.log_alphas)).double() + 1) / schedule.steps
            self.log_sigmas = -schedule.lam(trained)
        self.flow = isinstance(schedule, Flow)
        if self.flow:
            self.sigmas = torch.linspace(0.001, 1, 1000)
        elif isinstance(schedule, Discrete):
            self.sigmas = self.log_sigmas.exp()
        else:
            ends = torch.tensor([schedule.t_max, schedule.t_min], dtype=torch.float64)
            high, low = schedule.lam(ends).tolist()
            self.sigmas = torch.linspace(-low, -high, 1000, dtype=torch.float64).exp()

    @property
    def sigma_max(self) -> float:
        return self.sigmas[-1].item()

    def timestep(self, sigma: Tensor) -> Tensor:
        schedule = self.plan.noise_schedule
        if isinstance(schedule, Discrete):  # the nearest trained step
            apart = (sigma.double().log().reshape(-1, 1) - self.log_sigmas).abs()
            return apart.argmin(1).view(sigma.shape)
        if self.flow:
            return sigma * 1000
        return 0.25 * sigma.log() if isinstance(schedule, EDM) else schedule.time_at(-sigma.log())

    def calculate_input(self, sigma: Tensor, x: Tensor) -> Tensor:
        if self.flow or isinstance(self.plan.noise_schedule, EDM):
            return x
        return x / torch.sqrt(_wide(sigma, x) ** 2 + 1)

    def calculate_denoised(
        self, sigma: Tensor, model_output: Tensor, model_input: Tensor
    ) -> Tensor:
        level = _wide(sigma, model_input)
        if self.predicts in ("eps", "flow"):
            return model_input - model_output * level
        if self.predicts == "v":
            norm = level**2 + 1
            return model_input / norm - model_output * level / norm.sqrt()
        return model_output if self.predicts == "x0" else model_input + model_output * level

    def noise_scaling(self, sigma: Tensor, noise: Tensor, latent: Tensor, whole: bool) -> Tensor:
        if self.flow:
            return sigma * noise + (1 - sigma) * latent
        return noise * (torch.sqrt(1 + sigma**2) if whole else sigma) + latent

    def inverse_noise_scaling(self, sigma: Tensor, latent: Tensor) -> Tensor:
        return latent / (1 - sigma) if self.flow else latent


class Model:
    """A MODEL: a network and patches on top of it."""

    def __init__(self, plan: Plan, network: Network) -> None:
        self.plan, self.network = plan, network
        self.objects: dict[str, Any] = {"model_sampling": Sampling(plan)}

    def clone(self) -> "Model":
        other = Model(self.plan, self.network)
        other.objects = dict(self.objects)
        return other

    @property
    def model_sampling(self) -> Any:
        return self.objects["model_sampling"]

    def get_model_object(self, name: str) -> Any:
        return self.objects[name]

    def add_object_patch(self, name: str, value: Any) -> None:
        self.objects[name] = value

    def __call__(self, x: Tensor, sigma: Tensor, model_options: object = None) -> Tensor:
        """x0 at a noise level (B,): what samplers ask for."""
        sampling = self.objects["model_sampling"]
        told = sampling.timestep(sigma).float()[0].item()
        output = self.network(sampling.calculate_input(sigma, x), self.time(told))
        found: Tensor = sampling.calculate_denoised(sigma, output, x)
        return found

    def time(self, told: float) -> float:
        """The plan's time of a network time."""
        schedule = self.plan.noise_schedule
        if isinstance(schedule, EDM):
            return float(torch.tensor(4 * told).double().exp())
        return from_network_units(schedule, told)


class KSAMPLER:
    """A SAMPLER: a function in k-diffusion's form."""

    def __init__(self, sampler_function: Callable[..., Tensor]) -> None:
        self.sampler_function = sampler_function


class CFGGuider:
    """A GUIDER: a model with its conditions. Here a condition is a factor of x0."""

    def __init__(self, model_patcher: Model) -> None:
        self.inner_model = model_patcher
        self.conds: dict[str, float] = {}

    def set_conds(self, positive: float, negative: float) -> None:
        self.conds = {"positive": positive, "negative": negative}

    def set_cfg(self, cfg: float) -> None:
        self.cfg = cfg

    def predict_noise(self, x: Tensor, timestep: Tensor, model_options: object = None) -> Tensor:
        conds = [self.conds[name] for name in ("positive", "negative")]
        with_cond, without = calc_cond_batch(self.inner_model, conds, x, timestep, model_options)
        return without + self.cfg * (with_cond - without)

    @property
    def model_sampling(self) -> Any:
        return self.inner_model.model_sampling

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        return self.predict_noise(x, sigma)


def calc_cond_batch(
    model: Model, conds: list[float], x: Tensor, timestep: Tensor, model_options: object
) -> list[Tensor]:
    """x0 for each condition."""
    return [cond * model(x, timestep) for cond in conds]


def modules() -> dict[str, ModuleType]:
    """`comfy` and `comfy.samplers`."""
    package, samplers = ModuleType("comfy"), ModuleType("comfy.samplers")
    samplers.__dict__.update(
        KSAMPLER=KSAMPLER, CFGGuider=CFGGuider, calc_cond_batch=calc_cond_batch
    )
    package.__dict__["samplers"] = samplers
    return {"comfy": package, "comfy.samplers": samplers}


class Masked:
    """The denoiser that samplers get: outside of a mask it sees and answers the given latent."""

    def __init__(self, model: Model | CFGGuider, noise: Tensor, latent: Tensor) -> None:
        self.inner_model, self.noise, self.latent_image = model, noise, latent

    def __call__(self, x: Tensor, sigma: Tensor, denoise_mask: Tensor | None) -> Tensor:
        if denoise_mask is None:
            return self.inner_model(x, sigma)
        keep = 1 - denoise_mask
        sampling = self.inner_model.model_sampling
        noisy = sampling.noise_scaling(_wide(sigma, x), self.noise, self.latent_image, False)
        found = self.inner_model(x * denoise_mask + noisy * keep, sigma)
        return found * denoise_mask + self.latent_image * keep


def sample_custom(
    model: Model,
    sampler: KSAMPLER,
    sigmas: Tensor,
    noise: Tensor,
    latent: Tensor | None = None,
    mask: Tensor | None = None,
    guider: CFGGuider | None = None,
) -> Tensor:
    """What SamplerCustom does, without guidance, or SamplerCustomAdvanced with a guider."""
    sampling = model.get_model_object("model_sampling")
    latent = torch.zeros_like(noise) if latent is None else latent
    whole = bool(sigmas[0] >= sampling.sigma_max * (1 - 1e-5))
    x = sampling.noise_scaling(sigmas[0].to(noise), noise, latent, whole)
    extra, shown = {"denoise_mask": mask}, Masked(guider or model, noise, latent)
    x = sampler.sampler_function(shown, x, sigmas, extra_args=extra, callback=None, disable=True)
    found: Tensor = sampling.inverse_noise_scaling(sigmas[-1].to(noise), x)
    return found


def _wide(sigma: Tensor, x: Tensor) -> Tensor:
    return sigma.view(sigma.shape[:1] + (1,) * (x.ndim - 1))
