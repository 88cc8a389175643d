"""Give a denoiser a little guidance of its own.

A denoiser trained for hours, not days, mixes up classes that look alike.  Guidance mends that, so a
copy of the network learns to give by itself what the trained one, frozen, gives with guidance w:

    D_new(x; sigma, c)  ->  D(x; sigma, none) + w (D(x; sigma, c) - D(x; sigma, none)),

on noisy training pictures, weighted as before; without a label it stays what it was.  The targets
carry no noise, so a few hundred iterations are enough (cf. Meng et al. 2023, arXiv 2210.03142).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from loop import Plan, train
from torch import Tensor, nn

from ld3.zoo.networks import NO_LABEL

Denoise = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]  # (net, noisy, sigma, label) -> x0
Draw = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor, Tensor, Tensor]]


def guide(
    teacher: nn.Module,
    denoise: Denoise,
    draw: Draw,
    images: Tensor,
    labels: Tensor,
    guidance: float,
    plan: Plan,
    run: Path,
) -> nn.Module:
    """The guided copy; `draw` gives noisy pictures, their sigma, label and weight in the loss."""
    student = copy.deepcopy(teacher).requires_grad_(True)
    teacher.eval().requires_grad_(False)

    def loss(net: nn.Module, x0: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
        noisy, sigma, label, weight = draw(x0, y, g)
        with torch.no_grad():
            both = torch.cat([label, torch.full_like(label, NO_LABEL)])
            twice, sigmas = torch.cat([noisy, noisy]), torch.cat([sigma, sigma])
            told, free = denoise(teacher, twice, sigmas, both).chunk(2)
            target = torch.lerp(free, told, guidance)
        error = (denoise(net, noisy, sigma, label) - target).square().mean((1, 2, 3))
        return (weight * error).mean()

    return train(student, loss, images, labels, plan, run)
