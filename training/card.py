"""The facts and images of a model's card: samples, the scale of their metrics, smoothness in time.

    python training/card.py fashion

writes `docs/models/NAME-facts.md` and its images. Everything is measured here, from the weights
in the package; nothing needs the data set.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import ld3
from ld3 import zoo
from ld3.known_grids import GRIDS
from ld3.metrics import Moments, frechet_distance
from ld3.zoo.shipped import CLASSES, WEIGHTS

DOCS = Path(__file__).resolve().parent.parent / "docs" / "models"
HANDMADE = ("uniform", "quadratic", "edm", "logsnr", "cosine", "vp-uniform")
SOLVERS = (("unipc", 3), ("ipndm", 3), ("dpmpp", 3))
ACCURATE = 100  # steps of UniPC-3 on the logSNR grid
BATCH = 100
STEPS = 6  # of the known grids
SCREEN = 500  # samples to choose one of them by


@torch.inference_mode()
def draw(
    model: ld3.Model,
    seeds: range,
    grid: str,
    steps: int,
    solver: tuple[str, int] = ("unipc", 3),
    guidance: float = 1.0,
) -> Iterator[Tensor]:
    """Decoded samples, in batches."""
    k = ld3.knots(model.schedule, ld3.make_grid(grid, model.schedule, steps))
    table = ld3.compile_table(ld3.make_solver(*solver), k, model.prediction)
    for first in range(0, len(seeds), BATCH):
        part = seeds[first : first + BATCH]
        network = ld3.bind_network(model, model.conditions(part), guidance=guidance)
        yield model.decode(table.run(network, ld3.prior(model, part)))


def rms(error: Tensor) -> Tensor:
    return error.flatten(1).square().mean(1).sqrt()  # (B,)


def sheet(rows: Tensor, columns: int) -> np.ndarray:
    """Images (R*C, 1 or 3, H, W) as one image, (R*H, C*W, 3)."""
    height, width = rows.shape[-2:]
    grid = rows.clamp(-1, 1).expand(-1, 3, -1, -1).reshape(-1, columns, 3, height, width)
    return (grid.permute(0, 3, 1, 4, 2).reshape(-1, columns * width, 3).numpy() + 1) / 2


def road_image(model: ld3.Model, path: Path) -> None:
    """Forty samples of each class."""
    x = torch.cat(list(draw(model, range(80), "logsnr", 20)))
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.1), layout="constrained")
    for number, (axis, name) in enumerate(zip(axes, ("car", "truck"), strict=True)):
        axis.imshow(sheet(x[number::2], 8))
        axis.set_title(name)
        axis.axis("off")
    figure.savefig(path, dpi=120)


def classes_image(model: ld3.Model, path: Path) -> None:
    """Eight samples of each class, without and with guidance."""
    seeds = range(80)
    figure, axes = plt.subplots(1, 2, figsize=(9, 5.6), layout="constrained")
    for axis, guidance in zip(axes, (1.0, 2.0), strict=True):
        samples = torch.cat(list(draw(model, seeds, "logsnr", 20, guidance=guidance)))
        by_class = samples.view(8, 10, 1, 28, 28).transpose(0, 1).flatten(0, 1)
        axis.imshow(sheet(by_class, 8))
        axis.set_title(f"guidance {guidance:g}")
        axis.set_yticks([28 * c + 14 for c in range(10)], CLASSES)
        axis.set_xticks([])
    figure.savefig(path, dpi=120)


def recognised(model: ld3.Model, count: int) -> list[str]:
    """The share of samples that the classifier recognises as their class."""
    judge, lines = zoo.judge(), []
    known = json.loads((WEIGHTS / "manifest.json").read_text())["files"]["judge.safetensors"]
    for guidance in (1.0, 2.0):
        right = 0
        batches = draw(model, range(count), "logsnr", 20, guidance=guidance)
        for number, batch in enumerate(tqdm(batches, f"guidance {guidance:g}", count // BATCH)):
            wanted = torch.arange(number * BATCH, number * BATCH + len(batch)) % 10
            right += int((judge.logits(batch.clamp(-1, 1)).argmax(1) == wanted).sum())
        lines.append(f"| guidance {guidance:g} | {100 * right / count:.1f} % |")
    return [
        f"**Recognised.** Of {count:,} samples (20 steps of UniPC-3) the classifier finds their "
        "class:",
        "",
        "| samples | recognised |",
        "|---|---|",
        f"| real test images | {100 * known['test_accuracy']:.1f} % |",
        *lines,
    ]


def grids_table(model: ld3.Model, steps: int = 5, count: int = 100) -> list[str]:
    """How much the grid matters at few evaluations."""
    seeds = range(10_000, 10_000 + count)
    exact = torch.cat(list(draw(model, seeds, "logsnr", ACCURATE)))
    rows, spread = [], []
    for solver in SOLVERS:
        errors = {
            grid: rms(torch.cat(list(draw(model, seeds, grid, steps, solver))) - exact)
            .mean()
            .item()
            for grid in HANDMADE
        }
        spread.append(max(errors.values()) / min(errors.values()))
        cells = " | ".join(f"{errors[grid]:.3f}" for grid in HANDMADE)
        rows.append(f"| {solver[0]}-{solver[1]} | {cells} | {spread[-1]:.1f} |")
    return [
        f"**The grid matters.** Mean RMS distance to an accurate solution ({ACCURATE} steps of "
        f"UniPC-3) with {steps} evaluations, {count} samples:",
        "",
        f"| solver | {' | '.join(HANDMADE)} | worst / best |",
        "|---" * (len(HANDMADE) + 2) + "|",
        *rows,
    ]


def frechet_table(model: ld3.Model, count: int) -> list[str]:
    """Fréchet distance to real images: an accurate run beside few evaluations.

    Of all known grids the one with the lowest distance of ``SCREEN`` samples is shown.
    """
    judge, test = zoo.judge(), zoo.judge_moments("test")

    def score(grid: str, steps: int, solver: tuple[str, int], number: int) -> float:
        name = f"{solver[0]}-{solver[1]} {grid} {steps}"
        batches = draw(model, range(20_000, 20_000 + number), grid, steps, solver)
        shown = tqdm(batches, name, number // BATCH)
        return frechet_distance(
            Moments.of(judge.features(batch.clamp(-1, 1)) for batch in shown), test
        )

    train = zoo.judge_moments("train")
    rows = [
        f"| training images (60,000) | {frechet_distance(train, test):.4f} |",
        f"| unipc-3, logsnr, 20 evaluations | {score('logsnr', 20, ('unipc', 3), count):.3f} |",
    ]
    for solver in SOLVERS:
        tried = {grid: score(grid, STEPS, solver, SCREEN) for grid in GRIDS}
        best = min(tried, key=lambda grid: tried[grid])
        value = score(best, STEPS, solver, count)
        rows.append(f"| {solver[0]}-{solver[1]}, {best}, {STEPS} evaluations | {value:.3f} |")
    return [
        f"**Fréchet distance to the 10,000 test images**, from {count:,} samples, by the features "
        f"of the classifier. For each solver the best of {len(GRIDS)} known grids is shown, chosen "
        f"by {SCREEN:,} samples. More samples give smaller values: compare at equal numbers only.",
        "",
        "| set | Fréchet distance |",
        "|---|---|",
        *rows,
    ]


@torch.inference_mode()
def smooth_table(model: ld3.Model, steps: int = 5, count: int = 16) -> list[str]:
    """Does the slope in a time at a small distance tell the slope at a large one?"""
    seeds = range(30_000, 30_000 + count)
    exact = torch.cat(list(draw(model, seeds, "logsnr", ACCURATE)))
    denoise = ld3.bind(model, model.conditions(seeds))
    x = ld3.prior(model, seeds)
    schedule = model.schedule
    lam = schedule.lam(ld3.make_grid("logsnr", schedule, steps).times)
    rows = []
    for name, order in (*SOLVERS, ("euler", 1)):
        solver = ld3.make_solver(name, order)

        def error(i: int, shift: float) -> Tensor:
            moved = lam.clone()
            moved[i] += shift
            k = ld3.knots(schedule, ld3.TimeGrid.of(schedule.time_at(moved)))
            sample = model.decode(ld3.integrate(denoise, solver, k, x))  # noqa: B023
            return rms(sample - exact)  # (B,)

        near, far = (
            torch.stack([(error(i, h) - error(i, -h)) / (2 * h) for i in range(1, steps)])
            for h in (0.002, 0.1)
        )
        large = far.abs() > 0.05 * far.abs().max()  # where there is a slope to speak of
        same = ((near * far) > 0)[large].float().mean().item()
        ratio = (near / far)[large]
        low, middle, high = ratio.quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
        rows.append(
            f"| {name}-{order} | {100 * same:.0f} % | {low:.2f} / {middle:.2f} / {high:.2f} |"
        )
    return [
        f"**Smooth in time.** The slope of the error in each inner time (in lam, {steps} steps, "
        f"{count} samples), by differences over 0.002 and over 0.1: how often the signs agree, and "
        "the ratio of the small to the large (10 %, 50 %, 90 % of the cases):",
        "",
        "| solver | same sign | ratio |",
        "|---|---|---|",
        *rows,
    ]


@torch.inference_mode()
def smooth_image(model: ld3.Model, path: Path) -> None:
    """D(x, sigma) for fixed x along log sigma, a few pixels, at three noise levels of x."""
    schedule = model.schedule
    clean = _clean(model)
    ends = torch.tensor([schedule.t_max, schedule.t_min], dtype=torch.float64)
    lams = torch.linspace(*schedule.lam(ends).tolist(), 300, dtype=torch.float64)
    times = schedule.time_at(lams)
    pixels = [(0, 3, 3), (0, 4, 2), (0, 2, 5)] if model.shape[1] == 7 else [
        (0, 14, 14), (0, 8, 10), (0, 20, 18)
    ]  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained", sharey=True)
    for axis, level in zip(axes, (5.0, 1.0, 0.2), strict=True):
        xbar = clean + level * ld3.noise([99], model.shape)
        denoise = ld3.bind(model, model.conditions(range(1)))
        alpha = schedule.log_alpha(times).exp()
        curve = torch.cat(
            [denoise((a * xbar).float(), t) for a, t in zip(alpha, times, strict=True)]
        )
        for c, i, j in pixels:
            axis.plot((-lams).numpy(), curve[:, c, i, j].numpy(), lw=1.2)
        axis.set(title=f"x = data + {level:g} noise", xlabel="log sigma/alpha, network's input")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("three values of the answer")
    figure.savefig(path, dpi=110)


def _clean(model: ld3.Model) -> Tensor:
    """One undecoded sample."""
    k = ld3.knots(model.schedule, ld3.make_grid("logsnr", model.schedule, ACCURATE))
    denoise = ld3.bind(model, model.conditions(range(1)))
    return ld3.integrate(denoise, ld3.make_solver("unipc"), k, ld3.prior(model, range(1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [name for name in zoo.SHIPPED if name != "fashion-points"]
    parser.add_argument("name", choices=names)
    parser.add_argument("--samples", type=int, default=5000, help="for the Fréchet distance")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=DOCS)
    args = parser.parse_args()
    images = args.out / "images"
    images.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    model = zoo.load(args.name)
    start = time.monotonic()
    smooth_image(model, images / f"{args.name}-smooth.png")
    parts = [grids_table(model), smooth_table(model)]
    command = f"python training/card.py {args.name}"
    if args.name == "road":
        road_image(model, images / "road-classes.png")
    else:
        classes_image(model, images / f"{args.name}-classes.png")
        parts.insert(0, recognised(model, min(1000, args.samples)))
        parts += [frechet_table(model, args.samples)]
        command += f" --samples {args.samples}"
    text = "\n".join("\n".join([*part, ""]) for part in parts)
    (args.out / f"{args.name}-facts.md").write_text(f"{text}\nMeasured by `{command}`.\n")
    print(text, f"\n{time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
