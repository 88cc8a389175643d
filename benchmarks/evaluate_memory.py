"""Largest memory of `ld3 evaluate` with 1,000 and with 10,000 samples.

    python benchmarks/evaluate_memory.py

Samples are 3x40x40 images of a Gaussian distribution; 10,000 take 190 MB in float32. A small
feature network sees them, for FID, KID, precision and recall. Each number of samples has a process
of its own; its peak is read from the system.
"""

import resource
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ld3 import EDM, FunctionModel
from ld3.runs.evaluation.evaluate import run_evaluate
from ld3.runs.evaluation.spec import EvaluateSpec

SHAPE = (3, 40, 40)
COUNTS = (1000, 10_000)


class Corners(nn.Module):
    """Features of images: a few pixels and their squares."""

    def forward(self, x: Tensor) -> Tensor:
        v = x[:, :, :2, :2].to(torch.float32).flatten(1) / 64  # (B, 12)
        return torch.cat([v, v * v], 1)


def prepare(folder: Path) -> None:
    """A feature network and 60 images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is in maintenance
        torch.jit.script(Corners()).save(str(folder / "corners.pt"))  # type: ignore[no-untyped-call]
    images = np.random.default_rng(0).integers(0, 256, (60, *SHAPE[1:], 3), dtype=np.uint8)
    np.savez(folder / "data.npz", images)


def evaluated(folder: Path, samples: int) -> int:
    """Evaluate so many samples in this process; the bytes that it used at most."""
    model = FunctionModel(
        lambda x, t, cond: 0.04 * x / (0.04 + t**2), EDM(), "x0", SHAPE, dtype=None
    )
    spec = EvaluateSpec(
        what=("edm",), solvers=("euler",), nfe=(1,), samples=samples,
        metrics=("fid", "kid", "precision", "recall"), features=folder / "corners.pt",
        data=folder / "data.npz", out=folder / f"out-{samples}",
    )  # fmt: skip
    run_evaluate(spec, model=model)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used


def main() -> None:
    if sys.argv[1:]:
        print(evaluated(Path(sys.argv[1]), int(sys.argv[2])))
        return
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        found = []
        for samples in COUNTS:
            words = [sys.executable, __file__, folder, str(samples)]
            run = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            found.append(int(run.stdout))
            print(f"{samples:>6,} samples: {found[-1] / 1e6:.0f} MB", flush=True)
    print(f"ratio {found[1] / found[0]:.3f}")


if __name__ == "__main__":
    main()
