"""ComfyUI itself: its server on 127.0.0.1 loads the pack and runs the example workflows."""

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from comfyui_prompts import (
    CFG,
    FIRST,
    MODELS,
    SHAPES,
    SPLIT,
    STEPS,
    STOCK,
    advanced,
    guided,
    ksampler,
    stock,
    tiny,
    with_cfg_guider,
    workflows,
)
from rows import Row, apart, commit
from safetensors.torch import load_file, save_file

from ld3.export import Wish, export_plans
from ld3.export.comfyui_workflows import single
from ld3.plan import Plan
from plans import make_plan, with_guidance

HERE = Path(__file__).parent
TEST_NODES = """
import torch

class Condition:
    RETURN_TYPES, FUNCTION, CATEGORY = ("CONDITIONING",), "make", "test"
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {name: ("INT", {"max": 9999}) for name in ("seed", "tokens", "width")}}
    def make(self, seed, tokens, width):
        generator = torch.Generator().manual_seed(seed)
        return ([[torch.randn(1, tokens, width, generator=generator), {}]],)

class Half:
    RETURN_TYPES, FUNCTION, CATEGORY = ("IMAGE", "MASK"), "make", "test"
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}
    def make(self):
        mask = torch.zeros(1, 64, 64)
        mask[:, :, 32:] = 1
        return torch.zeros(1, 64, 64, 3), mask

class Count:
    RETURN_TYPES, FUNCTION, CATEGORY = ("MODEL",), "make", "test"
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",)}}
    def make(self, model):
        def counted(apply, given):
            print("LD3 test passes " + len(given["cond_or_uncond"]) * "|", flush=True)
            return apply(given["input"], given["timestep"], **given["c"])
        model = model.clone()
        model.set_model_unet_function_wrapper(counted)
        return (model,)

NODE_CLASS_MAPPINGS = {"LD3TestCondition": Condition, "LD3TestHalf": Half, "LD3TestCount": Count}
"""
GUIDED = (0, 2, 3)  # evaluations with both passes
ROWS = [[0.9], [0.6], [-0.2, 1.1], [0.1, 0.2, 0.8], [0.0, 0.1, 0.7], [0.0, 0.0, 0.5]]


def test_comfyui(checkout: Path, python: str) -> list[Row]:
    """One row for each workflow and model, and for each thing that must be refused."""
    with tempfile.TemporaryDirectory() as folder:
        return list(_rows(checkout, python, Path(folder)))


