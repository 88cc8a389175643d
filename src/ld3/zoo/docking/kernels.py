"""Heat kernels of the rotations and of the circle: densities, scores and their mean squares.

Rotations, IGSO(3) with the standard deviation s (a rotation by s in each of three directions for
small s), as a function of the angle w in [0, pi] and with respect to the uniform measure:

    f(w) = sum_l (2l + 1) exp(-l(l + 1) s^2 / 2) sin((l + 1/2) w) / sin(w/2)

For small s the series cancels to nothing. Poisson's summation gives the same function as a sum of
Gaussians over all turns, whose terms are positive where they count,

    f(w) = sqrt(2 pi) e^(s^2/8) / (s^3 sin(w/2)) sum_n (-1)^n w_n e^(-w_n^2 / 2s^2)

with w_n = w - 2 pi n. The term n = 0 taken out, log f is a sum of smooth even functions of w:

    log f = const - w^2 / 2s^2 + log(w / sin(w/2)) + log(1 + sum_{n > 0} p_n)
    p_n = 2 (-1)^n e^(-2 pi^2 n^2 / s^2) (cosh a - a^2 (s/w)^2 sinh(a)/a),    a = 2 pi n w / s^2

Circle: the wrapped normal, sum_n exp(-(x + 2 pi n)^2 / 2s^2). DiffDock v1 writes
exp(-l(l+1) eps^2), so that its eps is s / sqrt(2).
"""

import math

import numpy as np
import torch
from torch import Tensor

TURNS = 3  # of rotations: exact to 1e-12 for s up to 2.9
WRAPS = 4  # of angles: exact to 1e-12 for s up to 3.8
NODES = 200  # of the quadrature
REACH = 14.0  # standard deviations


def log_igso3(w: Tensor, s: Tensor) -> Tensor:
    """log f(w), for angles w in [0, pi] and standard deviations s of a shape that fits."""
    size = 0.5 * math.log(2 * math.pi) + s * s / 8 - 3 * s.log()
    return size - w * w / (2 * s * s) + _log_ratio(w) + torch.log1p(_turns(w, s)[0])


def igso3_score(w: Tensor, s: Tensor) -> Tensor:
    """d log f / dw: the score along the axis."""
    value, slope = _turns(w, s)
    return -w / (s * s) + _ratio_slope(w) + slope / (1 + value)


def log_wrapped(x: Tensor, s: Tensor) -> Tensor:
    """The log density of the wrapped normal at angles x, on [-pi, pi]."""
    square = -_wraps(x).square() / (2 * s * s)[..., None]
    return square.logsumexp(-1) - s.log() - 0.5 * math.log(2 * math.pi)


def wrapped_score(x: Tensor, s: Tensor) -> Tensor:
    """d log p / dx."""
    all_x, var = _wraps(x), s * s
    weight = torch.softmax(-all_x.square() / (2 * var)[..., None], -1)
    return -(weight * all_x).sum(-1) / var


def igso3_mean_square(s: Tensor) -> Tensor:
    """E score^2 in the shape of s, by quadrature; differentiable in s."""
    u, weights = _nodes()
    end = torch.clamp(REACH * s, max=math.pi)[..., None]
    w = end * u  # (*, NODES)
    log_f = log_igso3(w, s[..., None])
    density = (log_f - log_f.detach().amax(-1, keepdim=True)).exp() * (1 - w.cos()) * weights
    square = igso3_score(w, s[..., None]).square()
    return (density * square).sum(-1) / density.sum(-1)


def wrapped_mean_square(s: Tensor) -> Tensor:
    """E score^2 in the shape of s, by quadrature; differentiable in s."""
    u, weights = _nodes()
    x = torch.clamp(REACH * s, max=math.pi)[..., None] * u
    density = (log_wrapped(x, s[..., None])).exp() * weights
    square = wrapped_score(x, s[..., None]).square()
    return (density * square).sum(-1) / density.sum(-1)


def _turns(w: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """sum_{n > 0} p_n and its slope in w; exponents are joined, so that nothing overflows."""
    value, slope = torch.zeros_like(w * s), torch.zeros_like(w * s)
    for n in range(1, TURNS + 1):
        rate = 2 * math.pi * n / (s * s)
        a, c = rate * w, (2 * math.pi * n) ** 2 / (s * s)
        sign, low = (-1.0) ** n, -0.5 * c
        near, far = torch.exp(low + a), torch.exp(low - a)  # e^a cosh-like halves
        small = a < 1e-2
        safe = torch.where(small, torch.ones_like(a), a)
        sinhc = torch.where(small, low.exp() * (2 + a * a / 3), (near - far) / safe)
        # d/da (sinh a / a) = (cosh a - sinh a / a) / a
        bent = torch.where(small, low.exp() * 2 * a / 3, (near + far - sinhc) / safe)
        value = value + sign * (near + far - c * sinhc)
        slope = slope + sign * rate * (near - far - c * bent)
    return value, slope


def _log_ratio(w: Tensor) -> Tensor:
    """log(w / sin(w/2)), even and smooth."""
    return math.log(2) - torch.log(torch.sinc(w / (2 * math.pi)))


def _ratio_slope(w: Tensor) -> Tensor:
    """1/w - cot(w/2)/2."""
    small = w < 1e-2
    safe = torch.where(small, torch.ones_like(w), w)
    exact = 1 / safe - 0.5 / torch.tan(0.5 * safe)
    return torch.where(small, w / 12 + w**3 / 720, exact)


def _wraps(x: Tensor) -> Tensor:
    """x + 2 pi n for all n, nearest turn in the middle: (*, 2 WRAPS + 1)."""
    turns = torch.arange(-WRAPS, WRAPS + 1, dtype=x.dtype, device=x.device)
    inside = x - 2 * math.pi * torch.round(x.detach() / (2 * math.pi))
    return inside[..., None] + 2 * math.pi * turns


def _nodes() -> tuple[Tensor, Tensor]:
    """Gauss-Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)
