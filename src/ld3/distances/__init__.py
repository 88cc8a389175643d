"""Distances between samples.

A *distance* is a function ``d : (B, *S), (B, *S) -> (B,)``: one non-negative value per sample,
zero when both samples are equal, symmetric, differentiable in both arguments, and without any
reduction over the batch (sample ``b`` of the result depends on sample ``b`` of the inputs only).
The computation is done in float32 or wider, whatever the dtype of the inputs.

``l1``, ``l2`` and ``pseudo_huber`` compare values and take any sample shape ``S``; all three are
normalised by the number of values ``n = prod(S)``, so they do not grow with the resolution.
``FeatureDistance`` compares feature maps; :func:`ld3.zoo.lpips.load_lpips` builds LPIPS from it.
:func:`.clouds.chamfer` compares point clouds whatever the order of their points.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ld3.distances.clouds import chamfer
from ld3.errors import ModelError, SpecError

Distance: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Features: TypeAlias = tuple[Tensor, ...]

_EPS = 1e-10  # added to the norm of a feature vector, as LPIPS does


def _widen(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _check_same(x: Tensor, y: Tensor) -> None:
    if x.shape != y.shape or x.ndim == 0:
        raise ModelError(
            f"distance got shapes {tuple(x.shape)} and {tuple(y.shape)}, expected twice the same "
            "(B, *S); fix: give both samples one shape with the batch first"
        )


def _difference(x: Tensor, y: Tensor) -> Tensor:
    """``x - y`` as a (B, n) matrix."""
    _check_same(x, y)
    return (_widen(x) - _widen(y)).unsqueeze(-1).flatten(1)


def l1(x: Tensor, y: Tensor) -> Tensor:
    """``(1/n) sum_i |x_i - y_i|``: mean absolute error of each sample."""
    return _difference(x, y).abs().mean(1)


def l2(x: Tensor, y: Tensor) -> Tensor:
    """``(1/n) sum_i (x_i - y_i)^2``: mean squared error of each sample."""
    return _difference(x, y).square().mean(1)


def pseudo_huber(x: Tensor, y: Tensor, c: float = 0.00054) -> Tensor:
    """``(sqrt(|x - y|^2 + k^2) - k) / sqrt(n)`` with ``k = c sqrt(n)`` and the Euclidean norm.

    Quadratic for ``|x - y| << k``, a root-mean-square error for ``|x - y| >> k``. The default
    ``k = 0.00054 sqrt(n)`` is the one of improved consistency training (Song & Dhariwal 2023);
    their loss is this value times ``sqrt(n)``. With the mean square ``m = |x - y|^2 / n`` the
    value equals ``m / (sqrt(m + c^2) + c)``, which is computed since it does not cancel.
    """
    if not c > 0:
        raise SpecError(
            f"pseudo_huber got c={c}, expected c > 0; fix: use l2 for a smooth distance"
        )
    m = l2(x, y)
    return m / ((m + c * c).sqrt() + c)


class FeatureDistance(nn.Module):
    """Perceptual distance ``sum_l mean_p sum_c w_lc (u_lcp(x) - u_lcp(y))^2``.

    ``u_l = f_l / (|f_l| + 1e-10)`` is feature map ``l`` with the vector of channels ``c`` at each
    position ``p`` scaled to unit length; ``w_l`` is the linear head of layer ``l``, one weight per
    channel, and ``w_lc = 1/C_l`` (a mean over channels) when no heads are given.

    Where all channels are zero, ``u_l`` is zero and the norm has the gradient zero, not NaN.

    ``features`` maps a batch to feature maps (B, C_l, *space); its parameters are used as they
    are, so freeze them first. The learner meets the same targets many times: ``target(y)``
    computes their ``u_l`` once, ``distance_to(x, target)`` compares with them.
    """

    def __init__(
        self, features: Callable[[Tensor], Sequence[Tensor]], heads: Sequence[Tensor] | None = None
    ) -> None:
        super().__init__()
        self.features = features
        for layer, head in enumerate(heads or ()):
            self.register_buffer(f"head{layer}", head.detach().flatten())

    def _heads(self) -> list[Tensor]:
        return list(self.buffers(recurse=False))

    def _unit_features(self, x: Tensor) -> Features:
        maps = [_widen(f) for f in self.features(x)]
        channels, heads = [f.shape[1] for f in maps], [w.numel() for w in self._heads()]
        if not maps or (heads and heads != channels):
            raise ModelError(
                f"feature distance got feature maps with {channels} channels, expected "
                f"{heads or 'at least one map'}; fix: give one head weight per channel and layer"
            )
        return tuple(f / (torch.linalg.vector_norm(f, dim=1, keepdim=True) + _EPS) for f in maps)

    def _compare(self, u: Features, v: Features) -> Tensor:
        got, wanted = [tuple(f.shape) for f in u], [tuple(f.shape) for f in v]
        if got != wanted:
            raise ModelError(
                f"feature distance got feature maps of shapes {got}, expected those of the target "
                f"{wanted}; fix: compare samples of one shape, as many as targets"
            )
        total: list[Tensor] = []
        heads: list[Tensor] | list[None] = self._heads() or [None] * len(u)
        for a, b, head in zip(u, v, heads, strict=True):
            square = (a - b).square().unsqueeze(-1).flatten(2).mean(2)  # (B, C)
            total.append(square.mean(1) if head is None else (square * head.to(a.dtype)).sum(1))
        return torch.stack(total).sum(0)

    @torch.no_grad()
    def target(self, y: Tensor) -> Features:
        """Unit features ``u_l(y)`` as constants; index each map to select samples of the batch."""
        return self._unit_features(y)

    def distance_to(self, x: Tensor, target: Features) -> Tensor:
        """The distance of ``x`` to the samples behind ``target``, differentiable in ``x``."""
        return self._compare(self._unit_features(x), target)

    def residual(self, x: Tensor, target: Features) -> Tensor:
        """A vector (B, F) a sample whose squared length is the distance to ``target``."""
        heads: list[Tensor] | list[None] = self._heads() or [None] * len(target)
        parts = []
        for a, b, head in zip(self._unit_features(x), target, heads, strict=True):
            apart = (a - b).unsqueeze(-1).flatten(2)  # (B, C, space)
            weight = 1 / apart.shape[1] if head is None else head.to(a.dtype)[:, None].clamp_min(0)
            parts.append((apart * (weight / apart.shape[2]) ** 0.5).flatten(1))
        return torch.cat(parts, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The distance, differentiable in ``x`` and ``y``."""
        _check_same(x, y)
        return self._compare(self._unit_features(x), self._unit_features(y))


DISTANCES: dict[str, Distance] = {
    "l1": l1,
    "l2": l2,
    "pseudo-huber": pseudo_huber,
    "chamfer": chamfer,
}