def _rows(checkout: Path, python: str, base: Path) -> Iterator[Row]:
    version = f"ComfyUI {_version(checkout)}{commit(checkout)}"
    for name in ("models/diffusion_models", "input", "output", "custom_nodes/ld3_test", "user"):
        (base / name).mkdir(parents=True)
    (base / "custom_nodes" / "ld3_test" / "__init__.py").write_text(TEST_NODES)
    plans = {
        "sd": make_plan("sd", "dpmpp", 3, steps=STEPS, name="tiny SD"),
        "wan": make_plan("flow", "dpmpp", 3, prediction="flow", steps=STEPS, name="tiny Wan"),
    }
    for name in STOCK:
        method, _, variant = name.partition(" ")
        order = 2 if method != "euler" else 1
        plans[name] = make_plan(
            "sd", method, order, variant=variant or None, steps=STEPS, corrections=False
        )
    for family in SHAPES:
        plans[f"{family} guided"] = with_guidance(plans[family], GUIDED, ROWS, CFG)
    for name, plan in plans.items():
        export_plans("comfyui-pack", [plan], base / "custom_nodes", Wish(name=name))
        plan.save(base / f"{name}.json")
    export_plans("comfyui", [plans["sd"]], base / "custom_nodes", Wish(name="one"))
    (base / "models" / "ld3").mkdir()  # plan files may lie there, too
    (base / "custom_nodes/ld3_plans/plans/wan.json").rename(base / "models" / "ld3" / "wan.json")
    for family, shape in SHAPES.items():
        drawn = 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(7))
        content = {"latent_tensor": drawn, "latent_format_version_0": torch.tensor([])}
        save_file(content, base / "input" / f"{family}.latent")
    run_python(python, checkout, "make", base / "models" / "diffusion_models")
    wanted = _ours(checkout, python, base)
    with server(checkout, python, base) as address:
        about = get(address, "/object_info/LD3Plan")["LD3Plan"]
        listed = get(address, "/object_info/KSampler")["KSampler"]["input"]["required"]
        shown = about["input"]["required"]["plan"]
        names = shown[0] if isinstance(shown[0], list) else shown[1]["options"]
        yield Row(version, "node LD3 Plan", "its drop-down", sorted(names) == sorted(plans))
        lists = [str(listed[key][0]) for key in ("sampler_name", "scheduler")]
        yield Row(version, "KSampler", "its lists", all("ld3_sd" in one for one in lists))
        for family in SHAPES:
            for name, prompt in workflows(family).items():
                sample = draw(address, base, prompt)
                if name == "inpaint":
                    kept = load_file(base / "input" / f"{family}.latent")["latent_tensor"]
                    yield Row(version, f"{family}: inpaint, kept area", "the latent",
                              apart(sample[..., :4], kept[..., :4]))  # fmt: skip
                    continue
                want = wanted[f"{family} {name}".removesuffix(" restart")]
                label = "ours, unsplit" if name.startswith("split") else "ours"
                limit = None if "restart" in name else 1e-4
                yield Row(version, f"{family}: {name}", label, apart(sample, want), limit)
            yield from _guided(version, address, base, plans, family, wanted)
        sample = draw(address, base, ksampler("sd", "ld3_sd", "ld3_sd", STEPS))
        yield Row(version, "KSampler", "ours", apart(sample, wanted["sd plain"]))
        sample = draw(address, base, tiny(single("one", STEPS).prompt(), "sd"))
        yield Row(version, "the nodes for one plan", "ours", apart(sample, wanted["sd plain"]))
        for name, sampler in STOCK.items():
            sample = draw(address, base, stock("sd", name, sampler))
            limit = None if name == "dpmpp" else 1e-3  # theirs ends in x / alpha
            yield Row(version, f"{sampler}, MODEL and SIGMAS of a {name} plan", "ours",
                      apart(sample, wanted[f"{name} plain"]), limit)  # fmt: skip
        sample = draw(address, base, ksampler("sd", "ld3_sd", "ld3_sd", 20))
        experts = draw(address, base, advanced())
        yield Row(version, "two KSamplerAdvanced, the two Wan models", "ours, unsplit",
                  apart(experts, wanted["wan split"]))  # fmt: skip
        yield Row(version, "KSampler, 20 steps", "ours, 6 steps",
                  apart(sample, wanted["sd plain"]))  # fmt: skip
        wrong = workflows("wan")["text_to_image"]
        wrong = json.loads(json.dumps(wrong).replace('"plan": "wan"', '"plan": "sd"'))
        said = json.dumps(ask(address, wrong))
        yield Row(version, "a plan of another model", "refused", "fits models that predict" in said)
        wrong = workflows("sd")["text_to_image"]
        wrong = json.loads(json.dumps(wrong).replace(f'"steps": "{STEPS}"', '"steps": "7"'))
        said = json.dumps(ask(address, wrong))
        yield Row(
            version, "steps that the plan does not have", "refused", "expected one of [6]" in said
        )
        log = (base / "log.txt").read_text()
        yield Row(version, "pyproject.toml", "its parser", "Unable to parse pyproject" not in log)


def _guided(
    version: str,
    address: str,
    base: Path,
    plans: dict[str, Plan],
    family: str,
    wanted: dict[str, torch.Tensor],
) -> Iterator[Row]:
    """A plan with guidance: the sample, the passes, and guiders that are refused."""
    name = f"{family} guided"
    for label, denoise, passes in (
        ("text_to_image", 1.0, plans[name].passes),
        ("image_to_image", 4 / STEPS, STEPS - FIRST + sum(n >= FIRST for n in GUIDED)),
    ):
        before = _passes(base)
        sample = draw(address, base, guided(family, name, denoise))
        yield Row(version, f"{family}: LD3 Guider, {label}", "ours",
                  apart(sample, wanted[f"{name} {label}"]))  # fmt: skip
        yield Row(version, f"{family}: LD3 Guider, {label}", f"{passes} passes",
                  _passes(base) - before == passes)  # fmt: skip
    said = json.dumps(ask(address, with_cfg_guider(guided(family, name))))
    yield Row(version, f"{family}: CFGGuider for a plan with guidance", "refused",
              "expected the GUIDER of LD3 Guider" in said)  # fmt: skip
    said = json.dumps(ask(address, guided(family, family)))
    yield Row(version, f"{family}: LD3 Guider for a plan without guidance", "refused",
              "expected CFGGuider for it" in said)  # fmt: skip


