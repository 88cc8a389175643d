"""How ComfyUI, AUTOMATIC1111 and Forge are really used: other steps, parts of plans, wrong models.

The stand-ins of the tools are ours; `tools/webuis` runs the same against the tools themselves.
"""

import asyncio
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import ld3
from ld3.errors import PlanError, SpecError
from ld3.export import Wish, export_plans, paste_lines
from ld3.export.a1111 import stand_in
from ld3.export.check import Spy, load_file, with_modules
from ld3.export.comfyui import run_node
from ld3.export.comfyui_standin import KSAMPLER, Model, modules, sample_custom
from ld3.export.files import ld3_model, ld3_plans, ld3_sampler
from ld3.export.numbers import level, record
from ld3.plan import Plan
from plans import make_plan, with_guidance

KINDS = {"sd": "eps", "flow": "flow", "edm": "x0"}


def run(plan: Plan, sigmas: Tensor, x: Tensor, denoiser: Any, **words: Any) -> Tensor:
    found: Tensor = ld3_sampler.sample_ld3([record(plan)], denoiser, x, sigmas, **words)
    return found


# ---- parts of a plan


@pytest.mark.parametrize("schedule", KINDS)
@pytest.mark.parametrize("method", ["dpmpp", "ipndm", "unipc", "heun"])
def test_split_sigmas(schedule: str, method: str) -> None:
    """The low part goes on where the high part ended: with its answers the whole run, to rounding;
    started anew a little off, and always with the plan's own levels."""
    plan = make_plan(schedule, method, prediction=KINDS[schedule], steps=6)
    content, spy = record(plan), Spy.of(plan)
    sigmas = torch.tensor(content["sigmas"], dtype=torch.float64)
    x = spy.noise * sigmas[0]
    whole = ld3_sampler.sample_ld3([content], spy.denoiser, x, sigmas)
    for step in (1, 3, 5):
        losses = []
        for memory in ({}, None):
            spy.told.clear()
            middle = ld3_sampler.sample_ld3(
                [content], spy.denoiser, x, sigmas[: step + 1], memory=memory
            )
            found = ld3_sampler.sample_ld3(
                [content], spy.denoiser, middle, sigmas[step:], memory=memory
            )
            assert len(spy.told) == plan.nfe
            losses.append(float((found - whole).norm() / whole.norm()))
        assert losses[0] < 1e-10 < losses[1] < 0.5


def test_a_changed_state_does_not_take_the_history() -> None:
    plan = make_plan("sd", "dpmpp", 3, steps=6)
    content, spy = record(plan), Spy.of(plan)
    sigmas = torch.tensor(content["sigmas"], dtype=torch.float64)
    memory: dict[str, Any] = {}
    high = ld3_sampler.sample_ld3(
        [content], spy.denoiser, spy.noise * sigmas[0], sigmas[:4], memory=memory
    )
    for x in (high + 0.1, torch.cat([high, high])):
        anew = ld3_sampler.sample_ld3([content], spy.denoiser, x, sigmas[3:])
        found = ld3_sampler.sample_ld3([content], spy.denoiser, x, sigmas[3:], memory=memory)
        assert torch.equal(found, anew)


