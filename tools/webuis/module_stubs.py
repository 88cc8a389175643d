"""Empty objects in place of the user interfaces of AUTOMATIC1111 and Forge.

Modules that sample, schedule and denoise are the web UI's own. What these import besides (settings,
devices, previews, callbacks; in Forge the moving of models in memory) does nothing here.
"""

import sys
from types import ModuleType, SimpleNamespace


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


def web_ui_stubs(checkout):
    """Empty modules for the user interface; the settings that samplers read."""
    package("modules", checkout / "modules")
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


def forge_stubs(checkout):
    """Forge's memory and control code stays out; its predictor reads the network's answers."""
    package("modules_forge", checkout / "modules_forge")
    package("backend", checkout / "backend")
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