def _passes(base: Path) -> int:
    """Passes of the network that the log has so far."""
    lines = (base / "log.txt").read_text().splitlines()
    return sum(line.count("|") for line in lines if line.startswith("LD3 test passes"))


def _version(checkout: Path) -> str:
    text = (checkout / "comfyui_version.py").read_text()
    return text.partition('__version__ = "')[2].partition('"')[0]


def run_python(python: str, checkout: Path, *words: object) -> None:
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1] / "src")}
    command = [python, str(HERE / "comfyui_models.py"), *map(str, words)]
    subprocess.run(command, cwd=checkout, env=environment, check=True)


def _ours(checkout: Path, python: str, base: Path) -> dict[str, torch.Tensor]:
    """What this library samples in the same cases, made inside ComfyUI's Python."""
    cases: dict[str, dict[str, Any]] = {}
    for family, shape in SHAPES.items():
        case = {
            "plan": str(base / f"{family}.json"), "family": family, "shape": shape, "seed": 0,
            "cfg": CFG, "first": 0, "switch": None, "models": MODELS[family][:1],
            "latent": str(base / "input" / f"{family}.latent"),
        }  # fmt: skip
        cases[f"{family} text_to_image"] = case
        cases[f"{family} image_to_image"] = case | {"first": FIRST}
        for name in ("text_to_image", "image_to_image"):
            plan = str(base / f"{family} guided.json")
            cases[f"{family} guided {name}"] = cases[f"{family} {name}"] | {"plan": plan}
        cases[f"{family} split"] = case | {"switch": SPLIT, "models": MODELS[family]}
    for name in ("sd", *STOCK):
        cases[f"{name} plain"] = cases["sd text_to_image"] | {"plan": str(base / f"{name}.json")}
    (base / "cases.json").write_text(json.dumps(cases))
    out = base / "ours.safetensors"
    run_python(python, checkout, "ours", base / "cases.json", base / "models/diffusion_models", out)
    return load_file(out)


@contextmanager
def server(checkout: Path, python: str, base: Path) -> Iterator[str]:
    """ComfyUI on a free port of this machine, with folders of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "main.py", "--cpu", "--listen", "127.0.0.1", "--port", str(port),
               "--base-directory", str(base), "--disable-api-nodes",
               "--database-url", "sqlite:///:memory:"]  # fmt: skip
    log = (base / "log.txt").open("w")
    process = subprocess.Popen(command, cwd=checkout, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                get(address, "/system_stats")
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit((base / "log.txt").read_text()) from None
                time.sleep(1)
        yield address
    finally:
        process.terminate()
        process.wait()
        log.close()


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(address + path, timeout=10) as answer:
        return json.load(answer)


def ask(address: str, prompt: dict[str, Any]) -> dict[str, Any]:
    """What the server says of a prompt once it has run."""
    body = json.dumps({"prompt": prompt}).encode()
    request = urllib.request.Request(f"{address}/prompt", body)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            number = json.load(answer)["prompt_id"]
    except urllib.error.HTTPError as error:
        return {"error": error.read().decode()}
    for _ in range(600):
        history = get(address, f"/history/{number}")
        if number in history:
            found: dict[str, Any] = history[number]
            return found
        time.sleep(0.2)
    return {"error": "no answer"}


def draw(address: str, base: Path, prompt: dict[str, Any]) -> torch.Tensor:
    found = ask(address, prompt)
    files = [file for out in found.get("outputs", {}).values() for file in out.get("latents", ())]
    if not files:
        raise SystemExit(f"ComfyUI: {json.dumps(found)[:3000]}\n{(base / 'log.txt').read_text()}")
    return load_file(base / "output" / files[0]["filename"])["latent_tensor"]
