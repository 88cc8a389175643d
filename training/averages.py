"""Averages of the weights whose length can be chosen after training (cf. EDM2, arXiv 2312.02696).

The power-function average of exponent g after iteration t weighs the weights w(s), s <= t, by

    p(s; t, g) = (g + 1) s^g / t^(g + 1),      m <- m + (1 - (1 - 1/t)^(g + 1)) (w - m),

so its length grows with t; the standard deviation of s / t under p, its relative width, is

    sqrt((g + 1) / ((g + 2)^2 (g + 3))).

Two averages are followed and snapshots of them kept. An average of another width is approximated
afterwards by the combination of snapshots whose profile is nearest in the 2-norm; inner products
are, for ta <= tb,  <p_a, p_b> = (g_a + 1)(g_b + 1) (ta / tb)^g_b / ((g_a + g_b + 1) tb).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

WIDTHS = (0.05, 0.10)
State = dict[str, Tensor]


def exponent(width: float) -> float:
    """The exponent g of an average with the relative width given: the positive root of a cubic."""
    a = width**-2
    roots = np.roots([1, 7, 16 - a, 12 - a])
    return float(max(root.real for root in roots if abs(root.imag) < 1e-9))


class Averages:
    """Power-function averages of a module's weights, one for each of ``widths``."""

    def __init__(self, module: nn.Module, widths: Iterable[float] = WIDTHS) -> None:
        self.source = dict(module.named_parameters())
        self.means = {w: {k: v.detach().clone() for k, v in self.source.items()} for w in widths}

    @torch.no_grad()
    def update(self, t: int) -> None:
        """Take in the weights after iteration ``t``, t = 1, 2, ..."""
        now = list(self.source.values())
        for width, mean in self.means.items():
            share = 1 - (1 - 1 / t) ** (exponent(width) + 1)
            torch._foreach_lerp_(list(mean.values()), now, share)

    def state(self) -> dict[str, State]:
        return {str(width): mean for width, mean in self.means.items()}

    def load(self, state: dict[str, State]) -> None:
        for width, mean in self.means.items():
            for key, value in mean.items():
                value.copy_(state[str(width)][key])

    def snapshot(self, folder: Path, t: int) -> None:
        """Keep all averages as float16 in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        half = {w: {k: v.half() for k, v in mean.items()} for w, mean in self.state().items()}
        part = folder / f"{t:07d}.part"
        torch.save(half, part)
        part.replace(part.with_suffix(".pt"))


def overlap(ta: np.ndarray, ga: np.ndarray, tb: np.ndarray, gb: np.ndarray) -> np.ndarray:
    """<p(.; ta, ga), p(.; tb, gb)>, elementwise."""
    first = np.where(ta <= tb, ga, gb)  # exponent of the profile that ends first
    last = ga + gb - first
    end = np.maximum(ta, tb)
    ratio = np.minimum(ta, tb) / end
    return (first + 1) * (last + 1) * ratio**last / ((first + last + 1) * end)


def shares(times: np.ndarray, widths: np.ndarray, t: float, width: float) -> np.ndarray:
    """Coefficients of snapshots (times, widths) whose combination is nearest to (t, width)."""
    g = np.array([exponent(w) for w in widths])
    gram = overlap(times[:, None], g[:, None], times[None], g[None])
    goal = overlap(times, g, np.full_like(times, t), np.full_like(g, exponent(width)))
    scale = 1 / np.sqrt(np.diag(gram))
    x, *_ = np.linalg.lstsq(gram * scale[:, None] * scale, goal * scale, rcond=1e-10)
    return x * scale / (x * scale).sum()


def combine(folder: Path, width: float, until: int | None = None) -> State:
    """The average of relative ``width`` at the last snapshot, or at the last up to ``until``."""
    files = sorted(folder.glob("*.pt"))
    files = [f for f in files if until is None or int(f.stem) <= until]
    times = np.repeat([float(f.stem) for f in files], len(WIDTHS))
    widths = np.tile(WIDTHS, len(files))
    part = shares(times, widths, times[-1], width)
    total: State = {}
    for i, file in enumerate(files):
        states = torch.load(file, weights_only=True)
        for j, w in enumerate(WIDTHS):
            share = float(part[i * len(WIDTHS) + j])
            for key, value in states[str(w)].items():
                total[key] = total.get(key, 0) + share * value.float()
    return total
