"""The models inside the package as diffusers pipelines: how to bring a network of your own there.

A pipeline needs a network (`ModelMixin`), a decoder, a scheduler. `fashion` was trained as an EDM
denoiser, D(x; sigma) with noise up to sigma = 80; pipelines take a variance preserving eps network
whose time is one of 1000 steps. With x = alpha x', rho = sigma/alpha both are the same:

    eps(x, n) = (x - alpha D(x / alpha; rho)) / sigma        alpha, sigma at step n

Its 1000 steps are those of EDM's grid, rho from 0.002 to 80. (A table that ends at more noise, as
that of Stable Diffusion, would leave it in the pixels.) The others take their own times.

    python examples/diffusers_fashion.py --model fashion-flow --out demo

learns a plan for 5 evaluations of the pipeline and draws what stock schedulers and the plan make of
the same noise.
"""

import argparse
import math
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    DiTPipeline,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor

import ld3
from ld3 import zoo
from ld3.diffusers import LD3Scheduler
from ld3.report.figures import draw_rows
from ld3.zoo.networks import NO_LABEL, Autoencoder
from ld3.zoo.shipped import CLASSES, network, of_network, unet

EDM_STEPS = ld3.make_grid("edm", ld3.EDM(), 999).times.flip(0)  # rho of step n, rising
LDM = {"beta_schedule": "scaled_linear", "beta_start": 0.0015, "beta_end": 0.0195}
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}


@cache
def edm_table() -> ld3.Discrete:
    """EDM's noise levels as a variance preserving table."""
    return ld3.Discrete.from_alphas_cumprod((1 / (1 + EDM_STEPS**2)).tolist())


def edm_betas() -> list[float]:
    """The same as diffusers takes it: beta_n = 1 - alpha_n^2 / alpha_{n-1}^2."""
    squares = [1.0, *(math.exp(2 * value) for value in edm_table().log_alphas)]
    return [1 - after / before for before, after in pairwise(squares)]


class FashionNetwork(ModelMixin, ConfigMixin):
    """A shipped network that is called as a DiT is: (x, step, class)."""

    @register_to_config
    def __init__(
        self,
        name: str = "fashion",
        in_channels: int = 1,
        out_channels: int = 1,
        sample_size: int = 28,
        num_embeds_ada_norm: int = NO_LABEL,  # the number of classes, by the name a DiT has for it
    ) -> None:
        super().__init__()
        self.net = unet(name, "cpu")

    def forward(
        self,
        hidden_states: Tensor,  # (B,C,H,W)
        timestep: Tensor,  # () or (B,): the step n, or 1000 t for a flow
        class_labels: Tensor,  # (B,), 10 and more: none
        return_dict: bool = True,
    ) -> Transformer2DModelOutput | tuple[Tensor]:
        x, name = hidden_states, self.config.name
        model = of_network(name, self.net)
        label = class_labels.clamp(max=NO_LABEL)
        n = timestep.double().expand(len(x))
        if name == "fashion-flow":
            out = model.raw(x, n / 1000, label)
        elif name == "fashion-latent":
            out = model.raw(x, (n + 1) / 1000, label)
        else:
            schedule = edm_table()
            t = (n + 1) / 1000
            alpha, sigma = (f(t).exp() for f in (schedule.log_alpha, schedule.log_sigma))
            a, s = (value.to(x.dtype)[:, None, None, None] for value in (alpha, sigma))
            out = (x - a * model.raw(x / a, sigma / alpha, label)) / s
        return Transformer2DModelOutput(sample=out) if return_dict else (out,)


class FashionDecoder(ModelMixin, ConfigMixin):
    """The decoder of `fashion-latent`; for pixels it does nothing."""

    @register_to_config
    def __init__(self, latent: bool = False, scaling_factor: float = 1.0) -> None:
        super().__init__()
        self.net = network("autoencoder", Autoencoder, "cpu") if latent else torch.nn.Identity()
        self.register_buffer("one", torch.ones(1))  # so that it has a place and a dtype

    def decode(self, z: Tensor) -> DecoderOutput:
        return DecoderOutput(sample=self.net.decode(z) if self.config.latent else z)


