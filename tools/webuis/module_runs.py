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
from types import ModuleType, SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import torch
from rows import apart

from ld3.export import Wish, export_plans
from ld3.export.check import Spy, load_file
from ld3.schedules import Discrete
from plans import make_plan

TOOL, CHECKOUT, KDIFFUSION, OUT = sys.argv[1], *map(Path, sys.argv[2:5])
SHAPE = (16, 24, 1, 1)  # samples, dimensions of the test problem


class Nothing:
    """Settings that are off, functions that do nothing."""

    def __init__(self, *words, **names):
        self.__dict__.update(names)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *words, **names):
        return Nothing()

    def __bool__(self):
        return False

    def __eq__(self, other):
        return other in (0, False, None)

    __hash__ = object.__hash__


class Empty(ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


def package(name, folder):
    """A package whose own __init__ is not run, so that only what is used must be installed."""
    made = ModuleType(name)
    made.__path__ = [str(folder)]
    sys.modules[name] = made


def network(spy, schedule):
    """The network of the test problem, told trained steps."""

    def output(x, told, cond=None):
        flat = x.flatten(1)
        return spy.output(flat, (told.flatten()[0].item() + 1) / schedule.steps).to(x).view_as(x)

    return output


def alphas_cumprod(schedule):
    return torch.tensor(schedule.log_alphas, dtype=torch.float64).mul(2).exp()


def main():
    sys.path.insert(0, str(CHECKOUT))
    if TOOL == "forge":
        forge_stubs()
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
    shared = stubs()
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


def accurate(plan, spy, level):
    """The ODE from the image 0.3 with noise of this level, by 200 steps of DPM++."""
    import ld3

    schedule = plan.noise_schedule
    first = schedule.time_at(-torch.tensor(level, dtype=torch.float64).log())
    lams = torch.linspace(schedule.lam(first).item(), schedule.lam(plan.grid.times[-1]).item(), 201)
    times = schedule.time_at(lams.double())
    times[-1] = plan.grid.times[-1]
    k = ld3.knots(schedule, ld3.TimeGrid.of(times))
    alpha, sigma = schedule.log_alpha(first).exp(), schedule.log_sigma(first).exp()
    x = alpha * 0.3 + sigma * spy.noise
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


def stubs():
    """Empty modules for the user interface; the settings that samplers read."""
    package("modules", CHECKOUT / "modules")
    options = Nothing(
        hide_samplers=[], batch_cond_uncond=True, live_preview_content="Prompt", rho=0,
        sigma_min=0, sigma_max=0, img2img_extra_noise=0, skip_early_cond=0.0, s_min_uncond_all=0,
        img2img_fix_steps=False, always_discard_next_to_last_sigma=False,
        eta_ancestral=1.0, sgm_noise_multiplier=False,
    )  # fmt: skip
    state = SimpleNamespace(
        interrupted=False, skipped=False, sampling_step=0, sampling_steps=0, job_no=0
    )
    names = [
        "shared",
        "devices",
        "images",
        "sd_vae_approx",
        "sd_vae_taesd",
        "sd_models",
        "scripts",
        "script_callbacks",
        "extra_networks",
        "sd_samplers_timesteps",
        "sd_samplers_lcm",
    ]
    for name in names:
        sys.modules[f"modules.{name}"] = Empty(f"modules.{name}")
        setattr(sys.modules["modules"], name, sys.modules[f"modules.{name}"])
    shared, devices = sys.modules["modules.shared"], sys.modules["modules.devices"]
    shared.__dict__.update(opts=options, state=state, total_tqdm=Nothing())
    devices.__dict__.update(cpu="cpu", device="cpu")
    sys.modules["modules.sd_samplers_timesteps"].samplers_data_timesteps = []
    sys.modules["modules.sd_samplers_lcm"].samplers_data_lcm = []
    callbacks = sys.modules["modules.script_callbacks"]
    for kind, fields in {
        "CFGDenoiserParams": "x image_cond sigma step steps text_cond text_uncond denoiser",
        "CFGDenoisedParams": "x step steps inner_model", "AfterCFGCallbackParams": "x step steps",
    }.items():  # fmt: skip

        def make(*words, fields=fields):
            return SimpleNamespace(**dict(zip(fields.split(), words, strict=True)))

        callbacks.__dict__[kind] = make
    for name in ("cfg_denoiser_callback", "cfg_denoised_callback", "cfg_after_cfg_callback"):
        callbacks.__dict__[name] = Nothing()
    return shared


def forge_stubs():
    """Forge's memory and control code stays out; its predictor reads the network's answers."""
    package("modules_forge", CHECKOUT / "modules_forge")
    package("backend", CHECKOUT / "backend")
    for name in (
        "modules_forge.main_entry",
        "modules_forge.alter_samplers",
        "diffusers.pipelines.flux.pipeline_flux",
        "backend.sampling",
        "backend.sampling.sampling_function",
    ):
        sys.modules[name] = Empty(name)
    sys.modules["modules_forge.alter_samplers"].samplers_data_alter = []
    for name in ("main_entry", "alter_samplers"):
        setattr(sys.modules["modules_forge"], name, sys.modules[f"modules_forge.{name}"])

    def sampling_function(denoiser, denoiser_params, cond_scale, cond_composition):
        model = denoiser.inner_model.inner_model.forge_objects.unet.model
        x, sigma = denoiser_params.x, denoiser_params.sigma
        told = model.predictor.timestep(sigma).float()
        output = model.diffusion_model(model.predictor.calculate_input(sigma, x), told)
        found = model.predictor.calculate_denoised(sigma, output, x)
        return found, found, found

    part = sys.modules["backend.sampling.sampling_function"]
    part.__dict__.update(
        sampling_function=sampling_function, sampling_prepare=Nothing(), sampling_cleanup=Nothing()
    )


main()
