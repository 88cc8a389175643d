r"""Models whose score is known exactly: no training, any schedule, any dimension.

In variance-exploding coordinates (xbar = x/alpha, s = sigma/alpha) the perfect denoiser of data
sum_k w_k N(mu_k, S_k) is

    D(xbar, s) = sum_k p_k (mu_k + S_k (S_k + s^2)^{-1} (xbar - mu_k))
    p_k  ~  w_k N(xbar; mu_k, S_k + s^2)

They predict x0 and take tensors of any float dtype.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.models import Cond, ModelDefaults
from ld3.predictions import Prediction, from_x0
from ld3.schedules import EDM, Schedule
from ld3.seeds import noise


@dataclass(frozen=True)
class Mixture(ModelDefaults):
    """A mixture of K Gaussians whose covariances are low rank plus isotropic.

    S_k has standard deviation scale_kr along each of R orthonormal directions basis_kr and `floor`
    in all others; with R = 0 the components are isotropic.
    """

    means: Tensor  # (K, d)
    log_weights: Tensor  # (K,)
    basis: Tensor  # (K, R, d) orthonormal rows
    scales: Tensor  # (K, R) standard deviations along the rows
    floor: float  # standard deviation in all other directions
    schedule: Schedule
    shape: tuple[int, ...]
    prediction: Prediction = "x0"
    dtype: torch.dtype | None = None

    def forward(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        t = t.to(torch.float64)
        alpha, sigma = self.schedule.log_alpha(t).exp(), self.schedule.log_sigma(t).exp()
        x0 = self.denoise(x / alpha, (sigma / alpha).to(x.dtype))
        return from_x0(self.prediction, x0, x, alpha, sigma)

    def denoise(self, xbar: Tensor, s: Tensor) -> Tensor:
        """D(xbar, s), s ()."""
        flat = xbar.flatten(1)  # (B, d)
        means, basis, scales = (
            part.to(flat.device, flat.dtype) for part in (self.means, self.basis, self.scales)
        )
        log_weights = self.log_weights.to(flat.device, flat.dtype)
        rank, d = basis.shape[1:]
        noise_var, floor_var = s**2, self.floor**2
        other = floor_var + noise_var  # variance of xbar off the basis
        total = scales**2 + noise_var  # (K, R) variance along it

        # squared distances by the inner products, without a (B, K, d) tensor
        along = torch.einsum("bd,krd->bkr", flat, basis) - torch.einsum("kd,krd->kr", means, basis)
        square = (
            torch.cdist(flat, means, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        )  # (B, K)
        off = (square - (along**2).sum(-1)).clamp_min(0)
        quadratic = off / other + (along**2 / total).sum(-1)
        log_det = torch.log(total).sum(-1) + (d - rank) * torch.log(other)  # (K,)
        p = torch.softmax(log_weights - 0.5 * (quadratic + log_det), dim=-1)  # (B, K)

        # shrink towards the mean: by floor_var/other everywhere, more gently along the basis
        shrink = floor_var / other
        extra = scales**2 / total - shrink  # (K, R)
        centre = p @ means  # (B, d)
        x0 = centre + shrink * (flat - centre)
        x0 = x0 + torch.einsum("bkr,krd->bd", p.unsqueeze(-1) * extra * along, basis)
        return x0.view_as(xbar)


def mixture(
    means: Sequence[Sequence[float]] | Tensor,
    std: float,
    schedule: Schedule | None = None,
    weights: Sequence[float] | None = None,
    prediction: Prediction = "x0",
) -> Mixture:
    """Isotropic Gaussians of one width around the given means (K, d)."""
    centres = torch.as_tensor(means, dtype=torch.float64, device="cpu")
    count, d = centres.shape
    share = [1 / count] * count if weights is None else weights
    return Mixture(
        means=centres,
        log_weights=torch.tensor(share, dtype=torch.float64, device="cpu").log(),
        basis=torch.zeros(count, 0, d, dtype=torch.float64, device="cpu"),
        scales=torch.zeros(count, 0, dtype=torch.float64, device="cpu"),
        floor=std,
        schedule=EDM() if schedule is None else schedule,
        shape=(d,),
        prediction=prediction,
    )


def image_mixture(
    count: int = 8, rank: int = 12, shape: tuple[int, ...] = (3, 32, 32), seed: int = 0
) -> Mixture:
    """Smooth random images: `count` clusters with `rank` smooth directions each (d = 3072), EDM."""
    d = math.prod(shape)
    draws = noise([seed], (count, rank + 1, *shape), torch.float64)[0]
    smooth = _blur(draws.flatten(0, 1)).reshape(count, rank + 1, d)
    means = 0.4 * smooth[:, 0] / smooth[:, 0].square().mean(dim=1, keepdim=True).sqrt()
    basis = torch.linalg.qr(smooth[:, 1:].transpose(1, 2)).Q.transpose(1, 2)  # (K, R, d)
    decay = torch.linspace(1.0, 0.2, rank, dtype=torch.float64, device="cpu")
    return Mixture(
        means=means,
        log_weights=torch.full((count,), -math.log(count), dtype=torch.float64, device="cpu"),
        basis=basis.contiguous(),
        scales=(decay * 0.3 * math.sqrt(d / rank)).expand(count, rank),
        floor=0.03,
        schedule=EDM(),
        shape=shape,
    )


def _blur(images: Tensor) -> Tensor:
    """Keep the low frequencies of the last two dimensions."""
    height, width = images.shape[-2:]
    fy = torch.fft.fftfreq(height, dtype=torch.float64, device="cpu")
    fx = torch.fft.rfftfreq(width, dtype=torch.float64, device="cpu")
    keep = torch.exp(-((fy[:, None] ** 2 + fx**2) / 0.08**2))
    blurred: Tensor = torch.fft.irfft2(torch.fft.rfft2(images) * keep, s=(height, width))
    return blurred


@dataclass(frozen=True)
class Gaussian(ModelDefaults):
    """N(mean, diag(std^2)), with the closed-form solution of its ODE."""

    mean: Tensor  # (d,)
    std: Tensor  # (d,)
    schedule: Schedule
    prediction: Prediction = "x0"
    dtype: torch.dtype | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.mean.shape)

    def forward(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        t = t.to(torch.float64)
        alpha, sigma = self.schedule.log_alpha(t).exp(), self.schedule.log_sigma(t).exp()
        mean, var = self.mean.to(x.device, x.dtype), (self.std**2).to(x.device, x.dtype)
        x0 = mean + var / (var + (sigma / alpha).to(x.dtype) ** 2) * (x / alpha - mean)
        return from_x0(self.prediction, x0, x, alpha, sigma)

    def solve(self, x: Tensor, t_from: Tensor, t_to: Tensor) -> Tensor:
        """The exact ODE solution: xbar - mean scales with sqrt(std^2 + s^2)."""
        a_from, a_to = (self.schedule.log_alpha(t).exp() for t in (t_from, t_to))
        s_from, s_to = (torch.exp(-self.schedule.lam(t)) for t in (t_from, t_to))
        growth = torch.sqrt((self.std**2 + s_to**2) / (self.std**2 + s_from**2))
        return a_to * (self.mean + growth * (x / a_from - self.mean))


def gaussian(
    mean: Sequence[float],
    std: Sequence[float],
    schedule: Schedule | None = None,
    prediction: Prediction = "x0",
) -> Gaussian:
    """Independent Gaussians with these means and standard deviations."""
    return Gaussian(
        mean=torch.tensor(mean, dtype=torch.float64, device="cpu"),
        std=torch.tensor(std, dtype=torch.float64, device="cpu"),
        schedule=EDM() if schedule is None else schedule,
        prediction=prediction,
    )
