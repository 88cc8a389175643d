"""Class-conditional latent diffusion (cin256 of CompVis), for which diffusers has no pipeline.

A class is one row of an embedding, which the U-Net attends to as one token. The last row is the
empty class, for guidance. On disk it is a folder like those of diffusers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.options import PipelineOptions
from ld3.store import write_json
from ld3.zoo.pipelines.coders import image_decoder, sides
from ld3.zoo.pipelines.model import Parts, Rows

EMBEDDING = "class_embedding"
INDEX = {
    "_class_name": "ClassLatentPipeline",
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vqvae": ["diffusers", "VQModel"],
    "scheduler": ["diffusers", "DDIMScheduler"],
}


@dataclass(frozen=True)
class ClassLatentPipeline:
    """The parts of a class-conditional latent diffusion model."""

    unet: Any
    vqvae: Any
    scheduler: Any
    class_embedding: Tensor  # one row a class, and the empty class as the last

    @property
    def components(self) -> dict[str, Any]:
        return dict(vars(self))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the parts into subfolders, and the index that names them."""
        from safetensors.torch import save_file

        out = Path(folder)
        for name in ("unet", "vqvae", "scheduler"):
            getattr(self, name).save_pretrained(out / name)
        (out / EMBEDDING).mkdir(parents=True, exist_ok=True)
        weights = {"weight": self.class_embedding.contiguous().cpu()}
        save_file(weights, out / EMBEDDING / "model.safetensors")
        write_json(out / "model_index.json", INDEX)

    @classmethod
    def from_pretrained(cls, folder: str, **given: Any) -> "ClassLatentPipeline":
        """The pipeline in a folder; `given` is what diffusers' `from_pretrained` takes."""
        import diffusers
        from safetensors.torch import load_file

        parts = {
            name: getattr(diffusers, kind).from_pretrained(
                folder, subfolder=name, **(given if name != "scheduler" else {})
            )
            for name, (_, kind) in ((n, v) for n, v in INDEX.items() if isinstance(v, list))
        }
        weight = load_file(Path(folder) / EMBEDDING / "model.safetensors")["weight"]
        return cls(**parts, class_embedding=weight.to(parts["unet"].dtype))


def class_latents(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """unet(x, t, token of the class), x in latents; the class after the last is none."""
    unet, table = pipe.unet, pipe.class_embedding.to(device)
    count = len(table) - 1
    classes = options.classes or tuple(range(count))
    if not all(0 <= label < count for label in classes):
        raise SpecError(f"classes: got {list(classes)[:8]}, expected 0 to {count - 1}")

    def call(x: Tensor, told: Tensor, rows: Rows) -> Tensor:
        out: Tensor = unet(x, told, encoder_hidden_states=rows["token"], return_dict=False)[0]
        return out

    coder, decode = image_decoder(pipe.vqvae, options)
    rows = {"token": table[list(classes)][:, None].to(unet.dtype)}
    null = {"token": table[-1:][:, None].to(unet.dtype)}
    shape = (unet.config.in_channels, *sides(unet.config.sample_size))
    said = f"{len(classes)} classes"
    return Parts(shape, call, {"unet": unet}, decode, coder, rows, null, said)
