"""Runs inside a tool's Python: an exported plan in the sampling modules of the tool.

    python module_runs.py kdiffusion|a1111|forge CHECKOUT KDIFFUSION OUT

The modules of samplers, schedules and denoisers are the tool's own. What they import of the user
interface (settings, devices, previews, callbacks) is replaced by objects that do nothing.
"""

import contextlib
import importlib
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import torch
from module_stubs import forge_stubs, package, web_ui_stubs
from rows import apart

from ld3.export import Wish, export_plans
from ld3.export.check import Spy, load_file
from ld3.schedules import Discrete
from plans import make_plan

TOOL, CHECKOUT, KDIFFUSION, OUT = sys.argv[1], *map(Path, sys.argv[2:5])
SHAPE = (16, 24, 1, 1)  # samples, dimensions of the test problem


def network(spy, schedule):
    """The network of the test problem; its times are trained steps."""

    def output(x, told, cond=None):
        flat = x.flatten(1)
        return spy.output(flat, (told.flatten()[0].item() + 1) / schedule.steps).to(x).view_as(x)

    return output


def alphas_cumprod(schedule):
    return torch.tensor(schedule.log_alphas, dtype=torch.float64).mul(2).exp()


def main():
    sys.path.insert(0, str(CHECKOUT))
    if TOOL == "forge":
        forge_stubs(CHECKOUT)
    package("k_diffusion", (CHECKOUT if TOOL == "forge" else KDIFFUSION) / "k_diffusion")
    for part in ("utils", "sampling", "external"):
        made = importlib.import_module(f"k_diffusion.{part}")
        setattr(sys.modules["k_diffusion"], part, made)
    rows = list(kdiffusion() if TOOL == "kdiffusion" else web_ui())
    OUT.write_text(json.dumps(rows))


def kdiffusion():
    """CompVisDenoiser and samplers of k-diffusion with the exported file."""
    import k_diffusion

    for prediction in ("eps", "v"):
        plan = make_plan("sd", "dpmpp", 3, prediction=prediction)
        spy, schedule = Spy.of(plan), plan.noise_schedule
        kinds = {"eps": "CompVisDenoiser", "v": "CompVisVDenoiser"}

        def denoiser(kind, spy=spy, schedule=schedule):
            inner = SimpleNamespace(alphas_cumprod=alphas_cumprod(schedule).float())
            inner.apply_model = network(spy, schedule)
            return getattr(k_diffusion.external, kind)(inner, quantize=False)

        (path,) = export_plans("kdiffusion", [plan], OUT.parent).files
        module = load_file(path, "exported")
        sigmas = module.sigmas(5)
        x = spy.noise.view(SHAPE).float() * sigmas[0]
        own, text = denoiser(kinds[prediction]), {"cond": None}
        sample = module.sample(own, x, sigmas, text)
        yield f"sample, {prediction}", "ours", spy.loss(sample.flatten(1))
        memory = {}
        middle = module.sample(own, x, sigmas[:3], text, memory=memory)
        again = module.sample(own, middle, sigmas[2:], text, memory=memory)
        yield f"split, {prediction}", "ours, unsplit", spy.loss(again.flatten(1))
        other = "v" if prediction == "eps" else "eps"
        wrong = partial(module.sample, denoiser(kinds[other]), x, sigmas, text)
        yield f"a plan for {prediction}, a denoiser for {other}", "refused", refused(wrong)
    stock = {
        "euler": ("sample_euler", 1, None), "heun": ("sample_heun", 2, None),
        "dpmpp": ("sample_dpmpp_2m", 2, None), "dpmpp full": ("sample_dpmpp_2m", 2, "full"),
    }  # fmt: skip
    for name, (function, order, variant) in stock.items():
        plan = make_plan("edm", name.split()[0], order, variant=variant, prediction="x0",
                         net_times=False, corrections=False)  # fmt: skip
        spy = Spy.of(plan)
        (path,) = export_plans("kdiffusion", [plan], OUT.parent).files
        sigmas = load_file(path, "exported").sigmas(5).double()
        x = spy.noise * sigmas[0]
        sample = getattr(k_diffusion.sampling, function)(spy.denoiser, x, sigmas, disable=True)
        solver = f"{name.split()[0]}:{order}" + (f":{variant}" if variant else "")
        limit = None if name == "dpmpp" else 1e-4
        yield f"{function} on the sigmas of a {solver} plan", "ours", spy.loss(sample), limit


