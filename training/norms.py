"""Group normalisation and SiLU in one pass each way, in bfloat16 with channels last.

    y = silu(a n + b),   n = (x - m) r,   m and r = 1 / sqrt(v + eps) the moments of a group.

With h = dL/dy silu'(a n + b), sums over the pixels of a sample and means over its group:

    da = sum h n,   db = sum h,   dx = r (a h - mean(a h) - n mean(a h n)).

On a CPU PyTorch takes as long for its group normalisation as for all convolutions of these
networks. ``quicken`` puts this in its place while networks train: 1.5 times as many images a
second for ``fashion``, 1.8 times for ``road`` (``python training/norms.py`` compares one layer).
It needs a C++ compiler and the package ninja; without them everything works as before, slower.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from learner import QUICK
from torch import Tensor, nn
from torch.utils.cpp_extension import load

from ld3.zoo import networks
from ld3.zoo.checkpoints import edm
from ld3.zoo.checkpoints.layers import attend

FLAGS = ["-O3", "-march=native", "-ffast-math", "-mprefer-vector-width=512", "-mrecip"]


@cache
def compiled() -> ModuleType:
    """The two passes, compiled on first use (half a minute)."""
    module: ModuleType = load("ld3_norms", [str(Path(__file__).with_suffix(".cpp"))], FLAGS)
    return module


class Normed(torch.autograd.Function):
    """y from x (B,C,H,W), a and b (B,C)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, a: Tensor, b: Tensor, groups: int, eps: float, silu: bool
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        y, mean, scale = compiled().forward(x, a, b, groups, eps, silu)
        ctx.save_for_backward(x, a, b, mean, scale)
        ctx.groups, ctx.silu = groups, silu
        out: Tensor = y
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        x, a, b, mean, scale = ctx.saved_tensors
        dy = dy.bfloat16().contiguous(memory_format=torch.channels_last)
        found = compiled().backward(dy, x, a, b, mean, scale, ctx.groups, ctx.silu)
        return *found, None, None, None


def normed(
    x: Tensor,
    norm: nn.GroupNorm,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    silu: bool = True,
) -> Tensor:
    """silu((1 + scale) norm(x) + shift), scale and shift (B,C)."""
    a, b = (w.float().expand(len(x), -1) for w in (norm.weight, norm.bias))  # (B,C)
    if scale is not None and shift is not None:
        a, b = a * (1 + scale.float()), b * (1 + scale.float()) + shift.float()
    out: Tensor = Normed.apply(  # type: ignore[no-untyped-call]
        x.bfloat16(), a.contiguous(), b.contiguous(), norm.num_groups, norm.eps, silu
    )
    return out


def _residual(self: networks.Residual, x: Tensor, e: Tensor) -> Tensor:
    h = self.conv_in(normed(x, self.norm_in))
    scale, shift = self.modulate(e).chunk(2, dim=1)
    out: Tensor = x + self.conv_out(normed(h, self.norm_out, scale, shift))
    return out


def _song(self: edm.Block, x: Tensor, emb: Tensor) -> Tensor:
    h = self.conv0(normed(x, self.norm0)) + self.affine(emb)[:, :, None, None]
    h = self.conv1(normed(h, self.norm1))
    x = (h + (x if self.skip is None else self.skip(x))) * self.gain
    if not self.heads:
        return x
    b, c, height, width = x.shape
    tokens = self.qkv(self.norm2(x)).reshape(b, self.heads, c // self.heads, 3, -1)
    out: Tensor = (
        self.proj(attend(*tokens.unbind(3)).reshape(b, c, height, width)) + x
    ) * self.gain
    return out


def _norm(self: nn.GroupNorm, x: Tensor) -> Tensor:
    return normed(x, self, silu=False)


def quicken() -> bool:
    """Replace the slow layers, for networks in training mode under autocast; says whether.

    Blocks of the EDM reader are taken for those of DDPM++, not of ADM.
    """
    try:
        if not QUICK:
            return False
        compiled()
    except (RuntimeError, OSError) as error:
        print(f"slow group normalisation: {str(error).splitlines()[0]}")
        return False
    for kind, quick in ((networks.Residual, _residual), (edm.Block, _song), (nn.GroupNorm, _norm)):
        _replace(kind, quick)
    return True


def _replace(kind: type[nn.Module], quick: Any) -> None:
    slow = kind.forward

    def forward(self: Any, *args: Tensor) -> Tensor:
        learning = self.training and torch.is_grad_enabled() and args[0].dim() == 4
        use = quick if learning and torch.is_autocast_enabled("cpu") else slow
        out: Tensor = use(self, *args)
        return out

    kind.forward = forward  # type: ignore[method-assign]


def main() -> None:
    """Compare one layer of ``fashion`` with PyTorch's, in value, gradients and time."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(64, 32, 28, 28).bfloat16().contiguous(memory_format=torch.channels_last)
    dy = torch.randn_like(x)
    norm, (scale, shift) = nn.GroupNorm(8, 32), torch.randn(2, 64, 32)
    for w in (norm.weight, norm.bias):
        nn.init.normal_(w)

    def slow(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.silu(norm(x) * (1 + scale)[:, :, None, None] + shift[:, :, None, None])

    def quick(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return normed(x, norm, scale, shift)

    def passes(run: Any, dtype: torch.dtype) -> tuple[list[Tensor], float]:
        inputs = [v.to(dtype).requires_grad_() for v in (x, scale, shift)]
        began = time.perf_counter()
        y = run(*inputs)
        slopes = torch.autograd.grad(y, [*inputs, norm.weight, norm.bias], dy.to(y.dtype))
        return [v.detach() for v in (y, *slopes)], time.perf_counter() - began

    exact, _ = passes(slow, torch.float32)
    passes(quick, torch.bfloat16)
    found, seconds = passes(quick, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        _, before = passes(slow, torch.bfloat16)
    errors = [float((a - b.float()).norm() / a.norm()) for a, b in zip(exact, found, strict=True)]
    print("errors of y, dx, dscale, dshift, dweight, dbias:", [f"{e:.1e}" for e in errors])
    print(f"{before / seconds:.1f} times as fast as PyTorch")


if __name__ == "__main__":
    main()
