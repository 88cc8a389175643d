"""Class-conditional latent diffusion (cin256 of CompVis), for which diffusers has no pipeline.

A class is one row of an embedding, which the U-Net attends to as one token. The last row is the
empty class, for guidance. On disk it is a folder like those of diffusers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3.options import PipelineOptions
from ld3.store import write_json, write_tensors
from ld3.zoo.pipelines.coders import image_decoder, sides
from ld3.zoo.pipelines.model import Parts, Rows
from ld3.zoo.pipelines.texts import answer, class_rows

EMBEDDING = "class_embedding"
PARTS = {"unet": "UNet2DConditionModel", "vqvae": "VQModel", "scheduler": "DDIMScheduler"}


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
        out = Path(folder)
        for name in PARTS:
            getattr(self, name).save_pretrained(out / name)
        weights = {"weight": self.class_embedding.cpu()}
        write_tensors(out / EMBEDDING / "model.safetensors", weights)
        index = {name: ["diffusers", kind] for name, kind in PARTS.items()}
        write_json(out / "model_index.json", {"_class_name": "ClassLatentPipeline", **index})

    @classmethod
    def from_pretrained(cls, folder: str, **given: Any) -> "ClassLatentPipeline":
        """The pipeline in a folder; `given` is what diffusers' `from_pretrained` takes."""
        import diffusers
        from safetensors.torch import load_file

        parts = {
            name: getattr(diffusers, kind).from_pretrained(
                folder, subfolder=name, **(given if name != "scheduler" else {})
            )
            for name, kind in PARTS.items()
        }
        weight = load_file(Path(folder) / EMBEDDING / "model.safetensors")["weight"]
        return cls(**parts, class_embedding=weight.to(parts["unet"].dtype))


def class_latents(pipe: Any, options: PipelineOptions, device: torch.device) -> Parts:
    """unet(x, t, token of the class), x in latents; the class after the last is none."""
    unet, table = pipe.unet, pipe.class_embedding.to(device, pipe.unet.dtype)
    classes, said = class_rows(options, len(table) - 1)

    def call(x: Tensor, t: Tensor, rows: Rows) -> Tensor:
        return answer(unet, x, t, encoder_hidden_states=rows["token"])

    coder, decode = image_decoder(pipe.vqvae, options)
    rows, null = ({"token": table[some][:, None]} for some in (classes, [-1]))
    shape = (unet.config.in_channels, *sides(unet.config.sample_size))
    return Parts(shape, call, {"unet": unet}, decode, coder, rows, null, said)
