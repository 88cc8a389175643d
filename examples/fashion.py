"""Few steps on a real network: the same noise with 4, 6 and 10 evaluations beside an accurate run.

Uses the model `fashion` inside the package. Prints, for every hand-made grid, how far the samples
are from the accurate ones, and draws the best grid's samples below them.

    python examples/fashion.py --out demo
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import ld3
from ld3 import zoo

GRIDS = ("uniform", "quadratic", "edm", "logsnr", "cosine", "vp-uniform")
MODELS = [name for name in zoo.SHIPPED if zoo.has_features(name)]  # of clothes
FEW = (10, 6, 4)
SEEDS = range(20)  # two of each class


@torch.inference_mode()
def draw(model: ld3.Model, solver: str, grid: str, steps: int) -> Tensor:
    """One sample per seed."""
    k = ld3.knots(model.schedule, ld3.make_grid(grid, model.schedule, steps))
    network = ld3.bind_network(model, model.conditions(SEEDS))
    table = ld3.compile_table(ld3.make_solver(solver), k, model.prediction)
    return model.decode(table.run(network, ld3.prior(model, SEEDS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the image")
    parser.add_argument("--model", choices=MODELS, default="fashion")
    parser.add_argument("--solver", choices=sorted(ld3.SOLVERS), default="dpmpp")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    model, distance = zoo.load(args.model), zoo.perceptual()
    exact = draw(model, "unipc", "logsnr", 60)
    rows = [("accurate, 60", exact)]
    print(
        f"{args.model}, {args.solver}: perceptual distance to an accurate run, {len(SEEDS)} samples"
    )
    print(f"{'grid':<12}" + "".join(f"{f'NFE {steps}':>10}" for steps in FEW))
    scores: dict[str, list[float]] = {}
    samples: dict[tuple[str, int], Tensor] = {}
    for grid in GRIDS:
        for steps in FEW:
            samples[grid, steps] = draw(model, args.solver, grid, steps)
            value = distance(samples[grid, steps], exact).mean().item()
            scores.setdefault(grid, []).append(value)
        print(f"{grid:<12}" + "".join(f"{value:>10.4f}" for value in scores[grid]))
    for column, steps in enumerate(FEW):
        best = min(GRIDS, key=lambda grid: scores[grid][column])
        rows.append((f"{best}, {steps}", samples[best, steps]))
    print("The best grid differs from column to column.")

    figure, axes = plt.subplots(len(rows), 1, figsize=(10, 2.5), layout="constrained")
    for axis, (label, images) in zip(axes, rows, strict=True):
        strip = images.clamp(-1, 1)[:, 0].permute(1, 0, 2).reshape(28, -1)
        axis.imshow(strip.numpy(), cmap="gray", vmin=-1, vmax=1)
        axis.set_xticks([])
        axis.set_yticks([14], [label])
    image = args.out / f"{args.model}.png"
    figure.savefig(image, dpi=130)
    print(f"\nImage: {image}")


if __name__ == "__main__":
    main()
