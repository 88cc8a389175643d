"""The facts and images of the card of ``fashion-points``, measured from the weights in the package.

    python training/points_card.py

writes `docs/models/fashion-points-facts.md` and two images. Metrics of real clouds and the image of
them need the data set.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from data import DATA, stream
from points import POINTS, clouds, shoes
from torch import Tensor

import ld3
from ld3 import zoo
from ld3.images import draw_clouds, write_image
from ld3.metrics import cloud_scores

DOCS = Path(__file__).resolve().parent.parent / "docs" / "models"
SOLVERS = (("euler", 1), ("ipndm", 3), ("dpmpp", 3))
GRIDS = ("uniform", "quadratic", "edm", "logsnr")
SEEDS = range(60)


@torch.inference_mode()
def draw(seeds: range, grid: str, steps: int, solver: tuple[str, int]) -> Tensor:
    """Clouds, (B, 512, 3)."""
    model = zoo.load("fashion-points")
    k = ld3.knots(model.schedule, ld3.make_grid(grid, model.schedule, steps))
    denoise = ld3.bind(model, model.conditions(seeds))
    return ld3.integrate(denoise, ld3.make_solver(*solver), k, ld3.prior(model, seeds))


def sheet(rows: list[Tensor]) -> Tensor:
    """Rows of drawn clouds as one image."""
    return torch.cat([torch.cat(list(draw_clouds(row, 96)), -1) for row in rows], -2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the idx files")
    args = parser.parse_args()
    torch.set_num_threads(1)
    accurate = draw(SEEDS, "logsnr", 50, ("unipc", 3))
    real = zoo.real_clouds()[: len(SEEDS)]
    train = clouds(shoes(args.data, "train")[0][: len(SEEDS)], POINTS, stream(0, 2, 1))
    write_image(DOCS / "images" / "fashion-points-samples.png", sheet([*accurate[:30].split(10)]))
    write_image(DOCS / "images" / "fashion-points-real.png", sheet([*real[:20].split(10)]))

    lines = [
        f"**Sets.** {len(SEEDS)} clouds each against the {len(real)} test clouds; MMD and JSD are",
        "times 1000:",
        "",
        "| clouds | MMD-CD | COV-CD | JSD | JSD, halved | 1-NNA |",
        "|---|---|---|---|---|---|",
    ]
    first = draw(SEEDS, "uniform", 4, ("euler", 1))
    sets = {"training images": train, "50 steps of UniPC-3": accurate, "4 steps of DDIM": first}
    for name, found in sets.items():
        s = cloud_scores(found, real)
        lines.append(
            f"| {name} | {1000 * s.mmd:.1f} | {100 * s.coverage:.0f} % | {1000 * s.jsd:.0f} | "
            f"{1000 * s.jsd_half:.0f} | {100 * s.nna:.0f} % |"
        )
    lines += [
        "", "**The grid matters.** Mean RMS distance to 50 steps of UniPC-3 with 5 evaluations, 32 "
        "clouds:", "", f"| solver | {' | '.join(GRIDS)} |", "|---|" + "---|" * len(GRIDS),
    ]  # fmt: skip
    for solver in SOLVERS:
        errors = [
            (draw(SEEDS[:32], grid, 5, solver) - accurate[:32]).flatten(1).square().mean(1).sqrt()
            for grid in GRIDS
        ]
        cells = " | ".join(f"{float(error.mean()):.3f}" for error in errors)
        lines.append(f"| {solver[0]}-{solver[1]} | {cells} |")
    lines += ["", "Measured by `python training/points_card.py`.", ""]
    (DOCS / "fashion-points-facts.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