def refused(run):
    try:
        run()
    except ValueError as error:
        return "use a plan that was learned for this model" in str(error)
    return False


def web_ui():
    """The samplers that the exported extension registers, made and called as the web UI does."""
    plans = [make_plan("sd", "dpmpp", 3, steps=n) for n in (5, 8)]
    schedule = plans[0].noise_schedule
    shared = web_ui_stubs(CHECKOUT)
    export_plans("a1111-pack", plans, OUT.parent, Wish(name="x"))
    flow = make_plan("flow", "dpmpp", 3, prediction="flow", steps=6)
    script = export_plans("a1111-pack", [flow], OUT.parent, Wish(name="flow")).files[0]
    sd_samplers = importlib.import_module("modules.sd_samplers")
    script = load_file(script, "exported")

    def sampler_of(plan, name="LD3 x"):
        spy = Spy.of(plan)
        shared.sd_model = loaded(network(spy, schedule), schedule)
        return spy, sd_samplers.create_sampler(name, shared.sd_model)

    def text_to_image(plan, steps, name="LD3 x", scheduler="Automatic"):
        spy, sampler = sampler_of(plan, name)
        p = settings(shared, steps, scheduler)
        x = spy.noise.view(SHAPE).float()
        sample = sampler.sample(p, x, *texts(steps), image_conditioning=x)
        return spy, sample.flatten(1)

    for plan in plans:
        spy, sample = text_to_image(plan, plan.nfe)
        yield f"text to image, {plan.nfe} steps", "ours", spy.loss(sample)
    if TOOL == "forge":
        with rounding(script):
            spy, sample = text_to_image(plans[1], 8)
            yield "the same with times as Forge rounds them", "ours", spy.loss(sample), None
    top = plans[1].noise_schedule.lam(plans[1].grid.times[0]).neg().exp().item()
    spy, sample = text_to_image(plans[1], 8)
    found = apart(sample, accurate(plans[1], spy, top, 0.0))
    yield "text to image, 8 steps", "an accurate solution", found, None
    spy, sample = text_to_image(plans[1], 20)
    yield "20 steps", "ours, 8 steps", spy.loss(sample)
    spy, sample = text_to_image(plans[1], 20, scheduler="Karras")
    yield "20 steps, schedule type Karras", "ours, 8 steps", spy.loss(sample), 1e-3
    shared.opts.always_discard_next_to_last_sigma = True
    spy, sample = text_to_image(plans[1], 8)
    shared.opts.always_discard_next_to_last_sigma = False
    yield "the next-to-last sigma discarded", "ours", spy.loss(sample)

    def image_to_image(plan, strength, steps):
        """`steps` given: Hires fix, and image to image with exactly these steps."""
        spy, sampler = sampler_of(plan)
        p = settings(shared, plan.nfe, "Automatic", strength)
        x = torch.full(SHAPE, 0.3)
        noise = spy.noise.view(SHAPE).float()
        words = {"steps": steps, "image_conditioning": x}
        sample = sampler.sample_img2img(p, x, noise, *texts(plan.nfe), **words)
        return spy, sample.flatten(1)

    spy, sample = image_to_image(plans[1], 0.5, None)
    yield "image to image, strength 0.5", "ours", apart(sample, tail(plans[1], spy, 3))
    spy, sample = image_to_image(plans[1], 0.7, 8)
    fine = accurate(plans[1], spy, hires_level(plans, 8, 0.7))
    yield (
        f"Hires fix, strength 0.7: {len(spy.told)} evaluations",
        "an accurate solution",
        apart(sample, fine),
        None,
    )
    yield (
        "a flow plan on Stable Diffusion",
        "refused",
        refused(lambda: text_to_image(plans[0], 6, "LD3 flow")),
    )


