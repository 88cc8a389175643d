"""CLIP score: how well an image fits its prompt.

    score = 100 max(0, cos(image embedding, text embedding))

(Hessel et al. 2021, arXiv 2104.08718, with the scale of common tools), the mean over samples. The
model is a folder that `transformers` saved, such as that of clip-vit-large-patch14. Images are
resized by a bicubic filter with antialiasing to the model's size and cropped to the middle.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ld3.errors import ModelError, SpecError, first_line
from ld3.model_checks import contents
from ld3.runs.evaluation.chunks import View
from ld3.store import digest
from ld3.zoo.pipelines.folder import hushed

MEAN = (0.48145466, 0.4578275, 0.40821073)  # of the images that CLIP was trained with
DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def clip_view(folder: Path, prompts: Sequence[str], device: str) -> View:
    """One score per sample; sample i has prompt i mod their number."""
    if not prompts:
        raise SpecError("clip: got a model without prompts, expected a text-to-image pipeline")
    model, tokenizer = _loaded(folder, device)
    size = int(model.config.vision_config.image_size)
    mean, deviation = (
        torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, DEVIATION)
    )

    @torch.no_grad()
    def score(images: Tensor, numbers: Sequence[int]) -> Tensor:
        x = (images.to(device).float().expand(-1, 3, -1, -1) + 1) / 2
        scale = size / min(x.shape[-2:])
        shape = [round(edge * scale) for edge in x.shape[-2:]]
        x = F.interpolate(x, shape, mode="bicubic", antialias=True).clamp(0, 1)
        top, left = ((edge - size) // 2 for edge in x.shape[-2:])
        x = (x[..., top : top + size, left : left + size] - mean) / deviation
        texts = [prompts[number % len(prompts)] for number in numbers]
        tokens = tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(device)
        found = model(pixel_values=x, **tokens)
        cosine = F.cosine_similarity(found.image_embeds, found.text_embeds)
        return 100 * cosine.clamp_min(0)[:, None]

    return View(digest(["clip", digest(contents(model)), list(prompts)]), score)


def _loaded(folder: Path, device: str) -> tuple[Any, Any]:
    try:
        from transformers import CLIPModel, CLIPTokenizer
    except ImportError:
        raise SpecError(
            "clip: got no package transformers; run `pip install ld3[diffusers]`"
        ) from None
    if not (folder / "config.json").is_file():
        raise SpecError(f"clip: got {folder}, expected a folder with config.json and weights")
    try:
        with hushed():
            model: Any = CLIPModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True
            )
            tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = first_line(error, 120)
        raise ModelError(f"clip: got {folder}, which transformers cannot load ({reason})") from None
    model.requires_grad_(False)
    return model.eval().to(device), tokenizer
