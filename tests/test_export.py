"""Exported plans do in other tools what they do here."""

import ast
import json
import math
import re
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ld3
from ld3.cli import main
from ld3.errors import ExportError, PlanError, SpecError
from ld3.export import TARGETS, Wish, export_plans, paste_lines
from ld3.export.a1111 import stand_in
from ld3.export.check import Spy, load_file, with_modules
from ld3.export.comfyui import run_node
from ld3.export.comfyui_standin import KSAMPLER, Model, modules, sample_custom
from ld3.export.files import ld3_plans, ld3_sampler
from ld3.export.numbers import fixed, level, record
from ld3.interpolate import guess
from ld3.plan import Plan
from ld3.scores import Scores
from plans import make_plan

NO_DIFFUSERS = [name for name in TARGETS if name not in ("diffusers", "hub")]
KINDS = {
    "sd-eps": ("sd", "eps"),
    "sd-v": ("sd", "v"),
    "flow": ("flow", "flow"),
    "edm": ("edm", "x0"),
    "vp": ("vp-linear", "eps"),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    return KINDS[request.param]


# ---- the numbers


def test_every_solver_runs_from_its_record(kind: tuple[str, str], solver: ld3.Solver) -> None:
    """What all Python exports carry: the sample is ours, in float32 too."""
    plan = make_plan(
        kind[0], solver.name, solver.order, variant=solver.variant or None, prediction=kind[1],
        corrections=False,
    )  # fmt: skip
    content = json.loads(json.dumps(record(plan)))
    for dtype, slack in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        spy = Spy.of(plan)
        sigmas = torch.tensor(content["sigmas"], dtype=torch.float64)
        sample = ld3_sampler.sample_ld3(
            [content], spy.denoiser, (spy.noise * sigmas[0]).to(dtype), sigmas
        )
        assert sample.dtype == dtype
        assert spy.loss(sample) < slack
        assert spy.told == pytest.approx(plan.table().net_times.tolist(), rel=1e-4)


@pytest.mark.parametrize("name", ["dpmpp", "unipc", "ipndm", "heun"])
def test_from_the_middle(name: str) -> None:
    """Sigmas that begin later: a denoiser that always sees one picture still draws it."""
    plan = make_plan("sd", name, steps=6, net_times=False)
    content, schedule, end = record(plan), plan.noise_schedule, plan.grid.times[-1]
    sigmas = ld3_plans.sigmas_of([content], 6, 0.5)
    assert len(sigmas) == 4
    x0, noise = torch.full((2, 5), 0.4).double(), torch.randn(2, 5).double()
    shown: list[int] = []
    found = ld3_sampler.sample_ld3(
        [content],
        lambda x, s: x0,
        x0 + sigmas[0].double() * noise,
        sigmas,
        callback=lambda seen: shown.append(seen["i"]),
    )
    wanted = schedule.log_alpha(end).exp() * x0 + schedule.log_sigma(end).exp() * noise
    assert (found - wanted).abs().max() < 1e-6
    assert shown == sorted(shown) and set(shown) == {0, 1, 2}


def test_steps_that_were_not_learned(capsys: pytest.CaptureFixture[str]) -> None:
    for schedule, prediction in (("sd", "eps"), ("flow", "flow")):
        plan = make_plan(schedule, prediction=prediction)
        content = record(plan)
        found = ld3_plans.sigmas_of([content], 8)
        assert "8 steps were not learned" in capsys.readouterr().out
        wanted = level(plan, guess(plan, 8).grid.times)
        assert torch.allclose(found.double(), wanted, rtol=1e-5)


def manual_sigmas(text: str) -> list[float]:
    """Read numbers as ComfyUI's ManualSigmas does: it knows digits and points, no exponents."""
    return [float(found) for found in re.findall(r"[-+]?(?:\d*\.*\d+)", text)]


def test_plain_decimals() -> None:
    assert manual_sigmas("1e-3") == [1.0, -3.0]  # the trap
    numbers = [80.0, 14.614641229, 1.0, 0.5, 0.0291671582, 1.23456789e-3, 1.5e-05, 3e-9, 0.0]
    text = ", ".join(fixed(numbers))
    assert "e" not in text
    assert manual_sigmas(text) == pytest.approx(numbers, rel=1e-8, abs=0)
    assert fixed(torch.tensor([2.0, 1234567.25])) == ["2.0", "1234567.25"]


# ---- text and k-diffusion


def test_text(tmp_path: Path, kind: tuple[str, str]) -> None:
    plan = make_plan(kind[0], prediction=kind[1])
    made = export_plans("text", [plan, make_plan(kind[0], prediction=kind[1], steps=7)], tmp_path)
    assert {file.name for file in made.files} == {
        f"{name}-{n}.{kind}"
        for n in (5, 7)
        for name, kind in (("sigmas", "txt"), ("timesteps", "txt"), ("plan", "json"))
    }
    read = [float(line) for line in (tmp_path / "sigmas-5.txt").read_text().splitlines()]
    assert read == pytest.approx(level(plan, plan.grid.times).tolist(), rel=1e-7)
    assert len((tmp_path / "timesteps-7.txt").read_text().split()) == 7


def k_euler(denoiser: Any, x: Tensor, sigmas: Tensor) -> Tensor:
    """Euler as k-diffusion defines it, with its d = (x - D)/sigma."""
    for now, then in pairwise(sigmas):
        x = x + (x - denoiser(x, now * x.new_ones(len(x)))) / now * (then - now)
    return x


def k_dpmpp_2m(denoiser: Any, x: Tensor, sigmas: Tensor) -> Tensor:
    """DPM-Solver++ 2M on x0 in k-diffusion's coordinates; the last step of first order, as ours."""
    old = None
    for i in range(len(sigmas) - 1):
        x0 = denoiser(x, sigmas[i] * x.new_ones(len(x)))
        h = (sigmas[i] / sigmas[i + 1]).log()
        mixed = x0
        if old is not None and i < len(sigmas) - 2:
            r = (sigmas[i - 1] / sigmas[i]).log() / h
            mixed = x0 + (x0 - old) / (2 * r)
        x = sigmas[i + 1] / sigmas[i] * x - torch.expm1(-h) * mixed
        old = x0
    return x


@pytest.mark.parametrize(
    ("name", "order", "loop"), [("euler", 1, k_euler), ("dpmpp", 2, k_dpmpp_2m)]
)
def test_kdiffusion_with_its_own_samplers(
    tmp_path: Path, kind: tuple[str, str], name: str, order: int, loop: Any
) -> None:
    """Through the wrapper the network is told the plan's times, and the sample is the plan's."""
    if kind[0] == "flow" and name == "dpmpp":
        pytest.skip("k-diffusion's DPM-Solver++ is not made for flows")
    plan = make_plan(kind[0], name, order, prediction=kind[1], corrections=False)
    export_plans("kdiffusion", [plan], tmp_path)
    module = load_file(tmp_path / "ld3_kdiffusion.py", "exported")
    spy = Spy.of(plan)
    sigmas = module.sigmas(5).double()
    wrapped = module.NetworkTimes(spy.denoiser, 5)
    schedule = plan.noise_schedule
    factor = schedule.prior_std / schedule.log_sigma(plan.grid.times[0]).exp()
    sample = loop(wrapped, spy.noise * sigmas[0] * factor, sigmas)
    if kind[0] in ("sd", "vp-linear"):  # k-diffusion ends in x / alpha
        sample = sample * plan.noise_schedule.log_alpha(plan.grid.times[-1]).exp()
    assert spy.told == pytest.approx(plan.net_times[:-1], rel=1e-4)
    assert spy.loss(sample) < 1e-4
    with pytest.raises(ValueError, match="expected one of"):
        module.NetworkTimes(spy.denoiser, 4)


# ---- ComfyUI


def nodes_of(folder: Path) -> dict[str, Any]:
    """The nodes of an exported folder by the first part of their ids."""
    pack = load_file(folder / "__init__.py", "exported_nodes")
    assert set(pack.NODE_CLASS_MAPPINGS) == set(pack.NODE_DISPLAY_NAME_MAPPINGS)
    return {name.partition("_")[0]: node for name, node in pack.NODE_CLASS_MAPPINGS.items()}


def run_one(node: Any, **inputs: Any) -> Any:
    (found,) = run_node(node, **inputs)
    return found


def test_comfyui_nodes(tmp_path: Path, kind: tuple[str, str]) -> None:
    """Sigmas and sampler give our sample, with fractions of times that the model would round."""
    plans = [make_plan(kind[0], prediction=kind[1], steps=n) for n in (5, 8)]
    made = export_plans("comfyui", plans, tmp_path, Wish(name="my model"))
    folder = tmp_path / "ld3_my_model"
    assert all(file.is_relative_to(folder) for file in made.files)
    ast.parse((folder / "__init__.py").read_text(), feature_version=(3, 10))
    nodes = nodes_of(folder)
    assert {node.RETURN_TYPES[0] for node in nodes.values()} == {"SIGMAS", "SAMPLER", "MODEL"}
    losses = {}
    with with_modules(modules()):
        for steps, plan in zip((5, 8), plans, strict=True):
            sigmas = run_one(nodes["LD3Sigmas"], steps=steps, denoise=1.0)
            assert sigmas.dtype == torch.float32 and sigmas.shape == (steps + 1,)
            sampler = run_one(nodes["LD3Sampler"])
            for patch in (False, True):
                spy = Spy.of(plan)
                model = Model(plan, spy.output)
                if patch:
                    before = model.get_model_object("model_sampling")
                    given, model = model, run_one(
                        nodes["LD3NetworkTimes"], model=model, steps=steps, sampler="LD3 Sampler"
                    )  # fmt: skip
                    assert given.get_model_object("model_sampling") is before  # a clone is patched
                losses[steps, patch] = spy.loss(sample_custom(model, sampler, sigmas, spy.noise))
    assert max(losses.values()) < 1e-4


def test_comfyui_with_its_own_sampler(tmp_path: Path, kind: tuple[str, str]) -> None:
    """Euler of ComfyUI with the sigmas and the patched model: the plan's network times."""
    plan = make_plan(kind[0], "euler", prediction=kind[1], corrections=False)
    export_plans("comfyui", [plan], tmp_path, Wish(name="x"))
    nodes = nodes_of(tmp_path / "ld3_x")
    spy = Spy.of(plan)
    sampler = KSAMPLER(lambda model, x, sigmas, **_: k_euler(model.inner_model, x, sigmas.double()))
    with with_modules(modules()):
        sigmas = run_one(nodes["LD3Sigmas"], steps=5, denoise=1.0)
        model = run_one(
            nodes["LD3NetworkTimes"], model=Model(plan, spy.output), steps=5, sampler="other"
        )
        found = sample_custom(model, sampler, sigmas, spy.noise)
        with pytest.raises(ValueError, match="expected one of"):
            run_one(nodes["LD3NetworkTimes"], model=model, steps=6, sampler="other")
    assert spy.told == pytest.approx(plan.net_times[:-1], rel=1e-3)
    assert spy.loss(found) < 5e-3  # begins with 0.999 of the noise, ends in x / alpha


def test_comfyui_image_to_image(tmp_path: Path) -> None:
    plan = make_plan("sd", net_times=False)
    export_plans("comfyui", [plan], tmp_path, Wish(name="x"))
    nodes = nodes_of(tmp_path / "ld3_x")
    with with_modules(modules()):
        sampler = run_one(nodes["LD3Sampler"])
        for denoise, count in ((1.0, 6), (0.6, 4), (0.2, 2), (0.0, 0)):
            sigmas = run_one(nodes["LD3Sigmas"], steps=5, denoise=denoise)
            assert len(sigmas) == count
            if count > 1:
                spy = Spy.of(plan)
                latent = torch.full_like(spy.noise, 0.2)
                model = Model(plan, spy.output)
                assert sample_custom(model, sampler, sigmas, spy.noise, latent).isfinite().all()
                assert len(spy.told) == count - 1
        with pytest.raises(ValueError, match="take them from the same plan"):
            sample_custom(model, sampler, torch.tensor([10.0, 3.0, 1.0]), spy.noise)


def test_comfyui_folder(tmp_path: Path) -> None:
    plan = make_plan("sd")
    export_plans("comfyui", [plan], tmp_path, Wish(name="Dream XL"))
    folder = tmp_path / "ld3_dream_xl"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "ld3-dream-xl"
    text = (folder / "manual_sigmas_5.txt").read_text()
    assert manual_sigmas(text) == pytest.approx(level(plan, plan.grid.times).tolist(), rel=1e-7)
    graph = json.loads((folder / "workflows" / "example.json").read_text())
    by_id = {node["id"]: node for node in graph["nodes"]}
    for number, source, port, target, slot, kind in graph["links"]:
        assert by_id[source]["outputs"][port]["type"] == kind
        assert number in by_id[source]["outputs"][port]["links"]
        assert by_id[target]["inputs"][slot]["link"] == number
    ours = {node["type"] for node in graph["nodes"] if node["type"].startswith("LD3")}
    assert ours == set(load_file(folder / "__init__.py", "exported").NODE_CLASS_MAPPINGS)


# ---- AUTOMATIC1111 and Forge


def test_a1111_script(tmp_path: Path, kind: tuple[str, str]) -> None:
    """One file, old syntax, torch alone; registered once; samples as we do, from the middle too."""
    plan = make_plan(kind[0], prediction=kind[1])
    (path,) = export_plans("a1111", [plan], tmp_path, Wish(name="My Model!")).files
    assert path.relative_to(tmp_path).as_posix() == "ld3_my_model/scripts/ld3_my_model.py"
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    top = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert top <= {"json", "math", "torch"}
    web = stand_in()
    web["modules.sd_schedulers"].all_schedulers = []  # as in some forks
    with with_modules(web):
        load_file(path, "exported_script")
    (sampler,) = web["modules.sd_samplers"].all_samplers
    assert web["modules.sd_samplers"].all_samplers_map["LD3 My Model"] is sampler
    entry = web["modules.sd_schedulers"].schedulers_map[sampler.options["scheduler"]]
    assert entry.label == "LD3 My Model" and web["modules.sd_schedulers"].all_schedulers == [entry]
    sigmas = entry.function(n=5, sigma_min=0.1, sigma_max=10, inner_model=None, device="cpu")
    spy = Spy.of(plan)
    run = sampler.constructor("model").func
    assert spy.loss(run(spy.denoiser, spy.noise * sigmas[0], sigmas)) < 1e-4
    spy.told.clear()
    assert run(spy.denoiser, spy.noise * sigmas[2], sigmas[2:]).isfinite().all()
    assert len(spy.told) == 3


def test_an_old_web_ui_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = export_plans("a1111", [make_plan()], tmp_path).files
    load_file(path, "exported_script")  # there is no web UI here at all
    assert "not registered" in capsys.readouterr().out


# ---- diffusers and the hub


def test_diffusers_folder(tmp_path: Path) -> None:
    pytest.importorskip("diffusers", reason="pip install 'ld3[diffusers]'")
    from ld3.diffusers import LD3Scheduler

    plans = [make_plan(steps=n, net_times=False, corrections=False) for n in (5, 8)]
    made = export_plans("diffusers", plans, tmp_path)
    loaded = LD3Scheduler.from_pretrained(tmp_path / "scheduler")
    assert [plan["nfe"] for plan in loaded.config.plans] == [5, 8]
    stock = json.loads((tmp_path / "stock.json").read_text())["5"]
    assert stock["scheduler"] == "DPMSolverMultistepScheduler"
    assert all(isinstance(n, int) for n in stock["numbers"])  # rounded, not cut
    assert 0 < stock["loss"] < 2e-3
    assert any("0.0" in note and "%" in note for note in made.notes)


@pytest.mark.parametrize(
    ("schedule", "method", "scheduler", "loss"),
    [
        ("sd", "euler", "EulerDiscreteScheduler", 2e-3),
        ("sd", "dpmpp", "DPMSolverMultistepScheduler", 2e-3),
        ("flow", "euler", "FlowMatchEulerDiscreteScheduler", 5e-3),
        ("flow", "unipc", "UniPCMultistepScheduler", 5e-3),
        ("sd", "unipc", None, None),
        ("sd", "ipndm", None, None),
        ("flow", "dpmpp", None, None),
        ("edm", "euler", None, None),
    ],
)
def test_stock_lists(
    tmp_path: Path, schedule: str, method: str, scheduler: str | None, loss: float | None
) -> None:
    """Where a stock scheduler can run the times, its loss is small; else it is said why not."""
    pytest.importorskip("diffusers", reason="pip install 'ld3[diffusers]'")
    prediction = {"sd": "eps", "flow": "flow", "edm": "x0"}[schedule]
    variant = "bh2" if method == "unipc" else None
    plain = make_plan(schedule, method, variant=variant, prediction=prediction, net_times=False,
                      corrections=False)  # fmt: skip
    made = export_plans("diffusers", [plain], tmp_path)
    (entry,) = json.loads((tmp_path / "stock.json").read_text()).values()
    assert entry.get("scheduler") == scheduler
    if loss is None:
        assert entry["none"] and any("none;" in note for note in made.notes)
        return
    assert entry["loss"] < loss
    tuned = make_plan(schedule, method, variant=variant, prediction=prediction)
    made = export_plans("diffusers", [tuned], tmp_path)
    assert any("without the learned coefficients" in note for note in made.notes)
    (worse,) = json.loads((tmp_path / "stock.json").read_text()).values()
    assert worse["loss"] > entry["loss"]


def test_a_version_that_changes_numbers_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    """As 0.40 and 0.41 did: lists are taken and then shifted."""
    diffusers = pytest.importorskip("diffusers", reason="pip install 'ld3[diffusers]'")
    kind = diffusers.FlowMatchEulerDiscreteScheduler
    original = kind.set_timesteps

    def shifted(self: Any, sigmas: Any = None, **words: Any) -> None:
        original(self, sigmas=[0.9 * s for s in sigmas], **words)

    monkeypatch.setattr(kind, "set_timesteps", shifted)
    with pytest.raises(ExportError, match=f"diffusers {re.escape(diffusers.__version__)}: Flow"):
        export_plans("diffusers", [make_plan("flow", "euler", prediction="flow")], tmp_path)


def test_a_wrong_export_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    """The self-checks can fail: with one number changed, each exporter says so."""

    def with_wrong(key: str) -> Any:
        def wrong(plan: Plan) -> dict[str, Any]:
            content = record(plan)
            content[key][1] *= 1.05
            return content

        return wrong

    for key in ("ratios", "told"):
        for name in [name for name in NO_DIFFUSERS if name != "sigmas"]:  # it has no table
            monkeypatch.setattr(ld3.export.numbers, "record", with_wrong(key))
            module = getattr(ld3.export, name.removesuffix("-pack"))
            if hasattr(module, "record"):
                monkeypatch.setattr(module, "record", with_wrong(key))
            with pytest.raises(ExportError):
                export_plans(name, [make_plan()], tmp_path / name)


def distance(value: float) -> Scores:
    return Scores(distance=value, to_teacher=0.0, to_accurate=0.0)


def test_hub_folder(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="pip install 'ld3[diffusers]'")
    picture = tmp_path / "samples.png"
    picture.write_bytes(b"png")
    plan = make_plan().model_copy(
        update={"scores": {"learned": distance(0.001), "edm": distance(0.004)}}
    )
    wish = Wish("A model", "owner/name", "cc0-1.0", (picture,))
    made = export_plans("hub", [plan], tmp_path / "out", wish)
    assert all(file.is_file() for file in made.files)
    card = hub.ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.base_model == "owner/name" and card.data.license == "cc0-1.0"
    assert {"ld3", "nfe-5", "dpmpp"} <= set(card.data.tags)
    for said in ("| 5 | learned | 0.00100 |", "dpmpp-3", "report/0-samples.png", "owner/name"):
        assert said in card.text
    for link in re.findall(r"\]\(([^)]+)\)", card.text):
        assert (tmp_path / "out" / link).is_file()
    assert Plan.load(tmp_path / "out" / "plan-5.json") == plan
    for wrong in (Wish(base_model="../../etc"), Wish(base_model="a\nb: c/d"), Wish(licence="x: y")):
        with pytest.raises(SpecError, match="expected"):
            export_plans("hub", [plan], tmp_path / "out", wrong)


# ---- hostile and wrong input


HOSTILE = [
    "../../etc/passwd",
    'x"; import os; os.system("echo")  #',
    "a\nb\r\nc: [d](e) | f `g`",
    "'''\n\"\"\"\\",
    "☃" * 80,
    "true null NaN",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("target", NO_DIFFUSERS)
def test_names_never_become_code_or_paths(tmp_path: Path, target: str, name: str) -> None:
    """From the plan's model name and from --name alike."""
    plan = make_plan(name=name)
    for wish in (Wish(), Wish(name=name)):
        made = export_plans(target, [plan], tmp_path / "out", wish)
        for file in made.files:
            assert file.resolve().is_relative_to((tmp_path / "out").resolve())
            assert re.fullmatch(r"[\w.-]+", file.name)
            if file.suffix == ".py":
                tree = ast.parse(file.read_text())
                called = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
                assert not called & {"os.system", "eval", "exec"}
            if file.suffix == ".toml":
                assert set(tomllib.loads(file.read_text())) == {"project", "tool"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_a_hostile_name_on_a_model_card(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="pip install 'ld3[diffusers]'")
    export_plans("hub", [make_plan(name="a\n---\nlicense: mit\n# b [c](d) | `e`")], tmp_path)
    card = hub.ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "apache-2.0"
    assert "[c](d)" not in card.text and "\nlicense" not in card.text


def test_plans_that_do_not_belong_together(tmp_path: Path) -> None:
    for plans, said in (
        ([make_plan(), make_plan("flow", prediction="flow", steps=6)], "another noise schedule"),
        ([make_plan(), make_plan(prediction="v", steps=6)], "another prediction"),
        ([make_plan(), make_plan()], "one of each number"),
        ([], "got no plan"),
    ):
        with pytest.raises(PlanError, match=said):
            export_plans("text", plans, tmp_path)
    with pytest.raises(SpecError, match="did you mean 'comfyui'"):
        export_plans("comfy", [make_plan()], tmp_path)
    assert not list(tmp_path.iterdir())


# ---- the command line


def ld3_says(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    make_plan().save(path)
    code, out, _ = ld3_says(capsys, "export", path, "--to", "text", "--out", tmp_path / "out")
    assert code == 0
    for line in out.splitlines():
        if line.startswith("wrote"):
            assert Path(line.split("  ")[1]).is_file()
    for target in TARGETS:
        code, out, err = ld3_says(capsys, "show", path, "--as", target)
        if TARGETS[target].lines is None:
            assert code == 2 and f"unknown target '{target}'" in err
            continue
        assert code == 0
        numbers = "timesteps=[999, " if target == "diffusers" else "14.6146412"
        assert numbers in out
        if target in ("diffusers", "a1111", "kdiffusion"):
            ast.parse(out)  # what is pasted is Python
    assert list(paste_lines("text", make_plan()))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "plan.json", "--to", "comfyu"], "did you mean 'comfyui'"),
        (["export", "nowhere.json", "--to", "text"], "cannot read nowhere.json"),
        (["export", "--to", "text"], "Missing argument"),
        (["export", "plan.json"], "--to"),
        (["show", "plan.json", "--as", "a111"], "did you mean 'a1111'"),
        (["show", "plan.json", "--as", "text", "--nfe", "7"], "got 7"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    make_plan().save("plan.json")
    code, out, err = ld3_says(capsys, *words)
    assert code == 2 and out == ""
    assert said in err and len(err.strip().splitlines()) == 1


def test_other_exports_do_not_need_diffusers(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("diffusers", "ld3.diffusers", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, name, None)
    for target in NO_DIFFUSERS:
        assert export_plans(target, [make_plan()], tmp_path / target).files


# ---- sigmas for servers and stable-diffusion.cpp


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")
@pytest.mark.parametrize(("noise", "prediction"), [("sd", "eps"), ("flow", "flow"), ("edm", "x0")])
def test_sigmas_for_servers(noise: str, prediction: str, tmp_path: Path) -> None:
    shift = 3.0
    flow = ld3.Flow(0.001, shift * 0.999 / (1 + (shift - 1) * 0.999))
    schedule = flow if noise == "flow" else ld3.make_schedule(noise)
    plan = make_plan(schedule, "euler", prediction=prediction, net_times=False, corrections=False)
    made = export_plans("sigmas", [plan], tmp_path)
    assert made.notes == ["5 steps: stable-diffusion.cpp: euler is the plan's solver"]
    wanted = level(plan, plan.grid.times).tolist()
    body = json.loads((tmp_path / "sdcpp-5.json").read_text())["sample_params"]
    assert (body["sample_method"], body["sample_steps"]) == ("euler", 5)
    assert body["custom_sigmas"] == wanted
    line = (tmp_path / "sdcpp-5.txt").read_text()
    listed = re.fullmatch(r'--sampling-method euler --steps 5 --sigmas "([0-9.,]+)"\n', line)
    assert listed is not None
    assert [float(n) for n in listed[1].split(",")] == pytest.approx(wanted, rel=1e-7)
    if noise == "edm":
        assert not [*tmp_path.glob("diffusers-*"), *tmp_path.glob("sglang-*")]
        return
    diffusers = pytest.importorskip("diffusers")
    content = json.loads((tmp_path / "diffusers-5.json").read_text())
    config = json.loads((tmp_path / "sglang-5.json").read_text())
    assert (config["backend"], config["num_inference_steps"]) == ("diffusers", 5)
    handed = config["diffusers_kwargs"]["sigmas"]  # to the scheduler of the model, which shifts
    if noise == "sd":
        betas = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
        stock = diffusers.EulerDiscreteScheduler(**betas)
        stock.set_timesteps(sigmas=content["sigmas"])
        assert stock.sigmas.tolist() == pytest.approx(wanted, rel=1e-5)
        assert handed == content["sigmas"]
        return
    kind = diffusers.FlowMatchEulerDiscreteScheduler
    shifted = content["if_the_server_shifts"]
    assert shifted["shift"] == pytest.approx(3.0)
    for stock, numbers in (
        (kind(shift=1.0), content["sigmas"]),
        (kind(shift=3.0), shifted["sigmas"]),
        (kind(shift=3.0), handed),
    ):
        stock.set_timesteps(sigmas=numbers)
        assert stock.sigmas.tolist() == pytest.approx([*wanted[:-1], 0.0], rel=1e-5)
    moving = kind(use_dynamic_shifting=True)  # as in Flux: exp(mu) is the shift
    moving.set_timesteps(sigmas=shifted["sigmas"], mu=math.log(3.0))
    assert moving.sigmas.tolist() == pytest.approx([*wanted[:-1], 0.0], rel=1e-5)


def test_wrong_sigmas_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan("flow", "euler", prediction="flow")
    right = ld3.export.sigmas.request(plan)
    for part in (right, right["if_the_server_shifts"]):
        part["sigmas"][1] *= 1.001
        monkeypatch.setattr(ld3.export.sigmas, "request", lambda plan: right)
        with pytest.raises(ExportError, match="expected the plan's"):
            export_plans("sigmas", [plan], tmp_path)
        part["sigmas"][1] /= 1.001
    export_plans("sigmas", [plan], tmp_path)


def test_sigmas_say_what_they_cannot_hold(tmp_path: Path) -> None:
    made = export_plans("sigmas", [make_plan("sd", "dpmpp", 2)], tmp_path)
    last, lost, euler = made.notes
    assert "dpm++2m keeps second order in the last step" in last
    assert "cannot hold the plan's learned coefficients and network times" in lost
    assert "the times are for dpmpp-2; a server that steps with Euler" in euler
    assert "--sampling-method dpm++2m " in (tmp_path / "sdcpp-5.txt").read_text()
    for plan in (make_plan("sd", "unipc", 3), make_plan("flow", "dpmpp", 2, prediction="flow")):
        made = export_plans("sigmas", [plan], tmp_path)
        assert "no sampler of its own is the plan's solver" in made.notes[0]
        assert (tmp_path / "sdcpp-5.txt").read_text().startswith("--steps 5")
    shown = "\n".join(paste_lines("sigmas", make_plan("flow", "euler", prediction="flow")))
    assert "where the scheduler shifts by 1" in shown and "sd-cli --sampling-method" in shown
