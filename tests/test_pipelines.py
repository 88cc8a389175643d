"""Diffusers pipelines as models: tiny ones of every family, against what `pipe(...)` does."""

import inspect
import json
import logging
import shutil
import subprocess
import sys
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ld3
from ld3 import zoo
from ld3.cli import main
from ld3.distances import l2
from ld3.errors import Ld3Error, ModelError, SpecError
from ld3.learner.learn import learning
from ld3.learner.recipes import PaperRules
from ld3.model_checks import check_model, contents, identity_of
from ld3.models import bind_network
from ld3.options import CAPTIONS, PipelineOptions
from ld3.plan import Plan
from ld3.problem import Problem
from ld3.schedule_json import schedule_to_json
from ld3.schedules import Discrete, Flow
from ld3.teacher import Teacher, make_pairs
from ld3.zoo.loading import load_model
from ld3.zoo.pipelines import FAMILIES
from ld3.zoo.pipelines.folder import open_pipeline
from ld3.zoo.pipelines.model import PipelineModel, rounded
from ld3.zoo.pipelines.noise import DISCRETE, read_noise
from ld3.zoo.pipelines.texts import AT_ONCE, embedded

diffusers = pytest.importorskip("diffusers")
pytest.importorskip("transformers")

import pipelines as tiny  # noqa: E402  # after what it needs is known to be there
from ld3.diffusers import LD3Scheduler  # noqa: E402

# numpy 2 finds that torch tensors lack two new arguments when diffusers calls numpy on them
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]
every_family = pytest.mark.parametrize("name", tiny.TINY)


def test_every_prompt_and_class_is_in_the_identity() -> None:
    """Also of long lists, of which the tensors of conditions are not compared value by value."""
    texts, labels = [f"number {n}" for n in range(40)], [n % 5 for n in range(40)]
    sd, dit = tiny.sd(), tiny.dit()
    models = [
        zoo.from_pipeline(sd, prompts=texts),
        zoo.from_pipeline(sd, prompts=[*texts[:21], "another", *texts[22:]]),
        zoo.from_pipeline(sd, prompts=texts, tiling=True),
        zoo.from_pipeline(dit, classes=labels),
        zoo.from_pipeline(dit, classes=[*labels[:21], 4, *labels[22:]]),
    ]
    assert len({model.identity for model in models}) == 5
    assert zoo.from_pipeline(sd, prompts=texts).identity == models[0].identity