@contextlib.contextmanager
def rounding(module):
    """Forge without the patch of times."""
    from contextlib import nullcontext

    kept, module.keeping_fractions = module.keeping_fractions, lambda model: nullcontext()
    try:
        yield
    finally:
        module.keeping_fractions = kept


def tail(plan, spy, first):
    """Our sample from the image 0.3 on: the end of the x0 form."""
    schedule = plan.noise_schedule
    t = plan.grid.times[first]
    alpha, sigma = schedule.log_alpha(t).exp(), schedule.log_sigma(t).exp()

    def denoise(x, t):
        return spy.model.denoise(x / schedule.log_alpha(t).exp(), torch.exp(-schedule.lam(t)))

    table = plan.table_for(schedule, "x0").tail(first)
    return table.run(denoise, alpha * 0.3 + sigma * spy.noise)


def accurate(plan, spy, level, image=0.3):
    """The ODE from an image with noise of this level, by 200 steps of DPM++."""
    import ld3

    schedule = plan.noise_schedule
    first = schedule.time_at(-torch.tensor(level, dtype=torch.float64).log())
    lams = torch.linspace(schedule.lam(first).item(), schedule.lam(plan.grid.times[-1]).item(), 201)
    times = schedule.time_at(lams.double())
    times[-1] = plan.grid.times[-1]
    k = ld3.knots(schedule, ld3.TimeGrid.of(times))
    alpha, sigma = schedule.log_alpha(first).exp(), schedule.log_sigma(first).exp()
    x = alpha * image + sigma * spy.noise
    return ld3.integrate(ld3.bind(spy.model), ld3.make_solver("dpmpp", 3), k, x)


def hires_level(plans, steps, strength):
    from ld3.export.files.ld3_plans import sigmas_of
    from ld3.export.numbers import record

    total = int(steps / strength)
    return sigmas_of([record(plan) for plan in plans], total)[total - steps].item()


def texts(steps):
    """A prompt and a negative prompt, as the web UI parses them."""
    from modules import prompt_parser

    text = torch.zeros(1, 1)
    parts = [prompt_parser.ScheduledPromptConditioning(steps, text)]
    weighted = prompt_parser.ComposableScheduledPromptConditioning(parts, 1.0)
    count = SHAPE[0]
    both = prompt_parser.MulticondLearnedConditioning((count,), [[weighted]] * count)
    return both, [parts] * count


def settings(shared, steps, scheduler, strength=1.0):
    return SimpleNamespace(
        steps=steps, scheduler=scheduler, hr_scheduler=None, is_hr_pass=False, cfg_scale=1.0,
        sampler_noise_scheduler_override=None, extra_generation_params={}, eta=None, rng=None,
        s_min_uncond=0.0, image_cfg_scale=None, scripts=None, denoising_strength=strength,
        refiner_switch_at=None, refiner_checkpoint_info=None, enable_hr=False, seeds=[0],
    )  # fmt: skip


def loaded(output, schedule: Discrete):
    """A loaded Stable Diffusion model, as far as samplers see it."""
    model = SimpleNamespace(
        alphas_cumprod=alphas_cumprod(schedule).float(), parameterization="eps", is_sdxl=False,
        cond_stage_key="txt", model=SimpleNamespace(conditioning_key="crossattn"), device="cpu",
        sd_checkpoint_info=None, apply_model=output,
    )  # fmt: skip
    if TOOL == "forge":
        from backend.modules.k_prediction import Prediction

        unet = SimpleNamespace(
            model=SimpleNamespace(predictor=Prediction(prediction_type="epsilon"))
        )
        unet.model.diffusion_model = output
        model.forge_objects = SimpleNamespace(unet=unet)
    return model


main()
