"""Why judges that do not look at the same noise like some coarse grids at few evaluations.

    python experiments/shift.py compare

takes the plans of a comparison (the folder that `ld3 compare` wrote, see experiments/compared.py)
and writes docs/results/shift.md. Of the judge's features f of samples and f* of an accurate run
from the same noise it shows the error of a sample, mean |f - f*|, beside the shift of the set,
|mean f - mean f*|, which a judge of sets sees; and how rough the pictures are and how sure the
judge is of them.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from cells import write
from torch import Tensor

from ld3.compare import CompareSpec
from ld3.compare.cells import Cell, Ground, found_of, needs_of, samples_of
from ld3.features import FeatureNet, load_features

METHODS = ("ld3", "ld3-times", "ays-svd", "gits", "dmn", "gits-lsun", "logsnr")
NFE = 4
HELD = 256
WORDS = {
    "model": "fashion", "methods": METHODS, "solvers": ("unipc", "ipndm:3", "dpmpp:3"),
    "nfe": (NFE,), "seeds": 2, "pairs": 128, "valid": 32, "held_out": HELD,
}  # fmt: skip


def roughness(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, (B, C, H, W) -> (B,)."""
    return x.diff(dim=-1).abs().flatten(1).mean(1) + x.diff(dim=-2).abs().flatten(1).mean(1)


def seen(ground: Ground, cell: Cell) -> Tensor:
    """Its samples from held-out noise."""
    tuned = found_of(ground, cell).tuned
    assert tuned is not None, cell.name
    return samples_of(ground, ground.table(cell, tuned)).float().clamp(-1, 1)


def numbers(net: FeatureNet, x: Tensor, exact: Tensor) -> Tensor:
    """Error, shift, roughness and sureness of one set, (4,)."""
    assert net.logits is not None
    gap = net(x).double() - net(exact).double()  # (B, D)
    rough = (roughness(x) / roughness(exact)).mean().double()
    sure = net.logits(x).softmax(1).amax(1).mean().double()
    return torch.stack([gap.norm(dim=1).mean(), gap.mean(0).norm(), rough, sure])


def rows(ground: Ground, net: FeatureNet) -> Iterator[str]:
    exact = ground.exact.float().clamp(-1, 1)
    yield "| solver | method | error | shift | shift / error | roughness | sureness |"
    yield "|---" * 7 + "|"
    yield f"| | accurate run | 0 | 0 | | 1 | {float(numbers(net, exact, exact)[3]):.3f} |"
    for solver in ground.spec.made_solvers:
        for method in METHODS:
            seeds = range(ground.spec.seeds) if needs_of(method) else (None,)
            sets = [seen(ground, Cell(method, solver, NFE, seed)) for seed in seeds]
            values = torch.stack([numbers(net, x, exact) for x in sets]).mean(0).tolist()
            error, shift, rough, sure = values
            yield (
                f"| {solver.name}-{solver.order} | `{method}` | {error:.2f} | {shift:.2f} | "
                f"{shift / error:.2f} | {rough:.2f} | {sure:.3f} |"
            )


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of a comparison")
    ground = Ground.of(CompareSpec.read(WORDS | {"out": parser.parse_args().folder}))
    head = (
        f"`fashion`, {NFE} evaluations, {HELD} held-out noises, plans of the comparison (mean over "
        "seeds). Error: how far a sample is from that of an accurate run from the same noise, in "
        "the judge's features. Shift: how far the mean of all samples is. Roughness: differences "
        "of neighbouring pixels, over those of the accurate sample. Sureness: the probability that "
        "the judge gives to the class that it sees.\n"
    )
    write("shift.md", "\n".join([head, *rows(ground, load_features())]) + "\n")


if __name__ == "__main__":
    main()