def test_embedding_many_prompts_holds_them_once() -> None:
    """Of the parts that the text encoders give, at most two are there at a time."""
    made: list[weakref.ref[Tensor]] = []
    most = 0

    def embed(prompts: list[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        nonlocal most
        most = max(most, 1 + sum(one() is not None for one in made))
        lengths = torch.tensor([float(len(prompt)) for prompt in prompts])
        text = lengths[:, None, None].expand(-1, int(lengths.max()), 3).clone()
        made.append(weakref.ref(text))
        return {"text": text, "pooled": lengths}, {"text": torch.ones(1, 2, 3),
                                                   "pooled": torch.ones(1)}  # fmt: skip

    prompts = [(1 + n % 30) * "x" for n in range(5 * AT_ONCE + 3)]
    rows, null = embedded(embed, PipelineOptions(prompts=tuple(prompts)), torch.float32)
    assert most <= 2
    assert rows["text"].shape == (len(prompts), 30, 3) and null["text"].shape == (1, 30, 3)
    for n, prompt in enumerate(prompts):
        batch = prompts[n - n % AT_ONCE :][:AT_ONCE]
        filled = max(map(len, batch))
        assert rows["pooled"][n] == len(prompt)
        assert bool((rows["text"][n, :filled] == len(prompt)).all())
        assert bool((rows["text"][n, filled:] == 0).all())


def model_of(name: str, pipe: Any, **more: Any) -> PipelineModel:
    """A tiny pipeline as a model that is asked what `tiny.CALLS` asks."""
    call = tiny.CALLS[name.split("-")[0]]
    words = {"prompt": "prompts", "class_labels": "classes", "num_frames": "frames"}
    words |= {"max_sequence_length": "tokens", "height": "height", "width": "width"}
    asked = {words[word]: value for word, value in call.items() if word in words}
    return zoo.from_pipeline(pipe, **asked, **more)


class Spy:
    """Keeps what a method is given and gives back."""

    def __init__(self, owner: Any, method: str) -> None:
        self.calls: list[tuple[dict[str, Any], Any]] = []
        original = getattr(owner, method)
        signature = inspect.signature(original)

        def spy(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            result = original(*args, **kwargs)
            self.calls.append((given, result))
            return result

        setattr(owner, method, spy)


def networks(pipe: Any) -> list[Any]:
    found = (getattr(pipe, name, None) for name in ("unet", "transformer", "transformer_2"))
    return [network for network in found if network is not None]


TRUE_GUIDANCE = ("flux", "flux-schnell", "qwen", "hunyuan")  # beside one that is a condition
BY_CALLS = ("flux", "wan", "qwen", "klein", "lumina2", "hunyuan")  # not in one batch
UNGUIDED = ("ddpm", "ldm", "flux2")
NO_NEGATIVE = (*UNGUIDED, "dit", "klein")


def guidance_words(name: str, scale: float) -> dict[str, Any]:
    """How `pipe(...)` is asked for classifier-free guidance."""
    if name == "flux2" or name in TRUE_GUIDANCE:
        true = {"true_cfg_scale": scale, "negative_prompt": [tiny.NEGATIVE] * 2}
        embedded = {} if name == "qwen" else {"guidance_scale": 3.5}
        return embedded if name == "flux2" else true | embedded
    if name in UNGUIDED:
        return {}
    words: dict[str, Any] = {"guidance_scale": scale - (name == "zimage")}  # counted from zero
    if scale > 1 and name not in NO_NEGATIVE:
        words["negative_prompt"] = tiny.NEGATIVE if name == "sana" else [tiny.NEGATIVE] * 2
    return words


@every_family
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_the_network_is_asked_as_by_the_pipeline(name: str, scale: float) -> None:
    """Same tensors in, same output, guidance included, at the pipeline's own states and times."""
    if name in UNGUIDED and scale > 1:
        pytest.skip("the pipeline has no guidance of two outputs")
    unconditional = name in ("ddpm", "ldm")
    pipe = tiny.TINY[name]()
    negative = None if name in NO_NEGATIVE else tiny.NEGATIVE
    model = model_of(name, pipe, negative_prompt=negative)
    inputs = [Spy(network, "forward") for network in networks(pipe)]
    steps = Spy(pipe.scheduler, "step")
    call = dict(tiny.CALLS[name.split("-")[0]]) | guidance_words(name, scale)
    call |= {"batch_size": 2} if unconditional else {}
    call |= {"generator": torch.Generator().manual_seed(1), "num_inference_steps": 4}
    pipe(**call, output_type="np")
    theirs = [spy.calls[:] for spy in inputs]
    for spy in inputs:
        spy.calls.clear()
    by = "calls" if name.startswith(BY_CALLS) else "batch"
    network = bind_network(model, model.conditions([0, 1]), guidance=scale, guide_by=by)
    with torch.no_grad():
        for given, _ in steps.calls:
            told = given["timestep"].double()
            t = (told + 1) / 1000 if isinstance(model.schedule, Discrete) else told / 1000
            x, out = given["sample"][:2], given["model_output"][:2]  # DiT doubles the batch
            assert (network(x, t) - out).abs().max() < 1e-5 * out.abs().max()
    for pipeline_calls, spy in zip(theirs, inputs, strict=True):
        assert pipeline_calls
        assert _tensors(pipeline_calls) == pytest.approx(_tensors(spy.calls), rel=1e-4)


def _tensors(calls: list[tuple[dict[str, Any], Any]]) -> dict[str, float]:
    """Each tensor argument of all calls as numbers that do not hang on the order of samples."""
    found: dict[str, float] = {}
    for given, _ in calls:
        flat = dict(given) | dict(given.get("added_cond_kwargs") or {})
        for word, value in flat.items():
            left_out = (
                "sample",
                "hidden_states",
                "encoder_hidden_states_mask",
            )  # Qwen: None or ones
            if isinstance(value, Tensor) and word not in left_out:
                # a time may be one for all or one a sample: its mean is the same
                found[word] = found.get(word, 0.0) + float(value.double().mean())
                if "time" not in word:
                    found[f"{word}, size"] = value.numel()
                    found[f"{word}, squares"] = float(value.double().square().sum())
    return found


@every_family
def test_a_few_iterations_and_a_sample(name: str) -> None:
    """Gradients reach the time; a plan is learned on latents and its samples decode."""
    pipe = tiny.TINY[name]()
    model = model_of(name, pipe, latents=True)
    check_model(model)
    solver, steps = ld3.make_solver("dpmpp", 2), 3
    pairs = make_pairs(model, range(4), Teacher("dpmpp", 2, "", "logsnr", 10))
    problem = Problem(model, solver, steps, l2, pairs, pairs)
    recipe = PaperRules(
        batch=4, epochs_times=0, epochs=4, rule_times="adam", rule_net="adam", rate_times=0.005,
        rate_net=0.005, gamma=0.0, decay="cosine", floor=0.01, clip=1e9,
    )  # fmt: skip
    start = ld3.make_grid("logsnr", model.schedule, steps)
    first, *_, last = learning(problem, recipe, start)
    assert last.best < first.best
    table = ld3.compile_table(solver, ld3.knots(model.schedule, last.tuned.grid), model.prediction)
    seeds = [5, 6]
    whole = replace(model, latents=False)
    with torch.no_grad():
        network = bind_network(whole, whole.conditions(seeds))
        sample = whole.decode(table.run(network, ld3.prior(whole, seeds)))
    sizes = {"ddpm": (3, 8, 8), "sana": (3, 32, 32), "wan": (3, 5, 64, 64), "lumina2": (3, 32, 32)}
    sizes |= {"hunyuan": (3, 5, 32, 32), "ltx": (3, 5, 32, 32)}
    assert sample.shape == (2, *sizes.get(name.split("-")[0], (3, 16, 16)))
    assert bool(torch.isfinite(sample).all())
    if name not in ("ddpm", "ldm", "dit"):  # these take no noise; tests/test_diffusers_scheduler.py
        _check_pipe(name, pipe, model, solver, last.tuned.grid)


def _check_pipe(
    name: str, pipe: Any, model: PipelineModel, solver: ld3.Solver, grid: ld3.TimeGrid
) -> None:
    """`pipe(...)` with the plan draws what our solver draws, guidance included."""
    scale = 1.0 if name in UNGUIDED else 3.0
    plan = Plan.checked(
        {
            "nfe": grid.steps,
            "solver": {"name": solver.name, "order": solver.order},
            "times": grid.times.tolist(),
            "net_times": grid.net_times.tolist(),
            "schedule": schedule_to_json(model.schedule),
            "model": {
                "name": name, "digest": model.digest, "shape": list(model.shape),
                "prediction": model.prediction,
            },
        }
    )  # fmt: skip
    pipe.scheduler = LD3Scheduler.from_plan(plan, like=pipe)
    asked = model_of(name, pipe, negative_prompt=None if name in NO_NEGATIVE else tiny.NEGATIVE)
    x = ld3.prior(model, [5, 6])
    words = dict(tiny.CALLS[name.split("-")[0]]) | guidance_words(name, scale)
    latents = x
    if name in ("flux2", "klein"):  # taken before they are packed
        side = int(len(x[0]) ** 0.5)
        latents = x.transpose(1, 2).reshape(2, -1, side, side)
    states = Spy(pipe.scheduler, "step")
    pipe(**words, latents=latents, num_inference_steps=plan.nfe, output_type="latent")
    found = states.calls[-1][1]
    with torch.no_grad():
        denoise = ld3.bind(asked, asked.conditions([0, 1]), guidance=scale)
        wanted = ld3.integrate(denoise, solver, plan.knots(), x.double())
    assert torch.equal(states.calls[0][0]["sample"], x)
    found = found[0] if isinstance(found, tuple) else found.prev_sample
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max().clamp(min=1)


FROM_AN_IMAGE = {
    "StableDiffusionXLImg2ImgPipeline": "sdxl",
    "StableDiffusion3Img2ImgPipeline": "sd3-medium",
    "StableDiffusion3InpaintPipeline": "sd3-medium",
    "FluxInpaintPipeline": "flux",
    "QwenImageImg2ImgPipeline": "qwen",
    "QwenImageInpaintPipeline": "qwen",
    "ZImageImg2ImgPipeline": "zimage",
    "ZImageInpaintPipeline": "zimage",
    "Flux2KleinInpaintPipeline": "klein",
}


@pytest.mark.parametrize("kind", FROM_AN_IMAGE)
def test_from_an_image_with_strength(kind: str) -> None:
    """The plan's last steps, from the noised image on; without a mask that is our table's tail."""
    from plans import make_plan

    name = FROM_AN_IMAGE[kind]
    base = tiny.TINY[name]()
    negative = None if name in NO_NEGATIVE else tiny.NEGATIVE
    model = model_of(name, base, negative_prompt=negative)
    unused = ("image_encoder", "feature_extractor")
    parts = {part: value for part, value in base.components.items() if part not in unused}
    if kind.startswith("StableDiffusionXL"):
        parts["add_watermarker"] = False
    pipe = getattr(diffusers, kind)(**parts)
    pipe.set_progress_bar_config(disable=True)
    steps, strength = 5, 0.6
    plan = make_plan(model.schedule, "dpmpp", 2, prediction=model.prediction, steps=steps,
                     corrections=False, shape=model.shape)  # fmt: skip
    pipe.scheduler = LD3Scheduler.from_plan(plan, like=pipe)
    spy = Spy(pipe.scheduler, "step")
    call = dict(tiny.CALLS[name.split("-")[0]]) | guidance_words(name, 3.0)
    image = torch.rand(1, 3, call["height"], call["width"], generator=torch.Generator())
    masked = "Inpaint" in kind
    if masked:
        call["mask_image"] = torch.zeros(1, 1, *image.shape[2:])
        call["mask_image"][..., :8] = 1
    call |= {"image": image, "strength": strength, "num_inference_steps": steps}
    out = pipe(**call, generator=torch.Generator().manual_seed(0), output_type="latent").images
    assert bool(torch.isfinite(out).all())
    begin = steps - int(steps * strength)
    told = torch.stack([given["timestep"] for given, _ in spy.calls])
    assert torch.equal(told, pipe.scheduler.timesteps[begin:])
    if masked:
        return
    with torch.no_grad():
        denoise = ld3.bind(model, model.conditions([0, 1]), guidance=3.0)
        tail = plan.table_for(model.schedule, "x0").tail(begin)
        wanted = tail.run(denoise, spy.calls[0][0]["sample"].double())
    found = spy.calls[-1][1][0]
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max().clamp(min=1)


def test_every_supported_class_is_tested() -> None:
    made = {type(make()).__name__ for make in tiny.TINY.values()}
    own = {"ClassLatentPipeline", "RectifiedFlowPipeline", "InstaFlowPipeline", "DDIMPipeline"}
    assert set(FAMILIES) - own == made  # the others: see below and tests/test_latent_checkpoints.py


@every_family
def test_decoding_is_that_of_the_pipeline(name: str) -> None:
    """From the state after the last step to the picture."""
    if name == "ddpm":
        pytest.skip("pixels are not decoded")
    pipe = tiny.TINY[name]()
    model = model_of(name, pipe)
    steps = Spy(pipe.scheduler, "step")
    call = dict(tiny.CALLS[name.split("-")[0]]) | guidance_words(name, 1.0)
    call |= {"batch_size": 2} if name == "ldm" else {}
    shown = pipe(**call, num_inference_steps=2, output_type="np", return_dict=False)[0]
    result = steps.calls[-1][1]
    end = (result[0] if isinstance(result, tuple) else result.prev_sample)[:2]
    with torch.no_grad():
        sample = (model.decode(end) / 2 + 0.5).clamp(0, 1)
    axes = (0, 2, 3, 4, 1) if sample.ndim == 5 else (0, 2, 3, 1)
    assert (sample.permute(axes) - torch.from_numpy(shown)).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["sd", "ldm", "flux", "wan"])
@pytest.mark.parametrize("tiling", [False, True])
def test_gradients_pass_the_decoder(name: str, tiling: bool) -> None:
    """Rematerialised, with tiles, through the quantiser: as without any of it."""
    pipe = tiny.TINY[name]()
    if tiling and name == "ldm":
        with pytest.raises(SpecError, match="tiling: got VQModel"):
            model_of(name, pipe, tiling=True)
        return
    model = model_of(name, pipe, tiling=tiling)
    x = ld3.prior(model, [0, 1]).requires_grad_()
    decoded = model.decode(x)
    probe = ld3.noise([3, 4], decoded.shape[1:])
    (slope,) = torch.autograd.grad((decoded * probe).sum(), x)
    assert model.parts.decode is not None
    plainly = torch.cat([model.parts.decode(x[i : i + 1]) for i in (0, 1)])
    (plain,) = torch.autograd.grad((plainly * probe).sum(), x)
    assert slope.abs().max() > 0
    assert (slope - plain).abs().max() < 1e-5 * plain.abs().max()


def test_seeds_ask_for_prompts_in_turn() -> None:
    pipe = tiny.sd()
    model = zoo.from_pipeline(pipe, prompts=tiny.PROMPTS)
    cond = model.conditions([0, 1, 2, 3, 4])
    assert isinstance(cond, dict)
    text = cond["text"]
    assert torch.equal(text[3], text[0]) and torch.equal(text[4], text[1])
    assert not torch.equal(text[0], text[1])
    null = model.null(cond)
    assert isinstance(null, dict) and null["text"].shape == text.shape
    assert torch.equal(null["text"][0], null["text"][4])
    assert len(zoo.from_pipeline(pipe).parts.rows["text"]) == len(CAPTIONS)


def test_the_network_may_be_called_in_parts() -> None:
    model = model_of("sdxl", tiny.sdxl())
    x, seeds = ld3.prior(model, range(5)), range(5)
    t = torch.tensor(0.4)
    answers = [
        replace(model, batch=batch).forward(x, t, model.conditions(seeds)) for batch in (2, 5)
    ]
    assert (answers[0] - answers[1]).abs().max() < 1e-5


# ---- noise

STEPS = {"num_train_timesteps": 200}


@pytest.mark.parametrize(
    "config",
    [
        {},
        STEPS,
        tiny.SD,
        tiny.LDM | {"prediction_type": "v_prediction"},
        {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"},
        {"trained_betas": [0.01, 0.02, 0.05, 0.3], "num_train_timesteps": 4},
        {"prediction_type": "sample"},
    ],
    ids=str,
)
def test_betas_are_those_of_the_scheduler(config: dict[str, Any]) -> None:
    scheduler = diffusers.DDIMScheduler(**config)
    schedule, prediction = read_noise(scheduler)
    assert isinstance(schedule, Discrete)
    ours = torch.tensor(schedule.log_alphas).exp() ** 2
    assert schedule.steps == len(scheduler.alphas_cumprod)
    assert (ours / scheduler.alphas_cumprod - 1).abs().max() < 2e-4  # theirs are float32
    words = {"epsilon": "eps", "v_prediction": "v", "sample": "x0"}
    assert prediction == words[scheduler.config.prediction_type]


@pytest.mark.parametrize("name", DISCRETE)
def test_every_discrete_scheduler_is_read(name: str) -> None:
    wants = {"DPMSolverSDEScheduler": "torchsde", "LMSDiscreteScheduler": "scipy"}
    if name in wants:
        pytest.importorskip(wants[name], reason=f"diffusers' {name} wants {wants[name]}")
    plain = {"snr_shift_scale": 1.0} if name.startswith("CogVideoX") else {}
    schedule, prediction = read_noise(tiny.make_scheduler(name, **tiny.SD, **plain))
    assert (schedule_to_json(schedule), prediction) == ({"name": "sd"}, "eps")


def test_steps_of_pure_noise_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Zero terminal SNR has no finite lam at its end; an eps network cannot use lam below -5.1."""
    config = tiny.SD | {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction"}
    scheduler = diffusers.DDIMScheduler(**config)
    with caplog.at_level(logging.WARNING):
        schedule, _ = read_noise(scheduler)
    assert isinstance(schedule, Discrete)
    assert (len(schedule.log_alphas), schedule.steps) == (999, 1000)
    assert "the last 1 of 1000 are left out and sampling begins at step 998" in caplog.text
    ours = torch.tensor(schedule.log_alphas).exp() ** 2
    assert (ours[:-20] / scheduler.alphas_cumprod[:979] - 1).abs().max() < 1e-3
    cosine, _ = read_noise(diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2"))
    assert cosine == ld3.make_schedule("iddpm")


def test_a_shift_sets_the_first_time() -> None:
    for scheduler in (
        diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        diffusers.UniPCMultistepScheduler(**tiny.FLOW),
    ):
        schedule, prediction = read_noise(scheduler)
        assert isinstance(schedule, Flow) and prediction == "flow"
        lam = schedule.lam(torch.tensor(schedule.t_max, dtype=torch.float64))
        plain = Flow().lam(torch.tensor(0.999, dtype=torch.float64))
        assert float(plain - lam) == pytest.approx(torch.tensor(3.0).log().item())
    moving = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    moving.set_timesteps(sigmas=[0.999], mu=0.5 + 0.65 * (1024 - 256) / 3840)
    assert read_noise(moving, 1024)[0].t_max == pytest.approx(float(moving.sigmas[0]))


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("LCMScheduler", {}, "got LCMScheduler, expected one whose config"),
        ("EDMEulerScheduler", {}, "got EDMEulerScheduler"),
        ("IPNDMScheduler", {}, "got IPNDMScheduler"),
        ("DDPMScheduler", {"beta_schedule": "sigmoid"}, "with beta_schedule 'sigmoid'"),
        ("EulerDiscreteScheduler", {"timestep_type": "continuous"}, "timestep_type 'continuous'"),
        ("DDIMScheduler", {"trained_betas": [0.1, 0.0]}, "strictly falling"),
        ("FlowMatchEulerDiscreteScheduler", {"invert_sigmas": True}, "invert_sigmas True"),
        ("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": True}, "use_dynamic_shifting"),
        ("FlowMatchEulerDiscreteScheduler", STEPS, "num_train_timesteps 200, expected 1000"),
        (
            "UniPCMultistepScheduler",
            {"use_flow_sigmas": True},
            "expected both for a flow or neither",
        ),
        ("EulerDiscreteScheduler", {"prediction_type": "odd"}, "prediction_type 'odd'"),
    ],
)
def test_other_schedulers_are_refused_by_name(name: str, config: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        read_noise(tiny.make_scheduler(name, **config))
    assert "\n" not in str(caught.value)


def test_a_pipeline_with_such_a_scheduler_is_refused() -> None:
    pipe = tiny.sd()
    pipe.scheduler = diffusers.LCMScheduler()
    with pytest.raises(ModelError, match="scheduler: got LCMScheduler"):
        zoo.from_pipeline(pipe)


def test_other_pipelines_and_networks_are_refused() -> None:
    class Own(diffusers.DiffusionPipeline):
        def __init__(self, unet: Any) -> None:
            super().__init__()
            self.register_modules(unet=unet)

    pipe = tiny.ddpm()
    with pytest.raises(SpecError, match=r"got Own, which diffusers .* does not have"):
        zoo.from_pipeline(Own(pipe.unet))
    for config, said in (
        ({"time_embedding_type": "learned", "num_train_timesteps": 1000}, "'learned'"),
        ({"num_class_embeds": 10}, "with classes"),
    ):
        unet = diffusers.UNet2DModel(**dict(pipe.unet.config) | config)
        with pytest.raises(ModelError, match=said):
            zoo.from_pipeline(diffusers.DDPMPipeline(unet, pipe.scheduler))
    for kind in ("KandinskyV22Pipeline", "StableCascadeDecoderPipeline"):
        with pytest.raises(SpecError, match=f"got {kind}, known to diffusers but not supported"):
            zoo.from_pipeline(type(kind, (), {})())
    with pytest.raises(SpecError, match="frames, prompts: says nothing to DDPMPipeline"):
        zoo.from_pipeline(pipe, prompts=["rain"], frames=5)
    with pytest.raises(ModelError, match="guidance: got a pipeline without conditions"):
        ld3.bind(zoo.from_pipeline(pipe), guidance=2.0)


def test_instaflow_points_the_other_way() -> None:
    """The same network read as a flow to noise and as one to data: opposite velocities."""
    pipe = tiny.TINY["sd-flow"]()
    there, back = (model_of("sd", pipe, rectified=way) for way in (False, True))
    assert (there.prediction, back.prediction) == ("flow", "reverse-flow")
    assert back.schedule == Flow()
    x, t = ld3.prior(back, [0]), torch.tensor(0.5, dtype=torch.float64)
    with torch.no_grad():
        u, w = (ld3.bind(m, m.conditions([0]))(x, t) - x for m in (there, back))
    assert (u + w).abs().max() < 1e-5


def test_an_even_euler_step_is_that_of_instaflow() -> None:
    """x + v/N at times 1, 1 - 1/N, ..: the sampler of the paper, by our table."""
    model = model_of("sd", tiny.sd(), rectified=True)
    times = [0.999, 0.75, 0.5, 0.25, 0.001]
    k = ld3.knots(model.schedule, ld3.TimeGrid.of(times, times))
    x, cond = ld3.prior(model, [0, 1]), model.conditions([0, 1])
    with torch.no_grad():
        network = bind_network(model, cond)
        table = ld3.compile_table(ld3.make_solver("euler"), k, model.prediction)
        ours = table.run(network, x)
        for now, then in pairwise(times):
            x = x + (now - then) * network(x, torch.tensor(now))
    assert (ours - x).abs().max() < 1e-4


def test_instaflow_as_published(tmp_path: Path) -> None:
    """Its own class in the index says that it is a rectified flow; no option is needed."""
    tiny.save_instaflow(tmp_path / "flow")
    options = PipelineOptions(prompts=tiny.PROMPTS)
    model = load_model(f"diffusers:{tmp_path / 'flow'}", options=options).model
    assert model.schedule == Flow() and model.prediction == "reverse-flow"
    said = zoo.from_pipeline(tiny.sd(), prompts=tiny.PROMPTS, rectified=True)
    x, t = ld3.prior(said, [0, 1]), torch.tensor(0.5, dtype=torch.float64)
    with torch.no_grad():
        ours, other = (m.forward(x, t, m.conditions([0, 1])) for m in (model, said))
        direct = tiny.sd().unet(x, 500.0, said.conditions([0, 1])["text"]).sample
    assert (ours - other).abs().max() < 1e-6 and (ours - direct).abs().max() < 1e-6


def test_instaflow_is_fetched_as_stable_diffusion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """diffusers looks its class up while it downloads, and has none of that name."""
    import diffusers

    tiny.save_instaflow(tmp_path)

    def none(*words: object, **more: object) -> None:
        raise AttributeError("RectifiedFlowPipeline")

    monkeypatch.setattr(diffusers.DiffusionPipeline, "download", none)
    monkeypatch.setattr(
        diffusers.StableDiffusionPipeline, "download", lambda repo, **more: str(tmp_path)
    )
    pipe = open_pipeline("someone/rectified")
    assert type(pipe).__name__ == "RectifiedFlowPipeline"


# ---- precision of the time


def test_rounded_times_pass_the_gradient() -> None:
    told = torch.tensor(401.75, requires_grad=True)
    for precision, wanted in (("float", 401.75), ("integer", 402.0), ("bfloat16", 402.0)):
        near = rounded(told, precision)  # type: ignore[arg-type]
        assert near.item() == pytest.approx(wanted, abs=2.0 * (precision == "bfloat16"))
        assert torch.autograd.grad(near, told)[0] == 1
    assert rounded(torch.tensor(985.3), "bfloat16").item() % 4 == 0  # eight bits of mantissa


def test_integer_times_are_what_the_network_sees() -> None:
    pipe = tiny.sd()
    model = model_of("sd", pipe, net_time="integer")
    spy = Spy(pipe.unet, "forward")
    check_model(model)  # and the gradient in time is there
    model.forward(ld3.prior(model, [0]), torch.tensor(0.40273), model.conditions([0]))
    assert spy.calls[-1][0]["timestep"].tolist() == [402.0]  # 401.73


def test_bfloat16_is_what_flux_does_in_it() -> None:
    """The time that the real transformer embeds in bfloat16, and ours while learning in float32."""
    pipe = tiny.flux()
    model = model_of("flux", pipe, net_time="bfloat16")
    spy = Spy(pipe.transformer.time_text_embed, "forward")
    t = torch.tensor(0.56123)
    model.forward(ld3.prior(model, [0]), t, model.conditions([0]))
    ours = spy.calls[-1][0]["timestep"]
    half = tiny.flux().to(torch.bfloat16)
    spy = Spy(half.transformer.time_text_embed, "forward")
    half.scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    half(**tiny.CALLS["flux"], sigmas=[0.56123], output_type="latent")
    theirs = spy.calls[-1][0]["timestep"]
    assert theirs.dtype == torch.bfloat16
    assert ours[0].item() == pytest.approx(theirs[0].item(), rel=1e-6)
    assert abs(ours[0].item() - 561.23) > 0.5
    with pytest.raises(SpecError, match="net_time: got bfloat16"):
        model_of("sd", tiny.sd(), net_time="bfloat16")


def test_what_rounding_costs() -> None:
    model = model_of("flux", tiny.flux())
    solver = ld3.make_solver("euler")

    def cost(*times: float) -> dict[str, float]:
        k = ld3.knots(model.schedule, ld3.TimeGrid.of(times, times))
        return zoo.rounding_cost(model, ld3.compile_table(solver, k, model.prediction), [0, 1])

    assert cost(0.992, 0.512, 0.256, 0.001) == {"integer": 0.0, "bfloat16": 0.0}
    uneven = cost(0.99237, 0.51349, 0.25741, 0.001)
    assert 0 < uneven["integer"] < uneven["bfloat16"] < 0.1
    assert set(zoo.rounding_cost(model_of("sd", tiny.sd()), _plain_table(), [0])) == {"integer"}


def _plain_table() -> ld3.Table:
    schedule = ld3.make_schedule("sd")
    k = ld3.knots(schedule, ld3.make_grid("logsnr", schedule, 3))
    return ld3.compile_table(ld3.make_solver("dpmpp"), k, "eps")


# ---- folders


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Stable Diffusion pipeline on disk."""
    path = tmp_path_factory.mktemp("pipelines") / "sd"
    tiny.sd().save_pretrained(path)
    return path


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    return Path(shutil.copytree(folder, tmp_path / "sd"))


def test_a_folder_is_the_pipeline(folder: Path) -> None:
    options = PipelineOptions(prompts=tiny.PROMPTS)
    loaded = load_model(f"diffusers:{folder}", options=options)
    own = zoo.from_pipeline(tiny.sd(), prompts=tiny.PROMPTS)
    x, t = ld3.prior(own, [0, 1]), torch.tensor(0.3)
    answers = [m.forward(x, t, m.conditions([0, 1])) for m in (loaded.model, own)]
    assert (answers[0] - answers[1]).abs().max() < 1e-6
    assert loaded.digest == own.digest and loaded.model.identity == own.identity
    assert loaded.conditions == "3 prompts"


@every_family
def test_every_family_from_a_folder(name: str, tmp_path: Path) -> None:
    pipe = tiny.TINY[name]()
    own = model_of(name, pipe)
    pipe.save_pretrained(tmp_path / name)
    call = tiny.CALLS[name.split("-")[0]]
    size = {word: call[word] for word in ("height", "width") if word in call}
    options = PipelineOptions(
        prompts=tuple(call.get("prompt", CAPTIONS)),
        classes=call.get("class_labels"),
        frames=call.get("num_frames"),
        tokens=call.get("max_sequence_length"),
        **size,
    )
    loaded = load_model(f"diffusers:{tmp_path / name}", options=options)
    x, t = ld3.prior(own, [0, 1]), torch.tensor(0.3, dtype=torch.float64)
    with torch.no_grad():
        answers = [m.forward(x, t, m.conditions([0, 1])) for m in (loaded.model, own)]
    assert (answers[0] - answers[1]).abs().max() < 1e-5
    assert loaded.digest == own.digest and loaded.model.identity == own.identity
    half = load_model(f"diffusers:{tmp_path / name}", dtype="bfloat16", options=options)
    assert half.model.dtype == torch.bfloat16 and half.digest == own.digest
    assert half.model.forward(x.bfloat16(), t, half.model.conditions([0, 1])).isfinite().all()


def test_a_plan_for_other_weights_is_refused(folder: Path, changed: Path) -> None:
    loaded = load_model(f"diffusers:{folder}")
    grid = ld3.make_grid("logsnr", loaded.model.schedule, 2)
    plan = Plan.checked(
        {
            "nfe": 2,
            "solver": {"name": "dpmpp", "order": 2},
            "times": grid.times.tolist(),
            "net_times": grid.net_times.tolist(),
            "schedule": {"name": "sd"},
            "model": {
                "name": f"diffusers:{folder}",
                "digest": loaded.digest,
                "shape": [4, 8, 8],
                "prediction": "eps",
                "options": {"prompts": ["rain"]},
            },
        }
    )
    assert ld3.run_sample(plan, [0], "cpu", force=False).shape == (1, 3, 16, 16)
    pipe = tiny.sd()
    with torch.no_grad():
        pipe.unet.conv_in.weight.mul_(2)
    pipe.save_pretrained(changed)
    part = plan.model.model_copy(update={"name": f"diffusers:{changed}"})
    other = plan.model_copy(update={"model": part})
    with pytest.raises(ld3.Ld3Error, match="got a model with weights"):
        ld3.run_sample(other, [0], "cpu", force=False)
    spoiled = json.loads(plan.model_dump_json())
    spoiled["model"]["options"] = {"trust_remote_code": True}
    with pytest.raises(ld3.Ld3Error, match=r"model\.options\.trust_remote_code"):
        Plan.checked(spoiled)


def test_digests_name_weights_and_identities_what_is_asked(folder: Path) -> None:
    name = f"diffusers:{folder}"
    plain = load_model(name)
    half = load_model(name, dtype="bfloat16")
    other = load_model(name, options=PipelineOptions(prompts=("rain",)))
    latents = load_model(name, options=PipelineOptions(latents=True))
    assert plain.digest == half.digest == other.digest == latents.digest
    assert half.model.dtype == torch.bfloat16
    assert len({loaded.identity for loaded in (plain, other, latents)}) == 3
    pipe = tiny.sd()
    with torch.no_grad():
        pipe.unet.conv_in.weight.mul_(1.1)
    assert zoo.from_pipeline(pipe).digest != plain.digest


def test_code_in_a_folder_never_runs(changed: Path) -> None:
    """A scheduler, a pipeline and a part of one's own: refused by name, whatever lies there."""
    trap = f"from pathlib import Path\nPath({str(changed / 'ran')!r}).touch()\n"
    for place in ("pipeline.py", "scheduler/mine.py", "unet/mine.py", "mine.py"):
        (changed / place).write_text(trap)
    open_pipeline(str(changed))  # what lies about does not matter
    index = json.loads((changed / "model_index.json").read_text())
    for parts, said in (
        ({"scheduler": ["mine", "MyScheduler"]}, "got a scheduler from 'mine'"),
        ({"unet": ["mine", "MyNetwork"]}, "got a unet from 'mine'"),
        ({"_class_name": ["pipeline", "MyPipeline"]}, "code in a folder is never run"),
        ({"_class_name": "MyPipeline"}, "got MyPipeline, which diffusers .* does not have"),
        (
            {"_class_name": "DiffusionPipeline"},
            "got DiffusionPipeline, known to diffusers but not supported yet",
        ),
        ({"scheduler": ["diffusers", "NoSuchScheduler"]}, "cannot be loaded"),
    ):
        (changed / "model_index.json").write_text(json.dumps(index | parts))
        with pytest.raises(Ld3Error, match=said) as caught:
            open_pipeline(str(changed))
        assert "\n" not in str(caught.value) and "did you mean" not in str(caught.value)
    assert not (changed / "ran").exists()


def test_a_folder_with_our_scheduler_is_learned_from_again(folder: Path, tmp_path: Path) -> None:
    """The model in it is the one the plan was learned for, in a process that knows no plans."""
    from plans import make_plan

    before = load_model(f"diffusers:{folder}")
    pipe = tiny.sd()
    pipe.scheduler = LD3Scheduler.from_plan(make_plan(shape=(4, 8, 8)), like=pipe)
    pipe.save_pretrained(tmp_path / "planned")
    again = load_model(f"diffusers:{tmp_path / 'planned'}")
    assert again.digest == before.digest and again.identity == before.identity
    assert again.model.schedule == before.model.schedule
    assert again.model.prediction == before.model.prediction
    code = (
        "from ld3.zoo.loading import load_model\n"
        f"print(load_model('diffusers:{tmp_path / 'planned'}').digest)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == before.digest, ran.stderr
    index = json.loads((tmp_path / "planned" / "model_index.json").read_text())
    index["unet"] = index["scheduler"]  # ours is known as a scheduler, and as nothing else
    (tmp_path / "planned" / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"got a unet from 'ld3\.diffusers'"):
        open_pipeline(str(tmp_path / "planned"))


def test_a_safety_checker_is_not_loaded(changed: Path) -> None:
    """As the index of Stable Diffusion 1.5 names one; none of its files is here."""
    index = json.loads((changed / "model_index.json").read_text())
    del index["requires_safety_checker"]
    index["safety_checker"] = ["stable_diffusion", "StableDiffusionSafetyChecker"]
    index["feature_extractor"] = ["transformers", "CLIPImageProcessor"]
    (changed / "model_index.json").write_text(json.dumps(index))
    assert open_pipeline(str(changed)).safety_checker is None


def test_pickles_are_never_opened(changed: Path) -> None:
    weights = next((changed / "unet").glob("*.safetensors"))
    weights.rename(weights.with_name("diffusion_pytorch_model.bin"))
    with pytest.raises(ModelError, match="got pickled weights of unet, expected safetensors"):
        open_pipeline(str(changed))


def test_a_folder_without_weights_is_one_line(changed: Path) -> None:
    """diffusers logs the same error by itself; a process of its own sees all that is printed."""
    next((changed / "unet").glob("*.safetensors")).unlink()
    words = [sys.executable, "-m", "ld3", "learn", "--model", f"diffusers:{changed}", "--nfe", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "cannot be loaded" in done.stderr and not done.stdout


def test_broken_folders(changed: Path, tmp_path: Path) -> None:
    next((changed / "unet").glob("*.safetensors")).write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be loaded"):
        open_pipeline(str(changed))
    (changed / "model_index.json").write_text("[1]")
    with pytest.raises(ModelError, match="got the pipeline None"):
        open_pipeline(str(changed))
    (changed / "model_index.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        open_pipeline(str(changed))
    with pytest.raises(ModelError, match=r"cannot read .*model_index\.json"):
        open_pipeline(str(tmp_path))
    with pytest.raises(ModelError, match="got a file, expected a folder"):
        open_pipeline(str(changed / "model_index.json"))
    with pytest.raises(ModelError, match="no such folder"):
        open_pipeline(str(tmp_path / "none"))


@pytest.mark.parametrize("how", ["offline", "unreachable"])
def test_without_a_network_a_hub_id_gives_one_line(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", how == "offline")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for name in ("someone/something", "someone/something@main"):
        with pytest.raises(ModelError, match="cannot be fetched") as caught:
            load_model(f"diffusers:{name}")
        assert "\n" not in str(caught.value) and "give the folder" in str(caught.value)


def test_a_hub_id_in_the_cache_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Laid out as huggingface_hub keeps what it has downloaded."""
    from huggingface_hub import constants

    place = tmp_path / "models--someone--tiny"
    tiny.ddpm().save_pretrained(place / "snapshots" / ("0" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("someone/tiny", "someone/tiny@main"):
        loaded = load_model(f"diffusers:{name}")
        assert loaded.digest == zoo.from_pipeline(tiny.ddpm()).digest


def test_missing_packages_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys\n"
        "sys.modules['transformers'] = None\n"
        "from ld3.cli import main\n"
        f"main(['learn', '--model', 'diffusers:{folder}'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 2, ran.stderr
    assert "pip install 'ld3[diffusers]'" in ran.stderr and "transformers" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(SpecError, match=r"package diffusers; pip install 'ld3\[diffusers\]'"):
        open_pipeline(str(folder))


# ---- the command line


def test_learn_and_sample_from_a_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole walk; the plan has all that is needed to load the pipeline again."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a dog\n\ntwo cats\n")
    words = f"learn --model diffusers:{folder} --prompts {prompts} --negative-prompt mud"
    words += " --resolution 16x32 --guidance 3 --latents --batch 4 --nfe 3 --preset fast --pairs 4"
    words += f" --held-out 2 --start logsnr --teacher-steps 6 --recipe epochs=1 --out {tmp_path}"
    with pytest.raises(SystemExit) as end:
        main(words.split())
    said = capsys.readouterr()
    assert end.value.code == 0, said.err
    assert "Network times rounded to integer move samples by" in said.out
    file = said.out.split()[-1]
    plan = Plan.load(file)
    assert plan.model.options == PipelineOptions(
        prompts=("a dog", "two cats"),
        negative_prompt="mud",
        height=16,
        width=32,
        latents=True,
        batch=4,
    )
    assert plan.model.shape == [4, 8, 16] and plan.model.guidance == 3
    drawn = []
    for more in ([], ["--prompt", "rain"], ["--prompt", "a dog", "--prompt", "two cats"]):
        out = tmp_path / f"samples{len(drawn)}"
        with pytest.raises(SystemExit) as end:
            main(["sample", "--plan", file, "--seeds", "0-1", "--out", str(out), *more])
        assert end.value.code == 0, capsys.readouterr().err
        drawn.append(ld3.store.read_tensors(out / "samples.safetensors")["samples"])
    assert drawn[0].shape == (2, 3, 16, 32)  # decoded, although latents were compared
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--resolution 15", "height: got 15, expected a multiple of 2"),
        ("--resolution big", "resolution: got 'big'"),
        ("--resolution 4", "height: got '4'"),
        ("--net-time double", "net_time: got 'double'"),
        ("--prompts none.txt", "cannot read none.txt"),
        ("--prompt a --prompts none.txt", "give one of them"),
        ("--model fashion --prompt a", "got fashion with prompts, expected these only for"),
    ],
)
def test_wrong_words_are_said(
    words: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [] if "--model" in words else ["--model", f"diffusers:{folder}"]
    with pytest.raises(SystemExit) as end:
        main(["learn", *model, *words.split()])
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert said in error and len(error.splitlines()) == 1


def test_options_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "diffusers:x"\n[pipeline]\nprompts = ["a", "b"]\nheight = 64\n')
    spec = ld3.RunSpec.read({"pipeline": {"height": 32}}, file)
    assert spec.pipeline == PipelineOptions(prompts=("a", "b"), height=32)
    file.write_text("[pipeline]\nheigth = 64\n")
    with pytest.raises(SpecError, match=r"unknown option of a pipeline 'heigth'.*'height'"):
        ld3.RunSpec.read({}, file)


# ---- the models inside the package


@pytest.mark.parametrize("name", ["fashion", "fashion-flow", "fashion-latent"])
def test_shipped_models_as_pipelines(name: str) -> None:
    """Many steps of a stock scheduler end where the model itself does; and it is a model again."""
    from examples import diffusers_fashion

    pipe = diffusers_fashion.PIPELINES[name]()
    own, model = zoo.load(name), zoo.from_pipeline(pipe)
    assert (model.shape, len(model.parts.rows["label"])) == (own.shape, 10)
    z, seeds = ld3.noise([0, 1], own.shape), [0, 1]
    pipe.scheduler = diffusers_fashion.stock(pipe)["UniPC"]
    theirs = pipe(seeds, 1.5, 20, latents=z)
    for one in (own, model):
        k = ld3.knots(one.schedule, ld3.make_grid("logsnr", one.schedule, 20))
        table = ld3.compile_table(ld3.make_solver("unipc"), k, one.prediction)
        with torch.no_grad():
            network = bind_network(one, one.conditions(seeds), guidance=1.5)
            sample = one.decode(table.run(network, one.schedule.prior_std * z))
        assert (sample - theirs).square().mean().sqrt() < 0.1  # of pictures in [-1, 1]


# ---- networks that accelerate spreads


def spread(part: Any, folder: Path, how: str) -> Any:
    """With accelerate's real hooks: half of the blocks on disk, or all weights offloaded."""
    accelerate = pytest.importorskip("accelerate")
    if how == "offloaded":
        return accelerate.cpu_offload(part, execution_device=torch.device("cpu"))
    names = [name for name, _ in part.named_children()]
    places = {name: ("cpu", "disk")[n % 2] for n, name in enumerate(names)}
    return accelerate.dispatch_model(
        part, places, main_device="cpu", offload_dir=str(folder), force_hooks=True
    )


@pytest.mark.parametrize("how", ["device map", "offloaded"])
def test_a_network_that_is_spread_is_the_same_network(how: str, tmp_path: Path) -> None:
    """The same identity, gradients, plan and samples, although its weights are not in place."""
    whole, pipe = tiny.sd(), tiny.sd()
    for name in ("unet", "vae", "text_encoder"):
        setattr(pipe, name, spread(getattr(pipe, name), tmp_path / name, how))
    assert any(weight.is_meta for weight in pipe.unet.parameters())
    models = [model_of("sd", whole), model_of("sd", pipe)]
    assert models[0].identity == models[1].identity
    found = []
    for model in models:
        pairs = make_pairs(model, range(4), Teacher("dpmpp", 2, "", "logsnr", 4))
        problem = Problem(model, ld3.make_solver("dpmpp", 2), 3, l2, pairs, pairs)
        recipe = PaperRules(
            batch=4, epochs_times=0, epochs=2, rule_times="adam", rule_net="adam",
            rate_times=0.005, rate_net=0.005, gamma=0.0, decay="cosine", floor=0.01, clip=1e9,
        )  # fmt: skip
        *_, last = learning(problem, recipe, ld3.make_grid("logsnr", model.schedule, 3))
        found.append((last.tuned.grid.times, pairs.target))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_function_with_a_spread_network_is_named_by_its_weights(tmp_path: Path) -> None:
    """A model of one's own around such a network; weights that nobody has are refused."""

    def model(unet: Any) -> ld3.FunctionModel:
        def forward(x: Tensor, t: Tensor, cond: Any) -> Tensor:
            out: Tensor = unet(x, t).sample
            return out

        return ld3.FunctionModel(forward, ld3.EDM(), "eps", (3, 8, 8))

    one = identity_of(model(tiny.ddpm().unet))
    assert identity_of(model(spread(tiny.ddpm().unet, tmp_path, "device map"))) == one
    changed = tiny.ddpm().unet
    changed.up_blocks[0].resnets[0].conv1.weight.data[0, 0, 0, 0] += 1e-3
    assert identity_of(model(spread(changed, tmp_path / "changed", "device map"))) != one
    with pytest.raises(ModelError, match=r"conv_in.bias without content .a meta tensor."):
        contents(tiny.ddpm().unet.to("meta"))
