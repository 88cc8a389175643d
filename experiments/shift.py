"""Why judges that do not look at the same noise like some coarse grids at few evaluations.

    python experiments/shift.py compare [RUN ..]

takes the plans of a comparison (the folder that `ld3 compare` wrote, see experiments/compared.py)
and of runs of `ld3 learn`, and writes docs/results/shift.md. Of the judge's features f of samples
and f* of an accurate run from the same noise it shows the error of a sample, mean |f - f*|, beside
the shift of the set, |mean f - mean f*|, which a judge of sets sees. A faint haze on the dark
background is no error to speak of but all samples share it: so the shift is also measured after
everything darker than -0.95 was set to -1.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
from cells import write
from torch import Tensor

from ld3.compare import CompareSpec
from ld3.compare.cells import Cell, Ground, found_of, needs_of, samples_of
from ld3.grids import knots
from ld3.models import Model, prior
from ld3.plan import Plan
from ld3.scores import sampler
from ld3.searches import make_grid
from ld3.solvers import make_solver
from ld3.table import compile_table
from ld3.zoo.features import FeatureNet, load_features
from ld3.zoo.loading import load_model

METHODS = ("ld3", "ld3-times", "ays-svd", "gits", "dmn", "gits-lsun", "logsnr")
NFE = 4
HELD = 256
FIRST = 7_000_000_000  # seeds of their own
DARK = -0.95
WORDS = {
    "model": "fashion", "methods": METHODS, "solvers": ("unipc", "ipndm:3", "dpmpp:3"),
    "nfe": (NFE,), "seeds": 2, "pairs": 128, "valid": 32, "held_out": HELD,
}  # fmt: skip


def darkened(x: Tensor) -> Tensor:
    """Pictures without haze on their background."""
    return torch.where(x < DARK, -1.0, x)


def seen(ground: Ground, cell: Cell) -> Tensor:
    """Its samples from held-out noise."""
    tuned = found_of(ground, cell).tuned
    assert tuned is not None, cell.name
    return samples_of(ground, ground.table(cell, tuned)).float().clamp(-1, 1)


def numbers(net: FeatureNet, x: Tensor, exact: Tensor) -> Tensor:
    """Error, shift, haze, shift without haze, roughness and sureness of one set, (6,)."""
    assert net.logits is not None
    gap = net(x).double() - net(exact).double()  # (B, D)
    clear = net(darkened(x)).double() - net(darkened(exact)).double()
    haze = (x - exact)[exact < DARK].mean().double()
    rough = (roughness(x) / roughness(exact)).mean().double()
    sure = net.logits(x).softmax(1).amax(1).mean().double()
    shifts = [g.mean(0).norm() for g in (gap, clear)]
    return torch.stack([gap.norm(dim=1).mean(), shifts[0], haze, shifts[1], rough, sure])


def roughness(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, (B, C, H, W) -> (B,)."""
    return x.diff(dim=-1).abs().flatten(1).mean(1) + x.diff(dim=-2).abs().flatten(1).mean(1)


def row(first: str, second: str, values: list[float]) -> str:
    error, shift, haze, clear, rough, sure = values
    return (
        f"| {first} | {second} | {error:.2f} | {shift:.2f} | {haze:.4f} | {clear:.2f} | "
        f"{rough:.2f} | {sure:.3f} |"
    )


def of_methods(ground: Ground, net: FeatureNet) -> Iterator[str]:
    exact = ground.exact.float().clamp(-1, 1)
    yield row("", "accurate run", numbers(net, exact, exact).tolist())
    for solver in ground.spec.made_solvers:
        for method in METHODS:
            seeds = range(ground.spec.seeds) if needs_of(method) else (None,)
            sets = [seen(ground, Cell(method, solver, NFE, seed)) for seed in seeds]
            values = torch.stack([numbers(net, x, exact) for x in sets]).mean(0)
            yield row(f"{solver.name}-{solver.order}", f"`{method}`", values.tolist())


def of_runs(runs: list[Path], net: FeatureNet) -> Iterator[str]:
    """Of plans, averaged over the seeds of the same words."""
    groups: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for folder in runs:
        plan = Plan.load(folder / "plan.json")
        said = plan.learned["spec"]
        model, noise, exact = accurate(said["model"])
        cond = model.conditions(range(FIRST, FIRST + HELD))
        x = sampler(model, plan.table(), 1.0)(noise, cond).float().clamp(-1, 1)
        what = f"`{said['model']}`, {plan.solver.name}-{plan.solver.order}, NFE {plan.nfe}"
        learn = said.get("learn", "times+net+coefficients")
        groups[what, learn].append(numbers(net, x, exact))
    for (first, second), values in sorted(groups.items()):
        yield row(first, second, torch.stack(values).mean(0).tolist())


@cache
def accurate(name: str) -> tuple[Model, Tensor, Tensor]:
    """A model, noise, and what 80 steps make of it."""
    model = load_model(name).model
    seeds = range(FIRST, FIRST + HELD)
    noise = prior(model, seeds, "cpu")
    k = knots(model.schedule, make_grid("logsnr", model.schedule, 80))
    draw = sampler(model, compile_table(make_solver("unipc"), k, model.prediction), 1.0)
    return model, noise, draw(noise, model.conditions(seeds)).float().clamp(-1, 1)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of a comparison")
    parser.add_argument("runs", type=Path, nargs="*", help="folders of runs of `ld3 learn`")
    args = parser.parse_args()
    ground, net = Ground.of(CompareSpec.read(WORDS | {"out": args.folder})), load_features()
    head = (
        f"{HELD} held-out noises; first `fashion` with {NFE} evaluations and the plans of the "
        "comparison, then runs of their own (mean over seeds). Error: how far a sample is from "
        "that of an accurate run from the same noise, in the judge's features. Shift: how far the "
        "mean of all samples is. Haze: how much brighter their background is, of a range of 2. "
        "Without: the shift when everything below -0.95 is set to -1. Roughness: differences of "
        "neighbouring pixels, over those of the accurate sample. Sureness: the probability that "
        "the judge gives to the class that it sees.\n"
    )
    titles = "| solver | method | error | shift | haze | without | roughness | sureness |"
    lines = [head, titles, "|---" * 8 + "|", *of_methods(ground, net), *of_runs(args.runs, net)]
    write("shift.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
