"""EDM's denoiser (Karras et al. 2022, arXiv 2206.00364) and how its noise levels are drawn.

    D(x; sigma) = c_skip x + c_out F(c_in x; log(sigma) / 4)
    e(sigma)    = mean |D(x0 + sigma n; sigma) - x0|^2 / c_out^2

with c_skip = s^2 / (sigma^2 + s^2), c_out = sigma s / sqrt(sigma^2 + s^2), c_in = 1 / sqrt(sigma^2
+ s^2) and s the standard deviation of the data. Most log sigma are normal, the rest is uniform over
[low, high], so that the whole range a sampler visits is covered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from learner import Raw, spread
from torch import Tensor


@dataclass(frozen=True)
class Edm:
    """Data scale s, mean and deviation of the normal log sigma, one in ``uniform`` uniform."""

    sigma_data: float
    mean: float
    std: float
    uniform: int = 8
    low: float = 0.002
    high: float = 80.0

    def draw(self, count: int, g: torch.Generator) -> Tensor:
        """Noise levels for training, (count,)."""
        low, high = math.log(self.low), math.log(self.high)
        flat = low + (high - low) * spread(count // self.uniform, g)
        bell = self.mean + self.std * torch.special.ndtri(spread(count - count // self.uniform, g))
        return torch.cat([bell.clamp(low, high), flat]).exp()

    def denoise(self, raw: Raw, x: Tensor, sigma: Tensor, label: Tensor) -> Tensor:
        """D(x; sigma), sigma (B,)."""
        s = self.sigma_data
        total = sigma**2 + s**2  # (B,)
        c_skip, c_out, c_in = (
            c.to(x.dtype)[:, None, None, None]
            for c in (s**2 / total, sigma * s * total.rsqrt(), total.rsqrt())
        )
        out = raw(c_in * x, sigma.log().float() / 4, label)  # (B,C,H,W)
        return c_skip * x + c_out * out.to(x.dtype)

    def errors(
        self, raw: Raw, x0: Tensor, label: Tensor, g: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """e(sigma) of each image, and u = log(sigma) / 4, (B,) both."""
        sigma, s = self.draw(len(x0), g), self.sigma_data
        noisy = x0 + sigma[:, None, None, None] * torch.randn(x0.shape, generator=g)
        error = (self.denoise(raw, noisy, sigma, label) - x0).square().mean((1, 2, 3))
        return error * (sigma**2 + s**2) / (sigma * s) ** 2, sigma.log() / 4
