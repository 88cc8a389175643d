"""When does a network ripple so much in time that secants are better than slopes?

    python benchmarks/ripples.py --page docs/results/ripples.md

A mixture of two Gaussians whose denoiser is D(x, t) + size sin(2 pi lam / period) cos(3 x). Plans
of 5 evaluations with DPM++ are learned with exact slopes and with secants, by the preset `fast`.
Shown is the squared error on held-out seeds, mean and range over the orders of batches.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

import ld3
from ld3.distances import l2
from ld3.learner.presets import make_preset
from ld3.learner.starts import ROUGH, find_starts
from ld3.problem import SECANT, Problem, Student
from ld3.store import write_bytes
from ld3.teacher import Teacher
from ld3.zoo.toy import mixture

NFE = 5
PERIODS, SIZES = (0.08, 0.13, 0.2), (0.0, 0.001, 0.002, 0.003, 0.005, 0.01)
SEEDS = range(4)  # orders of batches


def rippled(size: float, period: float) -> ld3.FunctionModel:
    """The mixture with ripples in lam."""
    toy = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)

    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        wave = torch.sin(2 * math.pi * toy.schedule.lam(t) / period)
        return toy.forward(x, t, None) + size * wave * torch.cos(3 * x)

    return ld3.FunctionModel(forward, toy.schedule, "x0", (2,), torch.float64)


def problem_of(model: ld3.FunctionModel) -> tuple[Problem, Problem]:
    """The problem, and one whose validation pairs are held out."""
    fine = Teacher(steps=300)
    train, valid, held = (
        ld3.make_pairs(model, range(first, first + count), fine)
        for first, count in ((0, 48), (1000, 16), (2000, 256))
    )
    problem = Problem(model, ld3.make_solver("dpmpp"), NFE, l2, train, valid)
    return problem, replace(problem, valid=held)


def rows() -> Iterator[str]:
    recipe = make_preset("fast", NFE).recipe
    for period in PERIODS:
        for size in SIZES:
            if size == 0 and period != PERIODS[0]:
                continue
            model = rippled(size, period)
            problem, held = problem_of(model)
            found = find_starts(problem, power=recipe.power)
            start = ld3.make_grid(found.names[0], model.schedule, NFE)
            cells = []
            for h in (0.0, SECANT):
                losses = []
                for seed in SEEDS:
                    *_, last = ld3.learning(replace(problem, secant=h), recipe, start, seed=seed)
                    losses.append(1e4 * Student(held).mean_loss(last.tuned.table(model.schedule)))
                cells.append(f"{mean(losses):.2f} ({min(losses):.2f} to {max(losses):.2f})")
            rough = found.roughness
            taken = "secants" if rough > ROUGH else "exact"
            shown = "any" if size == 0 else f"{period:g}"
            yield f"| {shown} | {size:g} | {rough:.3f} | {cells[0]} | {cells[1]} | {taken} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, help="file to write the table to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "Measured by `python benchmarks/ripples.py`: squared error times 10,000 on 256 held-out "
        f"seeds, over {len(SEEDS)} orders of batches.",
        "",
        "| period in $\\lambda$ | size | roughness | exact slopes | secants | taken by `auto` |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for row in rows():
        print(row, flush=True)
        lines.append(row)
    if args.page is not None:
        write_bytes(args.page, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
