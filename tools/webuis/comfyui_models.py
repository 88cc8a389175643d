"""Runs inside ComfyUI's Python: tiny checkpoints with random weights, and our samples of them.

    python comfyui_models.py make FOLDER            the checkpoints
    python comfyui_models.py ours CASES OUT         what this library samples with the same networks

The networks are ComfyUI's own classes, small: a U-Net that is read as Stable Diffusion 1.5, and two
transformers that are read as Wan 2.1. Run in the folder of ComfyUI, with ld3 on the path.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, ".")
ARGUMENTS, sys.argv[1:] = sys.argv[1:], ["--cpu"]  # ComfyUI reads the command line when imported

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()

import comfy.ops  # noqa: E402
import comfy.sample  # noqa: E402
import comfy.sd  # noqa: E402
import torch  # noqa: E402
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel  # noqa: E402
from comfy.ldm.wan.model import WanModel  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import ld3  # noqa: E402
from ld3.predictions import to_x0  # noqa: E402

TOKENS = {"sd": (77, 768), "wan": (16, 4096)}


def unet():
    return UNetModel(
        image_size=32, in_channels=4, out_channels=4, model_channels=320, num_res_blocks=[1],
        dropout=0, channel_mult=(1,), num_heads=8, use_spatial_transformer=True,
        transformer_depth=[1], transformer_depth_middle=1, transformer_depth_output=[1, 1],
        context_dim=768, legacy=False, operations=comfy.ops.manual_cast,
    )  # fmt: skip


def wan():
    return WanModel(
        dim=128, ffn_dim=128, num_heads=1, num_layers=1, operations=comfy.ops.manual_cast
    )


def make(folder):
    """Weights of standard deviation 1/sqrt(inputs), so that answers have about unit size."""
    for seed, (name, kind) in enumerate({"sd": unet, "wan-high": wan, "wan-low": wan}.items()):
        generator = torch.Generator().manual_seed(seed)
        weights = {}
        for key, value in kind().state_dict().items():
            drawn = torch.randn(value.shape, generator=generator)
            scale = value[0].numel() ** -0.5 if value.ndim > 1 else 0.05
            shift = 1.0 if value.ndim == 1 and key.endswith("weight") else 0.0
            weights[key] = shift + scale * drawn
        save_file(weights, Path(folder) / f"{name}.safetensors")


def condition(seed, family):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, *TOKENS[family], generator=generator)


def pass_of(model, family, seed):
    """(x, time) -> output under one text, as a plan's table asks for it."""
    base, text = model.model, condition(seed, family)

    def network(x, t):
        told = 1000 * t - 1 if family == "sd" else 1000 * t
        told = told.float().reshape(1)
        return base.diffusion_model(x, told, context=text, transformer_options={}).float()

    return network


def network_of(model, family, guidance):
    """(x, time) -> output with classifier-free guidance."""
    positive, negative = (pass_of(model, family, seed) for seed in (1, 2))

    def network(x, t):
        without = negative(x, t)
        return without + guidance * (positive(x, t) - without)

    return network


@torch.no_grad()
def ours(case, folder):
    """A sample by the table of a plan, decoded as ComfyUI hands latents on."""
    plan = ld3.Plan.load(case["plan"])
    models = [
        comfy.sd.load_diffusion_model(str(Path(folder) / f"{name}.safetensors"))
        for name in case["models"]
    ]
    base = models[0].model
    networks = [network_of(model, case["family"], case["cfg"]) for model in models]
    shape = case["shape"]
    noise = comfy.sample.prepare_noise(torch.zeros(shape), case["seed"])
    first, asked = case["first"], 0
    schedule = plan.noise_schedule

    def network(x, t):
        nonlocal asked
        asked += 1
        late = case["switch"] is not None and first + asked > case["switch"]
        return networks[-1 if late else 0](x, t)

    if first == 0 and plan.guidance is not None:
        positive, negative = (pass_of(models[0], case["family"], seed) for seed in (1, 2))

        def both(x, t):
            answer = positive(x, t)
            return torch.stack([answer, (plan.model.guidance - 1) * (answer - negative(x, t))])

        passes = [both if n in plan.guidance.guided else positive for n in range(plan.nfe)]
        state = plan.table().run(passes, noise * schedule.prior_std)
    elif first == 0:
        state = plan.table().run(network, noise * schedule.prior_std)
    else:  # from an image: the end of the x0 form
        latent = base.process_latent_in(load_file(case["latent"])["latent_tensor"])
        alpha, sigma = (
            f(plan.grid.times[first]).exp().item() for f in (schedule.log_alpha, schedule.log_sigma)
        )

        start = alpha * latent + sigma * noise
        if plan.guidance is not None:
            answers = mixed(plan, first, *(pass_of(models[0], case["family"], n) for n in (1, 2)))
        else:
            answers = denoiser(plan, network)
        state = plan.without_guidance().table_for(schedule, "x0").tail(first).run(answers, start)
    return base.process_latent_out(state)


def denoiser(plan, network):
    """(x, time) -> x0."""
    schedule = plan.noise_schedule

    def denoise(x, t):
        pair = (schedule.log_alpha(t).exp().float(), schedule.log_sigma(t).exp().float())
        return to_x0(plan.model.prediction, network(x, t), x, *pair)

    return denoise


def mixed(plan, first, positive, negative):
    """m_j = c_j + sum_i A[j, i] e_i for each evaluation j from `first` on, with the direction there
    for those before it."""
    with_text, without = denoiser(plan, positive), denoiser(plan, negative)
    directions = {}

    def evaluation(n):
        def denoise(x, t):
            answer = with_text(x, t)
            directions[n] = (plan.model.guidance - 1) * (answer - without(x, t))
            for i, weight in zip(plan.guidance.guided, plan.guidance.rows[n], strict=False):
                answer = answer + weight * directions[max(i, first)]
            return answer

        return denoise

    return [evaluation(n) for n in range(first, plan.nfe)]


def main():
    if ARGUMENTS[0] == "make":
        make(ARGUMENTS[1])
        return
    cases = json.loads(Path(ARGUMENTS[1]).read_text())
    folder = ARGUMENTS[2]
    found = {name: ours(case, folder).contiguous() for name, case in cases.items()}
    save_file(found, ARGUMENTS[3])


main()
