"""The example workflows with tiny models, and other graphs, in the form the server takes."""

import json
from typing import Any

from ld3.export.comfyui_workflows import examples

SHAPES = {"sd": [1, 4, 8, 8], "wan": [1, 16, 2, 8, 8]}
MODELS = {"sd": ["sd", "sd"], "wan": ["wan-high", "wan-low"]}
SPLIT, FIRST, STEPS, CFG = 3, 2, 6, 2.0
STOCK = {"euler": "euler", "heun": "heun", "dpmpp": "dpmpp_2m", "dpmpp full": "dpmpp_2m"}


def workflows(family: str) -> dict[str, dict[str, Any]]:
    """The shipped examples with a tiny model, a random text, and latents in place of images."""
    found = {}
    for name, flow in examples(family, STEPS).items():
        prompt = flow.prompt()
        found[name] = tiny(prompt, family)
    found["image_to_image"] = json.loads(
        json.dumps(found["image_to_image"]).replace('"denoise": 0.6', f'"denoise": {4 / STEPS}')
    )
    found["split restart"] = json.loads(json.dumps(found["split"]).replace("hand over", "restart"))
    return found


def tiny(prompt: dict[str, Any], family: str) -> dict[str, Any]:
    tokens, width = {"sd": (77, 768), "wan": (16, 4096)}[family]
    models, texts, drawn = list(MODELS[family]), [1, 2], None
    kept = {}
    for key, node in prompt.items():
        kind, inputs = node["class_type"], node["inputs"]
        if kind == "CheckpointLoaderSimple":
            name = f"{models.pop(0)}.safetensors"
            node = _node("UNETLoader", unet_name=name, weight_dtype="default")
        elif kind == "CLIPTextEncode":
            node = _node("LD3TestCondition", seed=texts.pop(0), tokens=tokens, width=width)
        elif kind == "LoadImage":
            node = _node("LD3TestHalf")
        elif kind == "VAEEncode":
            node = _node("LoadLatent", latent=f"{family}.latent")
        elif kind == "EmptyLatentImage":
            node = _empty(family)
        elif kind == "VAEDecode":
            drawn = inputs["samples"]
            continue
        elif kind == "SaveImage":
            node = _node("SaveLatent", samples=drawn, filename_prefix="drawn")
        elif kind == "SamplerCustom":
            node = _node(kind, **(inputs | {"cfg": CFG}))
        kept[key] = node
    return kept


def _node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def _empty(family: str) -> dict[str, Any]:
    size = {"width": 64, "height": 64, "batch_size": 1}
    if family == "wan":
        return _node("EmptyHunyuanLatentVideo", length=5, **size)
    return _node("EmptyLatentImage", **size)


def ksampler(family: str, sampler: str, scheduler: str, steps: int) -> dict[str, Any]:
    """A plain KSampler with entries of its lists."""
    prompt = workflows(family)["text_to_image"]
    (number,) = (key for key, node in prompt.items() if node["class_type"] == "SamplerCustom")
    (plan,) = (key for key, node in prompt.items() if node["class_type"] == "LD3Plan")
    inputs = prompt[number]["inputs"]
    prompt[number] = _node(
        "KSampler", model=prompt[plan]["inputs"]["model"], seed=0, steps=steps, cfg=CFG,
        sampler_name=sampler, scheduler=scheduler, positive=inputs["positive"],
        negative=inputs["negative"], latent_image=inputs["latent_image"], denoise=1.0,
    )  # fmt: skip
    del prompt[plan]
    return prompt


def advanced() -> dict[str, Any]:
    """Two models by two KSamplerAdvanced, as most workflows for Wan 2.2 have them."""
    prompt = workflows("wan")["split"]
    own = [key for key, node in prompt.items() if node["class_type"] == "LD3Plan"]
    names = {"sampler_name": "ld3_wan", "scheduler": "ld3_wan", "steps": STEPS, "noise_seed": 0}
    stages = ({"add_noise": "enable", "start_at_step": 0, "end_at_step": SPLIT,
               "return_with_leftover_noise": "enable"},
              {"add_noise": "disable", "start_at_step": SPLIT, "end_at_step": 10000,
               "return_with_leftover_noise": "disable"})  # fmt: skip
    both = [key for key, node in prompt.items() if node["class_type"] == "SamplerCustom"]
    for key, plan, stage in zip(both, own, stages, strict=True):
        old = prompt[key]["inputs"]
        kept = {name: old[name] for name in ("positive", "negative", "latent_image", "cfg")}
        model = prompt[plan]["inputs"]["model"]
        prompt[key] = _node("KSamplerAdvanced", model=model, **kept, **names, **stage)
    return {key: node for key, node in prompt.items()
            if node["class_type"] not in ("LD3Plan", "SplitSigmas")}  # fmt: skip


def stock(family: str, plan: str, sampler: str) -> dict[str, Any]:
    """A sampler of ComfyUI on the SIGMAS of a plan, with its network times in the MODEL."""
    prompt = workflows(family)["text_to_image"]
    for node in prompt.values():
        if node["class_type"] == "LD3Plan":
            node["inputs"] |= {"plan": plan, "sampler": "other"}
        if node["class_type"] == "SamplerCustom":
            node["inputs"]["sampler"] = ["100", 0]
    return prompt | {"100": _node("KSamplerSelect", sampler_name=sampler)}


def guided(family: str, plan: str, denoise: float = 1.0) -> dict[str, Any]:
    """A plan with guidance: LD3 Guider in SamplerCustomAdvanced, and passes counted in the log."""
    name = "text_to_image" if denoise == 1 else "image_to_image"
    prompt = workflows(family)[name]
    (number,) = (key for key, node in prompt.items() if node["class_type"] == "SamplerCustom")
    (made,) = (key for key, node in prompt.items() if node["class_type"] == "LD3Plan")
    inputs, own = prompt[number]["inputs"], prompt[made]["inputs"]
    own |= {"plan": plan, "denoise": denoise}
    texts = {key: inputs[key] for key in ("positive", "negative")}
    chosen = {"plan": plan, "steps": own["steps"], "cfg": 0.0}
    prompt[number] = _node(
        "SamplerCustomAdvanced", noise=["101", 0], guider=["103", 0], sampler=inputs["sampler"],
        sigmas=inputs["sigmas"], latent_image=inputs["latent_image"],
    )  # fmt: skip
    return prompt | {
        "101": _node("RandomNoise", noise_seed=0),
        "102": _node("LD3TestCount", model=[made, 0]),
        "103": _node("LD3Guider", model=["102", 0], **texts, **chosen),
    }


def with_cfg_guider(prompt: dict[str, Any]) -> dict[str, Any]:
    """The same graph with ComfyUI's own guider."""
    inputs = prompt["103"]["inputs"]
    kept = {key: inputs[key] for key in ("model", "positive", "negative")}
    return prompt | {"103": _node("CFGGuider", cfg=CFG, **kept)}