class FashionPipeline(DiTPipeline):
    """Clothes of ten classes. Unlike a DiT's, its call takes flow schedulers and the noise."""

    @torch.no_grad()
    def __call__(
        self,
        class_labels: list[int],
        guidance_scale: float = 1.0,
        num_inference_steps: int = 5,
        latents: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Images (B,1,28,28) in [-1, 1]; `latents` is noise of unit variance."""
        config, scheduler, count = self.transformer.config, self.scheduler, len(class_labels)
        shape = (count, config.in_channels, config.sample_size, config.sample_size)
        label = torch.tensor(class_labels, device=self.device)
        x = torch.randn(shape, generator=generator) if latents is None else latents
        x = x.to(self.device, self.transformer.dtype) * getattr(scheduler, "init_noise_sigma", 1.0)
        scheduler.set_timesteps(num_inference_steps)
        for t in scheduler.timesteps:
            scale = getattr(scheduler, "scale_model_input", lambda sample, timestep: sample)
            inner = scale(x, t)
            out = self.transformer(inner, timestep=t, class_labels=label).sample
            if guidance_scale != 1:
                none = torch.full_like(label, NO_LABEL)
                empty = self.transformer(inner, timestep=t, class_labels=none).sample
                out = torch.lerp(empty, out, guidance_scale)
            x = scheduler.step(out, t, x).prev_sample
        return self.vae.decode(x / self.vae.config.scaling_factor).sample


def fashion() -> FashionPipeline:
    """Pixels, noise prediction, EDM's noise levels."""
    scheduler = DPMSolverMultistepScheduler(trained_betas=edm_betas())
    return _pipeline(FashionNetwork("fashion"), scheduler)


def fashion_flow() -> FashionPipeline:
    """Pixels, rectified flow."""
    return _pipeline(FashionNetwork("fashion-flow"), FlowMatchEulerDiscreteScheduler())


def fashion_latent() -> FashionPipeline:
    """Latents 4x7x7, v-prediction, the latent diffusion schedule."""
    net = FashionNetwork("fashion-latent", in_channels=4, out_channels=4, sample_size=7)
    scheduler = DPMSolverMultistepScheduler(**LDM, prediction_type="v_prediction")
    return _pipeline(net, scheduler, FashionDecoder(latent=True))


PIPELINES = {"fashion": fashion, "fashion-flow": fashion_flow, "fashion-latent": fashion_latent}


def _pipeline(net: FashionNetwork, scheduler: Any, coder: Any = None) -> FashionPipeline:
    return FashionPipeline(net, coder or FashionDecoder(), scheduler, dict(enumerate(CLASSES)))


def stock(pipe: FashionPipeline) -> dict[str, Any]:
    """Stock schedulers for the same network."""
    if isinstance(pipe.scheduler, FlowMatchEulerDiscreteScheduler):
        return {
            "Euler": FlowMatchEulerDiscreteScheduler(),
            "DPM++": DPMSolverMultistepScheduler(**FLOW),
            "UniPC": UniPCMultistepScheduler(**FLOW),
        }
    kinds = {
        "Euler": EulerDiscreteScheduler,
        "DPM++": DPMSolverMultistepScheduler,
        "UniPC": UniPCMultistepScheduler,
    }
    return {name: kind.from_config(pipe.scheduler.config) for name, kind in kinds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(PIPELINES), default="fashion")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--guidance", type=float, default=1.0)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--plan", type=Path, help="a plan of this pipeline instead of a new one")
    parser.add_argument("--out", type=Path, default=Path("demo"))
    args = parser.parse_args()

    pipe = PIPELINES[args.model]()
    if args.plan is None:
        spec = ld3.RunSpec(
            model=f"examples.diffusers_fashion:{args.model}",
            nfe=(args.steps,),
            guidance=args.guidance,
            preset=args.preset,
            out=args.out / "runs",
        )
        plan = next(iter(ld3.run_learn(spec, model=zoo.from_pipeline(pipe)))).plan
    else:
        plan = ld3.Plan.load(args.plan)
    labels = list(range(10))
    config = pipe.transformer.config
    z = ld3.noise(labels, (config.in_channels, config.sample_size, config.sample_size))
    schedulers = stock(pipe)
    rows = []
    for name, scheduler, steps in (
        ("accurate", schedulers["UniPC"], 60),
        *((name, scheduler, args.steps) for name, scheduler in schedulers.items()),
        ("learned", LD3Scheduler.from_plan(plan), args.steps),
    ):
        pipe.scheduler = scheduler
        rows.append((f"{name}, {steps}", pipe(labels, args.guidance, steps, latents=z)))
        apart = (rows[-1][1] - rows[0][1]).square().mean().sqrt()
        print(f"{rows[-1][0]:<14} root mean square distance to the accurate run {apart:.4f}")
    file = args.out / f"{args.model}-pipeline.png"
    draw_rows(file, rows)
    print(f"image {file}")


if __name__ == "__main__":
    main()
