"""Example workflows for ComfyUI, in the form it saves and in the form its server takes."""

from dataclasses import dataclass, field
from typing import Any

Port = tuple[int, int]
"""A node's number and one of its outputs."""


@dataclass
class Workflow:
    """Nodes and the links between them."""

    nodes: list[dict[str, Any]] = field(default_factory=list)
    links: list[list[Any]] = field(default_factory=list)

    def add(
        self,
        kind: str,
        outputs: str,
        inputs: dict[str, Port] | None = None,
        widgets: dict[str, Any] | None = None,
    ) -> int:
        """A node; `outputs` are their types, `inputs` where its inputs come from. Its number."""
        number = len(self.nodes) + 1
        wired = []
        for slot, (key, (source, port)) in enumerate((inputs or {}).items()):
            out = self.nodes[source - 1]["outputs"][port]
            self.links.append([len(self.links) + 1, source, port, number, slot, out["type"]])
            out["links"].append(len(self.links))
            wired.append({"name": key, "type": out["type"], "link": len(self.links)})
        values: list[Any] = []
        for key, value in (widgets or {}).items():
            values += [value, "fixed"] if key == "noise_seed" else [value]
        self.nodes.append(
            {
                "id": number,
                "type": kind,
                "pos": [40 + 320 * ((number - 1) % 4), 60 + 260 * ((number - 1) // 4)],
                "size": [280, 180],
                "flags": {},
                "order": number - 1,
                "mode": 0,
                "inputs": wired,
                "outputs": [
                    {"name": each, "type": each, "links": [], "slot_index": slot}
                    for slot, each in enumerate(outputs.split())
                ],
                "properties": {"Node name for S&R": kind},
                "widgets_values": values,
                "widgets": widgets or {},
            }
        )
        return number

    def saved(self) -> dict[str, Any]:
        """As the window saves it."""
        return {
            "last_node_id": len(self.nodes),
            "last_link_id": len(self.links),
            "nodes": [
                {key: value for key, value in node.items() if key != "widgets"}
                for node in self.nodes
            ],
            "links": self.links,
            "groups": [],
            "config": {},
            "extra": {},
            "version": 0.4,
        }

    def prompt(self) -> dict[str, Any]:
        """As the server takes it: inputs by name, links as [node, output]."""
        ends = {number: [str(source), port] for number, source, port, *_ in self.links}
        return {
            str(node["id"]): {
                "class_type": node["type"],
                "inputs": node["widgets"]
                | {wired["name"]: ends[wired["link"]] for wired in node["inputs"]},
            }
            for node in self.nodes
        }


def single(name: str, steps: int) -> Workflow:
    """Text to image with the three nodes of one plan."""
    flow = Workflow()
    loader, texts = _loaded(flow)
    latent = flow.add("EmptyLatentImage", "LATENT", None, _SIZE)
    widgets = {"steps": steps, "sampler": "LD3 Sampler"}
    times = flow.add(f"LD3NetworkTimes_{name}", "MODEL", {"model": (loader, 0)}, widgets)
    sampler = flow.add(f"LD3Sampler_{name}", "SAMPLER", None, {"history": "hand over"})
    sigmas = flow.add(f"LD3Sigmas_{name}", "SIGMAS", None, {"steps": steps, "denoise": 1.0})
    drawn = _sampled(flow, texts, (times, 0), (sampler, 0), (sigmas, 0), latent)
    return _shown(flow, loader, drawn)


def examples(plan: str, steps: int) -> dict[str, Workflow]:
    """The four of the pack for all plans, by name."""
    return {
        "text_to_image": _one(plan, steps, 1.0),
        "image_to_image": _one(plan, steps, 0.6),
        "inpaint": _one(plan, steps, 1.0, mask=True),
        "split": _split(plan, steps),
    }


_SIZE = {"width": 512, "height": 512, "batch_size": 1}


def _loader(flow: Workflow, file: str) -> int:
    return flow.add("CheckpointLoaderSimple", "MODEL CLIP VAE", None, {"ckpt_name": file})


def _loaded(flow: Workflow) -> tuple[int, dict[str, Port]]:
    """A checkpoint, with a prompt and an empty negative prompt."""
    loader = _loader(flow, "model.safetensors")
    texts = {
        key: (flow.add("CLIPTextEncode", "CONDITIONING", {"clip": (loader, 1)}, {"text": text}), 0)
        for key, text in (("positive", "a photo of a cat"), ("negative", ""))
    }
    return loader, texts


def _plan(flow: Workflow, loader: int, plan: str, steps: int, denoise: float) -> int:
    widgets: dict[str, Any] = {"plan": plan, "steps": str(steps), "denoise": denoise}
    widgets |= {"sampler": "LD3 Sampler", "history": "hand over"}
    return flow.add("LD3Plan", "MODEL SAMPLER SIGMAS", {"model": (loader, 0)}, widgets)


def _sampled(
    flow: Workflow,
    texts: dict[str, Port],
    model: Port,
    sampler: Port,
    sigmas: Port,
    latent: int,
    noise: bool = True,
) -> int:
    inputs = {"model": model, **texts, "sampler": sampler, "sigmas": sigmas}
    inputs["latent_image"] = (latent, 0)
    widgets = {"add_noise": noise, "noise_seed": 0, "cfg": 7.5}
    return flow.add("SamplerCustom", "LATENT LATENT", inputs, widgets)


def _shown(flow: Workflow, loader: int, drawn: int) -> Workflow:
    image = flow.add("VAEDecode", "IMAGE", {"samples": (drawn, 0), "vae": (loader, 2)})
    flow.add("SaveImage", "", {"images": (image, 0)}, {"filename_prefix": "ld3"})
    return flow


def _one(plan: str, steps: int, denoise: float, mask: bool = False) -> Workflow:
    """Text to image, from an image if `denoise` is below 1, and inside of a mask."""
    flow = Workflow()
    loader, texts = _loaded(flow)
    if denoise < 1 or mask:
        image = flow.add("LoadImage", "IMAGE MASK", None, {"image": "example.png"})
        latent = flow.add("VAEEncode", "LATENT", {"pixels": (image, 0), "vae": (loader, 2)})
        if mask:
            wires = {"samples": (latent, 0), "mask": (image, 1)}
            latent = flow.add("SetLatentNoiseMask", "LATENT", wires)
    else:
        latent = flow.add("EmptyLatentImage", "LATENT", None, _SIZE)
    made = _plan(flow, loader, plan, steps, denoise)
    drawn = _sampled(flow, texts, (made, 0), (made, 1), (made, 2), latent)
    return _shown(flow, loader, drawn)


def _split(plan: str, steps: int) -> Workflow:
    """The high part with one model, the low part with another; one SAMPLER for both, so that the
    second part continues with the history of the first."""
    flow = Workflow()
    loader, texts = _loaded(flow)
    refiner = _loader(flow, "second.safetensors")
    latent = flow.add("EmptyLatentImage", "LATENT", None, _SIZE)
    made = _plan(flow, loader, plan, steps, 1.0)
    second = _plan(flow, refiner, plan, steps, 1.0)
    middle = {"step": max(1, steps // 2)}
    parts = flow.add("SplitSigmas", "SIGMAS SIGMAS", {"sigmas": (made, 2)}, middle)
    high = _sampled(flow, texts, (made, 0), (made, 1), (parts, 0), latent)
    low = _sampled(flow, texts, (second, 0), (made, 1), (parts, 1), high, noise=False)
    return _shown(flow, refiner, low)