@pytest.mark.parametrize("schedule", KINDS)
@pytest.mark.parametrize("method", ["dpmpp", "ipndm", "heun"])
def test_from_a_level_between_two_of_the_plan(
    schedule: str, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Hires fix begins: exact for a denoiser that always sees one image. A line says so."""
    plan = make_plan(
        schedule, method, prediction=KINDS[schedule], steps=6, net_times=False, corrections=False
    )
    content, noise_schedule = record(plan), plan.noise_schedule
    levels = content["sigmas"]
    begin = 0.6 * levels[2] + 0.4 * levels[3]
    asked = torch.tensor([begin, 0.9 * levels[3], 0.9 * levels[4], 0.8 * levels[5], levels[-1]])
    x0, noise = torch.full((2, 5), 0.4).double(), torch.randn(2, 5).double()
    flow = schedule == "flow"
    told: list[float] = []

    def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
        told.append(sigma[0].item())
        return x0

    x = ((1 - begin) * x0 if flow else x0) + begin * noise
    found = run(plan, asked.double(), x, denoiser)
    end = plan.grid.times[-1]
    wanted = noise_schedule.log_alpha(end).exp() * x0 + noise_schedule.log_sigma(end).exp() * noise
    assert (found - wanted).abs().max() < 1e-6
    assert told[0] == pytest.approx(begin, rel=1e-6)
    assert re.search(
        r"LD3: 4 steps from sigma .* the last [34] of 6 steps", capsys.readouterr().out
    )


def test_which_plan_is_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """As many steps below the first level as were asked for; the whole plan from the top."""
    plans = [record(make_plan(steps=n)) for n in (4, 8, 12)]
    top = ld3_plans.sigmas_of(plans, 20)
    for asked, wanted in ((top, (12, 0)), (top[10:], (12, 6)), (top[-6:], (12, 8))):
        plan, first, last = ld3_plans.nearest_part(plans, asked, True)
        assert last == len(plan["sigmas"]) - 1
        assert abs(last - first - len(asked) + 1) <= max(wanted[0] - wanted[1], 3)
        if asked is top:
            assert (last, first) == wanted
    assert "all 12 steps" in capsys.readouterr().out
    clean = torch.tensor([0.01, plans[0]["sigmas"][-1]])
    x = torch.ones(2, 3)
    assert ld3_sampler.sample_ld3(plans, lambda x, s: 0 * x, x, clean) is x  # nothing to remove
    for sigmas in (torch.tensor([10.0, 3.0, 1.0]), top[:5]):
        with pytest.raises(ValueError, match="take them from the same plan"):
            ld3_plans.nearest_part(plans, sigmas, True)
    with pytest.raises(ValueError, match="take them from the same plan"):
        ld3_plans.nearest_part(plans, torch.tensor([14.6, 3.0, 0.0]), False)


# ---- a plan knows its model


def test_a_plan_for_another_model_is_refused(tmp_path: Path) -> None:
    """By prediction, kind or noise levels: in the node, at sampling, and in one line."""
    cosine = ld3.schedules.Discrete.cosine(lam_min=-20.0)
    made = {
        "sd-eps": make_plan("sd", prediction="eps"),
        "sd-v": make_plan("sd", prediction="v"),
        "flow": make_plan("flow", prediction="flow"),
        "edm": make_plan("edm", prediction="x0"),
        "cosine": make_plan(cosine, prediction="eps"),
    }
    for name, plan in made.items():
        export_plans("comfyui", [plan], tmp_path / name, Wish(name="x"))
        nodes = load_file(tmp_path / name / "ld3_x" / "__init__.py", "exported").NODE_CLASS_MAPPINGS
        for other, model_plan in made.items():
            spy = Spy.of(model_plan)
            model = Model(model_plan, spy.output)
            with with_modules(modules()):
                inputs = {"model": model, "steps": 5, "sampler": "LD3 Sampler"}
                (sampler,) = run_node(nodes["LD3Sampler_x"])
                (sigmas,) = run_node(nodes["LD3Sigmas_x"], steps=5, denoise=1.0)
                if name == other:
                    run_node(nodes["LD3NetworkTimes_x"], **inputs)
                    continue
                for use in (
                    lambda: run_node(nodes["LD3NetworkTimes_x"], **inputs),  # noqa: B023
                    lambda: sample_custom(model, sampler, sigmas, spy.noise),  # noqa: B023
                ):
                    with pytest.raises(ValueError, match=r"LD3: the plan for toy fits .* got") as e:
                        use()
                    assert "\n" not in str(e.value)


def denoiser_of(kind: str, levels: Tensor) -> Any:
    """As k-diffusion wraps networks: `get_scalings` and a table of sigmas."""
    scalings = {
        "eps": lambda s: (-s, 1 / (s**2 + 1) ** 0.5),
        "v": lambda s: (1 / (s**2 + 1), -s / (s**2 + 1) ** 0.5, 1 / (s**2 + 1) ** 0.5),
    }
    inner = SimpleNamespace(sigmas=levels)
    if kind in scalings:
        inner.get_scalings = scalings[kind]
    return SimpleNamespace(inner_model=inner)


def test_denoisers_of_kdiffusion_are_checked() -> None:
    plan = make_plan("sd", prediction="v")
    content = record(plan)
    trained = (torch.arange(1000).double() + 1) / 1000
    own = level(plan, trained)
    ld3_model.check_model(content, denoiser_of("v", own))
    ld3_model.check_model(content, denoiser_of("", own))  # it does not say what it predicts
    ld3_model.check_model(content, lambda x, s: x)  # it says nothing
    for wrong in (
        denoiser_of("eps", own),
        denoiser_of("v", own * 1.1),
        denoiser_of("", trained),
    ):
        with pytest.raises(ValueError, match="use a plan that was learned for this model"):
            ld3_model.check_model(content, wrong)
    flow = record(make_plan("flow", prediction="flow"))
    ld3_model.check_model(flow, denoiser_of("", trained))
    with pytest.raises(ValueError, match="got one that predicts another quantity"):
        ld3_model.check_model(flow, denoiser_of("", own))


# ---- AUTOMATIC1111 and Forge


def registered(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """{label: sampler function} and {label: schedule function} of a script."""
    web = stand_in()
    with with_modules(web):
        load_file(path, "exported_script")
    samplers = web["modules.sd_samplers"].all_samplers
    schedules = web["modules.sd_schedulers"].schedulers[1:]
    return {s.name: s.constructor("model").func for s in samplers}, {
        s.label: s.function for s in schedules
    }


def test_every_setting_of_the_web_ui_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """20 steps, a discarded sigma, Hires fix and "exactly the steps", another schedule type."""
    plans = [make_plan(steps=n, corrections=False) for n in (5, 8)]
    (path,) = export_plans("a1111", plans, tmp_path, Wish(name="x")).files
    samplers, schedules = registered(path)

    def sigmas(n: int) -> Tensor:
        found: Tensor = schedules["LD3 x"](
            n=n, sigma_min=0.03, sigma_max=14.6, inner_model=None, device="cpu"
        )
        return found

    trained = level(plans[0], (torch.arange(1000).double() + 1) / 1000)
    words = {"n": 5, "sigma_min": 0.03, "sigma_max": 14.6, "device": "cpu"}
    schedules["LD3 x"](inner_model=denoiser_of("eps", trained), **words)
    with pytest.raises(ValueError, match="got one that predicts v at"):
        schedules["LD3 x"](inner_model=denoiser_of("v", trained), **words)
    eight = Spy.of(plans[1])
    nine = sigmas(9)
    hires = int(8 / 0.7)
    cases = {
        "20 steps": (sigmas(20), 8),
        "discard": (torch.cat([nine[:-2], nine[-1:]]), 8),
        "hires": (sigmas(hires)[hires - 8 :], None),
        "karras": (torch.tensor([14.6146, 8.0, 4.0, 2.0, 1.0, 0.3, 0.1, 0.03, 0.0]), 8),
    }
    capsys.readouterr()
    for name, (given, evaluations) in cases.items():
        eight.told.clear()
        found = samplers["LD3 x"](eight.denoiser, eight.noise * given[0], given)
        assert found.isfinite().all(), name
        assert "the nearest that was learned" in capsys.readouterr().out
        if evaluations is not None:
            assert len(eight.told) == evaluations
            assert eight.loss(found) < 1e-3, name  # 14.6146 for 14.61464 in the last case
        else:
            assert 5 <= len(eight.told) <= 8


def test_an_extension_for_all_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = {"one": make_plan(), "two": make_plan("flow", prediction="flow", steps=7)}
    for name, plan in plans.items():
        script, file = export_plans("a1111-pack", [plan], tmp_path, Wish(name=name)).files
        assert file == tmp_path / "ld3_plans" / "plans" / f"{name}.json"
    (tmp_path / "ld3_plans" / "plans" / "broken.json").write_text('{"plans": [')
    other = {"format": "x", "name": "other", "plans": [record(plans["one"])]}
    (tmp_path / "ld3_plans" / "plans" / "other.json").write_text(json.dumps(other))
    samplers, schedules = registered(script)
    assert set(samplers) == set(schedules) == {"LD3 one", "LD3 two"}
    said = capsys.readouterr().out
    assert "broken.json was left out" in said and "other.json was left out" in said
    spy = Spy.of(plans["two"])
    sigmas = torch.tensor(record(plans["two"])["sigmas"])
    assert spy.loss(samplers["LD3 two"](spy.denoiser, spy.noise * sigmas[0], sigmas)) < 1e-4


class Predictor(torch.nn.Module):
    """As in Forge: rounds times to trained steps."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.sigmas = level(plan, (torch.arange(1000).double() + 1) / 1000)
        self.log_sigmas = self.sigmas.log()

    def timestep(self, sigma: Tensor) -> Tensor:
        return (sigma.log() - self.log_sigmas[:, None]).abs().argmin(0).view(sigma.shape)

    def calculate_denoised(
        self, sigma: Tensor, model_output: Tensor, model_input: Tensor
    ) -> Tensor:
        return model_input - model_output * sigma.view(-1, 1)

    def calculate_input(self, sigma: Tensor, noise: Tensor) -> Tensor:
        return noise / (sigma.view(-1, 1) ** 2 + 1).sqrt()


def test_forge_keeps_fractions_of_times() -> None:
    """During a run alone: afterwards, and after an error, it rounds again."""
    plan = make_plan("sd", net_times=True)
    spy, predictor = Spy.of(plan), Predictor(plan)
    asked: list[Tensor] = []

    class Denoiser:
        inner_model = SimpleNamespace(predictor=predictor)

        def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
            asked.append(predictor.timestep(sigma)[0])
            if len(asked) > 5:
                raise RuntimeError("stopped")
            return spy.denoiser(x, sigma)

    sigmas = torch.tensor(record(plan)["sigmas"], dtype=torch.float64)
    run(plan, sigmas, spy.noise * sigmas[0], Denoiser())
    wanted = (1000 * torch.tensor(plan.net_times[:-1]) - 1).tolist()
    assert [a.item() for a in asked] == pytest.approx(wanted, abs=0.02)
    assert not predictor.timestep(sigmas[:1]).is_floating_point()
    with pytest.raises(RuntimeError, match="stopped"):
        run(plan, sigmas, spy.noise * sigmas[0], Denoiser())
    assert not predictor.timestep(sigmas[:1]).is_floating_point()


# ---- ComfyUI


@pytest.mark.parametrize("schedule", KINDS)
def test_inpainting_keeps_the_latent(schedule: str) -> None:
    """Where the mask is zero the sample is the latent, without the noise of the last level."""
    plan = make_plan(schedule, prediction=KINDS[schedule])
    spy = Spy.of(plan)
    latent = torch.linspace(-1, 1, spy.noise.numel()).reshape(spy.noise.shape).double()
    mask = torch.zeros_like(latent)
    mask[:, ::2], mask[:, 1::4] = 1.0, 0.5
    with with_modules(modules()):
        folder = load_pack({"x": plan})
        model, sampler, sigmas = load_plan(folder, plan, "x", model=Model(plan, spy.output))
        found = sample_custom(model, sampler, sigmas, spy.noise, latent, mask)
    kept = mask == 0
    assert (found - latent)[kept].abs().max() < 1e-6
    assert (found - latent)[~kept].abs().mean() > 0.05


def load_pack(plans: dict[str, Plan]) -> Any:
    """The exported node for all plans, as a V1 class."""
    import tempfile

    out = Path(tempfile.mkdtemp())
    for name, plan in plans.items():
        export_plans("comfyui-pack", [plan], out, Wish(name=name))
    module = load_file(out / "ld3_plans" / "__init__.py", "exported_pack")
    return module.NODE_CLASS_MAPPINGS["LD3Plan"]


def load_plan(node: Any, plan: Plan, name: str, model: Any, **words: Any) -> tuple[Any, ...]:
    inputs = {
        "plan": name,
        "steps": str(len(plan.times) - 1),
        "denoise": 1.0,
        "sampler": "LD3 Sampler",
        "history": "hand over",
    }
    return run_node(node, model=model, **(inputs | words))


def test_one_node_for_all_plans(tmp_path: Path) -> None:
    """Drop-downs of files and of their steps; a pair that does not belong together is refused."""
    eps = [make_plan("sd", steps=n) for n in (5, 8)]
    flow = make_plan("flow", prediction="flow", steps=6)
    export_plans("comfyui-pack", eps, tmp_path, Wish(name="SD 1.5"))
    made = export_plans("comfyui-pack", [flow], tmp_path, Wish(name="flow"))
    assert any("KSampler has it as scheduler and sampler ld3_flow" in note for note in made.notes)
    with with_modules(modules()):
        module = load_file(tmp_path / "ld3_plans" / "__init__.py", "exported_pack")
        node = module.NODE_CLASS_MAPPINGS["LD3Plan"]
        required = node.INPUT_TYPES()["required"]
        assert required["plan"][0] == ["flow", "SD 1.5"] and required["steps"][0] == ["5", "6", "8"]
        assert all(required[key][1]["tooltip"] for key in required if key != "model")
        assert node.DESCRIPTION and all(node.OUTPUT_TOOLTIPS)
        assert node.VALIDATE_INPUTS("SD 1.5", "8") is True
        assert "expected one of [5, 8]" in node.VALIDATE_INPUTS("SD 1.5", "6")
        assert "expected a file in" in node.VALIDATE_INPUTS("gone", "6")
        for name, plan in (("SD 1.5", eps[1]), ("flow", flow)):
            spy = Spy.of(plan)
            parts = load_plan(node, plan, name, Model(plan, spy.output))
            assert spy.loss(sample_custom(*parts, spy.noise)) < 1e-4
        with pytest.raises(ValueError, match="fits models that predict the flow velocity"):
            load_plan(node, flow, "flow", Model(eps[0], spy.output))
        with pytest.raises(ValueError, match="expected one of"):
            load_plan(node, flow, "flow", Model(flow, spy.output), steps="5")
        assert len(load_plan(node, flow, "flow", Model(flow, spy.output), denoise=0.0)[2]) == 0


def test_plan_files_among_the_models(tmp_path: Path) -> None:
    """ComfyUI's folder models/ld3 is read besides the pack's own."""
    paths = ModuleType("folder_paths")
    known: list[str] = []
    paths.__dict__.update(
        models_dir=str(tmp_path / "models"),
        add_model_folder_path=lambda name, path: known.append(path),
        get_folder_paths=lambda name: known,
    )
    for name, plan in {"one": make_plan(), "two": make_plan(steps=7)}.items():
        export_plans("comfyui-pack", [plan], tmp_path, Wish(name=name))
    (tmp_path / "models" / "ld3").mkdir(parents=True)
    own = tmp_path / "ld3_plans" / "plans" / "two.json"
    own.rename(tmp_path / "models" / "ld3" / "two.json")
    with with_modules({**modules(), "folder_paths": paths}):
        module = load_file(tmp_path / "ld3_plans" / "__init__.py", "exported_pack")
        assert module.choices() == (["one", "two"], ["5", "7"])
        assert module.valid("two", "7") is True
    (tmp_path / "models" / "ld3" / "two.json").unlink()
    (tmp_path / "ld3_plans" / "plans" / "one.json").unlink()
    module = load_file(tmp_path / "ld3_plans" / "__init__.py", "exported_pack")
    assert module.choices() == (["none"], ["0"])  # and the node can be looked at all the same
    assert "put files of `ld3 export --to comfyui-pack` there" in module.valid("none", "0")


def test_lists_of_ksampler(tmp_path: Path) -> None:
    """Each plan is a scheduler and a sampler, where ComfyUI has such lists."""
    plan = make_plan("sd", steps=6)
    web = modules()
    samplers, sampling = web["comfy.samplers"], ModuleType("comfy.k_diffusion.sampling")
    k_diffusion = ModuleType("comfy.k_diffusion")
    k_diffusion.__dict__["sampling"] = sampling
    samplers.__dict__.update(
        SCHEDULER_HANDLERS={}, SCHEDULER_NAMES=[], KSAMPLER_NAMES=[], SAMPLER_NAMES=[],
        SchedulerHandler=lambda handler, use_ms: SimpleNamespace(handler=handler, use_ms=use_ms),
    )  # fmt: skip
    with with_modules({**web, "comfy.k_diffusion": k_diffusion}):
        export_plans("comfyui-pack", [plan], tmp_path, Wish(name="my plan"))
        guided = with_guidance(plan, (0,), [[1.0]] * 6, 2.0)  # which KSampler cannot run
        made = export_plans("comfyui-pack", [guided], tmp_path, Wish(name="guided"))
        assert "KSampler has it" not in " ".join(made.notes)
        load_file(tmp_path / "ld3_plans" / "__init__.py", "exported_pack")
        for listed in ("SCHEDULER_NAMES", "KSAMPLER_NAMES", "SAMPLER_NAMES"):
            assert getattr(samplers, listed) == ["ld3_my_plan"]  # once, though loaded twice
        spy = Spy.of(plan)
        model = Model(plan, spy.output)
        sigmas = samplers.SCHEDULER_HANDLERS["ld3_my_plan"].handler(model.model_sampling, 6)
        found = sample_custom(model, KSAMPLER(sampling.sample_ld3_my_plan), sigmas, spy.noise)
        assert spy.loss(found) < 1e-4
        sampler = KSAMPLER(sampling.sample_ld3_my_plan)  # as two nodes KSamplerAdvanced do
        middle = sample_custom(model, sampler, sigmas[:4], spy.noise)
        found = sample_custom(model, sampler, sigmas[3:], torch.zeros_like(spy.noise), middle)
        assert spy.loss(found) < 1e-4
        other = Model(make_plan("flow", prediction="flow"), spy.output).model_sampling
        with pytest.raises(ValueError, match="use a plan that was learned for this model"):
            samplers.SCHEDULER_HANDLERS["ld3_my_plan"].handler(other, 6)


def test_the_pack_is_made_in_the_folder_of_comfyui(tmp_path: Path) -> None:
    """`python -m ld3 export` there finds ComfyUI's own modules."""
    paths = ModuleType("folder_paths")
    with with_modules({**v3_stand_in(), "folder_paths": paths}):
        made = export_plans("comfyui-pack", [make_plan("sd")], tmp_path, Wish(name="x"))
    assert made.files


def v3_stand_in() -> dict[str, ModuleType]:
    """`comfy_api.latest` with the few names of the V3 schema that the pack uses."""

    def made(*words: Any, **names: Any) -> SimpleNamespace:
        return SimpleNamespace(words=words, **names)

    io = SimpleNamespace(
        ComfyNode=type("ComfyNode", (), {}), Schema=made, NodeOutput=lambda *values: values,
        **{name: SimpleNamespace(Input=made, Output=made)
           for name in ("Model", "Combo", "Float", "Sampler", "Sigmas", "Conditioning", "Guider")},
    )  # fmt: skip
    package, latest = ModuleType("comfy_api"), ModuleType("comfy_api.latest")
    latest.__dict__.update(io=io, ComfyExtension=type("ComfyExtension", (), {}))
    return {"comfy_api": package, "comfy_api.latest": latest}


def test_the_v3_schema_is_the_v1_node(tmp_path: Path) -> None:
    plan = make_plan("sd")
    export_plans("comfyui-pack", [plan], tmp_path, Wish(name="x"))
    with with_modules({**modules(), **v3_stand_in()}):
        module = load_file(tmp_path / "ld3_plans" / "__init__.py", "exported_pack")
        assert not hasattr(module, "NODE_CLASS_MAPPINGS")  # ComfyUI would not look further
        extension = asyncio.run(module.comfy_entrypoint())
        node, guider = asyncio.run(extension.get_node_list())
        own = guider.define_schema()
        assert [entry.words[0] for entry in own.inputs] == list(
            module.GuiderNode.INPUT_TYPES()["required"]
        )
        assert tuple(out.display_name for out in own.outputs) == module.GuiderNode.RETURN_TYPES
        schema = node.define_schema()
        v1 = module.PlanNode
        assert [entry.words[0] for entry in schema.inputs] == list(v1.INPUT_TYPES()["required"])
        assert tuple(out.display_name for out in schema.outputs) == v1.RETURN_TYPES
        assert schema.description == v1.DESCRIPTION
        assert node.validate_inputs("x", "5") is True
        spy = Spy.of(plan)
        parts = node.execute(Model(plan, spy.output), "x", "5", 1.0, "LD3 Sampler", "hand over")
        assert spy.loss(sample_custom(*parts, spy.noise)) < 1e-4


@pytest.mark.parametrize("target", ["comfyui", "comfyui-pack"])
def test_registry_metadata(tmp_path: Path, target: str) -> None:
    """As the registry of nodes wants it: name, version of three numbers, publisher, no packages."""
    made = export_plans(target, [make_plan()], tmp_path, Wish(name="A x", publisher="some-one"))
    (path,) = (file for file in made.files if file.name == "pyproject.toml")
    content = tomllib.loads(path.read_text())
    project, comfy = content["project"], content["tool"]["comfy"]
    assert re.fullmatch(r"[a-z]([a-z0-9]|[-_.](?![-_.])){0,98}", project["name"])
    assert "comfyui" not in project["name"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
    assert project["description"] and project["license"] == {"text": "apache-2.0"}
    assert project["dependencies"] == [] and comfy["PublisherId"] == "some-one"
    assert comfy["DisplayName"].startswith("LD3")
    with pytest.raises(SpecError, match="expected letters, digits and hyphens"):
        export_plans(target, [make_plan()], tmp_path, Wish(publisher='x"\n[tool'))
    with pytest.raises(SpecError, match="licence: got"):
        export_plans(target, [make_plan()], tmp_path, Wish(licence='x"}\n'))


def test_example_workflows(tmp_path: Path) -> None:
    """Every link joins an output and an input of one type; all but SamplerCustom's are ours or
    ComfyUI's own names."""
    export_plans("comfyui-pack", [make_plan(steps=6)], tmp_path, Wish(name="x"))
    files = sorted((tmp_path / "ld3_plans" / "example_workflows").glob("*.json"))
    assert [file.stem for file in files] == ["image_to_image", "inpaint", "split", "text_to_image"]
    for file in files:
        graph = json.loads(file.read_text())
        by_id = {node["id"]: node for node in graph["nodes"]}
        for number, source, port, target, slot, kind in graph["links"]:
            assert by_id[source]["outputs"][port]["type"] == kind
            assert number in by_id[source]["outputs"][port]["links"]
            assert by_id[target]["inputs"][slot]["link"] == number
        ours = [node for node in graph["nodes"] if node["type"] == "LD3Plan"]
        assert ours and all(node["widgets_values"][:2] == ["x", "6"] for node in ours)


# ---- samplers that the tools bring


def theirs_2m(denoiser: Any, x: Tensor, sigmas: Tensor) -> Tensor:
    """DPM++ 2M on x0 in k-diffusion's coordinates: second order from the second step to the end."""
    old = None
    for i in range(len(sigmas) - 1):
        x0 = denoiser(x, sigmas[i] * x.new_ones(len(x)))
        h = (sigmas[i] / sigmas[i + 1]).log()
        mixed = x0
        if old is not None:
            r = (sigmas[i - 1] / sigmas[i]).log() / h
            mixed = x0 + (x0 - old) / (2 * r)
        x = sigmas[i + 1] / sigmas[i] * x - torch.expm1(-h) * mixed
        old = x0
    return x


def test_dpmpp_2m_of_the_tools_is_the_variant_full(tmp_path: Path) -> None:
    losses = {}
    for variant in (None, "full"):
        plan = make_plan("edm", "dpmpp", 2, variant=variant, prediction="x0", net_times=False,
                         corrections=False)  # fmt: skip
        spy = Spy.of(plan)
        sigmas = torch.tensor(record(plan)["sigmas"], dtype=torch.float64)
        losses[variant] = spy.loss(theirs_2m(spy.denoiser, spy.noise * sigmas[0], sigmas))
        for tool in ("kdiffusion", "comfyui", "a1111"):
            said = "\n".join(paste_lines(tool, plan))
            name = {"kdiffusion": "sample_dpmpp_2m", "comfyui": "dpmpp_2m", "a1111": "DPM++ 2M"}
            if variant == "full":
                assert f"{name[tool]} is the plan's solver" in said
            else:
                assert f"{name[tool]} keeps second order in the last step" in said
                assert "--solver dpmpp:2:full" in said
    assert losses["full"] < 1e-10 < 1e-4 < losses[None]  # type: ignore[operator]
    other = "\n".join(paste_lines("comfyui", make_plan("flow", "dpmpp", 2, prediction="flow")))
    assert "no sampler of its own is the plan's solver" in other


@pytest.mark.parametrize("schedule", KINDS)
@pytest.mark.parametrize("guided", [(0, 2), (1,)])
def test_a_guider_for_plans_with_guidance(
    schedule: str, guided: tuple[int, ...], tmp_path: Path
) -> None:
    """The export checks sample and passes; here also begin in the middle, and other guiders."""
    plain = make_plan(schedule, prediction=KINDS[schedule], steps=4)
    rows = [[0.9], [0.6], [-0.2, 1.1], [0.1, 0.5]] if 0 in guided else [[], [1.2], [0.8], [0.5]]
    plan = with_guidance(plain, guided, rows, 3.0)
    made = export_plans("comfyui-pack", [plan], tmp_path, Wish(name="x"))
    assert any("LD3 Guider" in note for note in made.notes)
    with pytest.raises(PlanError, match="use --to comfyui-pack"):
        export_plans("comfyui", [plan], tmp_path, Wish(name="x"))
    with with_modules(modules()):
        module = load_file(tmp_path / "ld3_plans" / "__init__.py", "exported_pack")
        nodes, spy = module.NODE_CLASS_MAPPINGS, Spy.of(plan.without_guidance())
        parts = load_plan(nodes["LD3Plan"], plan, "x", Model(plan, spy.output))
        with pytest.raises(ValueError, match="expected the GUIDER of LD3 Guider"):
            sample_custom(*parts, spy.noise)
        mixer, asked = module.Mixer(record(plan), 3.0), []

        def ask(both: bool) -> list[Tensor]:
            asked.append(both)
            return [torch.ones(1), torch.zeros(1)][: 1 + both]

        told = mixer.plan["told"]
        for n in (0, 1, 2, 3, 2, 3):  # one run, then one from the third evaluation on
            found = mixer.mixed(told[n], ask)
            assert float(found) == pytest.approx(1 + 2 * sum(rows[n]))
        first = [n in guided for n in range(4)]
        assert asked == [*first, True, False]
