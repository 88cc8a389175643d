r"""The bound of Theorem 1 of LD3 (Tong et al. 2025, arXiv 2405.15506), measured.

A teacher and a student map noise b ~ N(0, I) to samples; q and p are their distributions. Let
both be invertible, and let x = teacher(b) = student(a) with ``|a - b| <= r`` for every b. Then

    KL(q || p)  <=  r^2 / 2  +  r sqrt(d + 1)  +  E |C_teacher(x) - C_student(x)|

with ``C(x) = log |det J|`` of a map at its preimage of x. It follows from

    log q(x)/p(x) = (|a|^2 - |b|^2) / 2 + C_student(x) - C_teacher(x)

whose mean over b is the KL divergence itself: with true preimages both sides are measured. The
paper takes a at random in the ball around b instead, so that a and b are not preimages of the
same x, and the last term need not vanish with r.

Maps take noise of unit variance, z (B, *S) -> x (B, *S), each row by itself; radii are in units of
the prior's standard deviation. Use float64. Determinants are exact up to d = 64, by the whole
Jacobian, and estimated above from products with it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import ModelError, SpecError

MAX_EXACT = 64  # dimensions
HALVINGS = 12  # of a step of Newton's method, before it is given up
Map = Callable[[Tensor], Tensor]
LogDet = Callable[[Map, Tensor], Tensor]


@dataclass(frozen=True)
class Bound:
    """The three terms of the bound on KL(q, p) for a radius r."""

    radius: float
    ball: float  # r^2 / 2
    shift: float  # r sqrt(d + 1)
    gap: float  # E |C_teacher - C_student|

    @property
    def total(self) -> float:
        return self.ball + self.shift + self.gap

    @classmethod
    def of(cls, radius: float, d: int, gap: float) -> "Bound":
        return cls(radius, radius**2 / 2, radius * math.sqrt(d + 1), gap)


@dataclass(frozen=True)
class TrueBound:
    """The bound at true preimages, and what it bounds."""

    bound: Bound  # at the largest |a - b| among the samples
    kl: float  # KL(q || p), the mean over the samples
    kl_error: float  # its standard error
    distances: Tensor  # |a - b| (B',)
    found: float  # share of samples whose preimage was found; the others are left out


def true_bound(
    teacher: Map, student: Map, noise: Tensor, log_det: LogDet | None = None
) -> TrueBound:
    """Noise b (B, *S); a solves student(a) = teacher(b), by Newton's method from a = b."""
    measure = log_det or log_det_for(noise)
    with torch.no_grad():
        target = teacher(noise)
    a, found = preimage(student, target, noise)
    if int(found.sum()) < 2:
        raise SpecError(
            f"bound: got {int(found.sum())} of {len(noise)} preimages, expected at least 2; the "
            "student is not invertible here (give it more steps) or not in float64"
        )
    change = (measure(student, a) - measure(teacher, noise))[found]
    a, b = a[found], noise[found]
    ratio = (a.flatten(1).square().sum(1) - b.flatten(1).square().sum(1)) / 2 + change
    apart = torch.linalg.vector_norm((a - b).flatten(1), dim=1)
    return TrueBound(
        Bound.of(float(apart.max()), b[0].numel(), float(change.abs().mean())),
        float(ratio.mean()),
        float(ratio.std() / math.sqrt(len(ratio))),
        apart,
        float(found.double().mean()),
    )


def random_bounds(
    teacher: Map,
    student: Map,
    noise: Tensor,
    radii: Sequence[float],
    seed: int = 0,
    log_det: LogDet | None = None,
) -> list[Bound]:
    """As the paper measures it: a uniform in the ball of radius r around b.

    All radii share the directions, so that a curve over r is smooth.
    """
    measure = log_det or log_det_for(noise)
    of_teacher = measure(teacher, noise)
    bounds = []
    for radius in radii:
        change = measure(student, in_ball(noise, radius, seed)) - of_teacher
        bounds.append(Bound.of(radius, noise[0].numel(), float(change.abs().mean())))
    return bounds


def in_ball(centre: Tensor, radius: float, seed: int = 0) -> Tensor:
    """A point uniform in the ball around each row: direction ``g/|g|``, radius ``r u^(1/d)``."""
    if radius < 0:
        raise SpecError(f"bound: got radius {radius}, expected 0 or more")
    flat = centre.flatten(1)
    count, d = flat.shape
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(count, d, generator=generator, dtype=torch.float64)
    u = torch.rand(count, 1, generator=generator, dtype=torch.float64)
    step: Tensor = radius * u ** (1 / d) * g / torch.linalg.vector_norm(g, dim=1, keepdim=True)
    return centre + step.to(centre.device, centre.dtype).view_as(centre)


# ---- determinants


def log_det_for(noise: Tensor) -> LogDet:
    """The exact one where d allows it, else the estimate."""
    return log_det if noise[0].numel() <= MAX_EXACT else log_det_estimate


def jacobian(function: Map, z: Tensor) -> Tensor:
    """(B, d, d): d backward passes for all rows at once."""
    z = z.detach().requires_grad_()
    with torch.enable_grad():
        x = function(z).flatten(1)
        rows = [
            torch.autograd.grad(x[:, i].sum(), z, retain_graph=True)[0].flatten(1)
            for i in range(x.shape[1])
        ]
    return torch.stack(rows, 1)


def log_det(function: Map, z: Tensor) -> Tensor:
    """``log |det J|`` at each row (B,), from the whole Jacobian."""
    d = z[0].numel()
    if d > MAX_EXACT:
        raise SpecError(
            f"log_det: got {d} dimensions, expected at most {MAX_EXACT}; use log_det_estimate"
        )
    value: Tensor = torch.linalg.slogdet(jacobian(function, z)).logabsdet
    return value


def log_det_estimate(
    function: Map, z: Tensor, probes: int = 8, steps: int = 32, seed: int = 0
) -> Tensor:
    """``log |det J|`` at each row (B,) from products J v and J^T u alone.

    ``log |det J| = tr log (J^T J)^{1/2}`` is estimated by Hutchinson's v^T log (J^T J)^{1/2} v with
    random signs v; each of these by Gauss quadrature from `steps` steps of Golub-Kahan
    bidiagonalisation of J started at v (stochastic Lanczos quadrature: Ubaru, Chen, Saad 2017),
    which works on J and so does not square its condition. Unbiased in the probes, exact in the
    steps when they reach d. The same probes serve every map and point: differences of two estimates
    are more precise than each.
    """
    z = z.detach().requires_grad_()
    d = z[0].numel()
    generator = torch.Generator().manual_seed(seed)
    signs = 2 * torch.randint(2, (probes, d), generator=generator).double() - 1
    with torch.enable_grad():
        x = function(z)
        dual = torch.zeros_like(x, requires_grad=True)
        (pulled,) = torch.autograd.grad(x, z, dual, create_graph=True)  # J^T dual, linear in dual

    def push(v: Tensor) -> Tensor:  # J v
        try:
            (out,) = torch.autograd.grad(pulled, dual, v.view_as(z), retain_graph=True)
        except NotImplementedError as error:
            raise ModelError(
                f"log_det_estimate: {error} expected a map that PyTorch can differentiate twice"
            ) from None
        return out.flatten(1)

    def pull(u: Tensor) -> Tensor:  # J^T u
        (out,) = torch.autograd.grad(x, z, u.view_as(x), retain_graph=True)
        return out.flatten(1)

    total = torch.zeros(len(z), dtype=torch.float64, device=z.device)
    for sign in signs:
        start = (sign / math.sqrt(d)).to(z.device, z.dtype).expand(len(z), d)
        values, weights = _quadrature(*_bidiagonal(push, pull, start, min(steps, d)))
        total += d * (weights * values.log()).sum(1)
    return total / probes


def _bidiagonal(push: Map, pull: Map, v: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """J V = U B with B upper bidiagonal: its diagonal (B, k) and what is right of it (B, k-1).

    Where the space is exhausted early, B ends with ones on the diagonal, apart from the rest.
    """
    tiny = 1e3 * torch.finfo(v.dtype).eps
    u = push(v)
    alpha = torch.linalg.vector_norm(u, dim=1, keepdim=True)
    u = u / alpha
    diagonal, right, left, basis = [alpha], [], [u], [v]
    alive = torch.ones_like(alpha, dtype=torch.bool)
    largest = alpha
    for _ in range(steps - 1):
        v = _orthogonal(pull(u), basis)
        beta = torch.linalg.vector_norm(v, dim=1, keepdim=True)
        alive = alive & (beta > tiny * largest)
        v = torch.where(alive, v / beta, torch.zeros_like(v))
        u = _orthogonal(push(v), left)
        alpha = torch.linalg.vector_norm(u, dim=1, keepdim=True)
        u = torch.where(alpha > 0, u / alpha, torch.zeros_like(u))
        right.append(torch.where(alive, beta, torch.zeros_like(beta)))
        diagonal.append(torch.where(alive, alpha, torch.ones_like(alpha)))
        largest = torch.maximum(largest, alpha)
        basis.append(v)
        left.append(u)
    along = torch.cat(diagonal, 1).double()
    return along, torch.cat(right, 1).double() if right else along[:, :0]


def _orthogonal(w: Tensor, basis: Sequence[Tensor]) -> Tensor:
    """w without its parts along the basis, twice for rounding."""
    for _ in range(2):
        for b in basis:
            w = w - (w * b).sum(1, keepdim=True) * b
    return w


def _quadrature(diagonal: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values of B and the squares of the first entries of its right vectors."""
    b = torch.diag_embed(diagonal) + torch.diag_embed(right, offset=1)
    _, values, vectors = torch.linalg.svd(b)
    return values, vectors[:, :, 0].square()


# ---- preimages


@torch.no_grad()
def preimage(
    function: Map, x: Tensor, start: Tensor, steps: int = 50, tolerance: float = 1e-9
) -> tuple[Tensor, Tensor]:
    """z with function(z) = x, by Newton's method with halved steps where a whole one is too long.

    Returns z (B, *S) and whether it was found (B,): to `tolerance`, relative to the RMS of x.
    """
    if x[0].numel() > MAX_EXACT:
        raise SpecError(
            f"preimage: got {x[0].numel()} dimensions, expected at most {MAX_EXACT}: Jacobians"
        )
    limit = tolerance * x.square().mean().sqrt()

    def miss(z: Tensor) -> Tensor:
        return (function(z) - x).flatten(1).square().mean(1).sqrt()

    z, error = start.clone(), miss(start)
    active = error > limit
    for _ in range(steps):
        if not bool(active.any()):
            break
        residual = (function(z) - x).flatten(1).unsqueeze(-1)
        step = torch.linalg.lstsq(jacobian(function, z), residual).solution.view_as(z)
        moved = torch.zeros_like(active)
        for _ in range(HALVINGS):
            trial = z - step
            missed = miss(trial)
            better = active & ~moved & (missed < error)
            z[better], error[better] = trial[better], missed[better]
            moved = moved | better
            step = step / 2
        active = moved & (error > limit)
    return z, error <= limit
