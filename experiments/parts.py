"""What each group of numbers gives: times, network times, coefficients; and whether they over-fit.

    python experiments/parts.py [NAME ..]

writes docs/results/parts-NAME.md for each name: a model with some solvers, `misses` for a closer
look where coefficients gain little, or `pairs` for learning and held-out distances with few and
many pairs; without names, all of them. The model from elsewhere (examples/spectra.py) is several
times as dear, so there the preset is `fast`, but for 6 evaluations also `standard`.
"""

import argparse
import importlib.util
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from cells import ROOT, Cell, run_all, spread, write
from tables import HELD_OUT, SEEDS, TITLES, best, value, words
from torch import Tensor

from ld3.plan import Plan
from ld3.runs import HELD
from ld3.scores import sampler
from ld3.searches import HANDMADE, make_grid
from ld3.solvers import make_solver
from ld3.teacher import teach
from ld3.zoo.loading import Loaded, load_model, make_distance

LEARN = ("times", "times+net", "times+net+coefficients")
OUTSIDE = {"held_out": 32, "judged": 0, "distance": "l1"}
FAST = {"preset": "fast"}
PAIRS = (16, 64, 256)
FITTED = (4, 6)
MISSES = (  # coefficients gain less than hoped for; those of `fashion` are in the comparison
    ("fashion-flow", "dpmpp", 6),
    ("fashion-flow", "ipndm", 10),
    ("fashion-latent", "unipc", 10),
)


@dataclass(frozen=True)
class Part:
    """A model with its solvers, numbers of evaluations and words of its own."""

    model: str
    solvers: tuple[str, ...]
    counts: tuple[int, ...] = (4, 6, 10)
    own: Mapping[str, object] = field(default_factory=dict)
    title: str = ""


SPECTRA = "examples.spectra:model"
MULTISTEP = ("unipc", "ipndm", "dpmpp")
PARTS = {
    "fashion": Part("fashion", (*MULTISTEP, "euler")),
    "fashion-flow": Part("fashion-flow", ("euler",)),
    "fashion-flow-multistep": Part("fashion-flow", MULTISTEP, title=", multistep solvers"),
    "fashion-latent": Part("fashion-latent", ("dpmpp", "euler")),
    "fashion-latent-more": Part("fashion-latent", ("unipc", "ipndm"), title=", more solvers"),
    "spectra": Part(SPECTRA, ("dpmpp",), own=OUTSIDE | FAST, title=", L1"),
    "spectra-more": Part(
        SPECTRA, ("unipc", "ipndm", "euler"), own=OUTSIDE | FAST, title=", L1, more solvers"
    ),
    "spectra-l2": Part(
        SPECTRA, ("dpmpp",), (4,), OUTSIDE | FAST | {"distance": "l2"}, ", squared L2"
    ),
    "spectra-standard": Part(SPECTRA, ("dpmpp",), (6,), OUTSIDE, ", L1, more iterations"),
}


def changed(learn: str) -> dict[str, object]:
    """Everything is what the default learns."""
    return {} if learn == LEARN[-1] else {"learn": learn}


def table(part: Part, out: Path, jobs: int) -> Iterator[str]:
    """Of one model."""
    asked = [
        words(part.model, solver, nfe, seed) | changed(learn) | part.own
        for seed in SEEDS
        for nfe in part.counts
        for solver in part.solvers
        for learn in LEARN
    ]
    groups: dict[tuple[str, int, str], list[Cell]] = defaultdict(list)
    for cell in run_all(asked, out, jobs):
        w = cell.words
        groups[w["solver"], w["nfe"][0], w.get("learn", LEARN[-1])].append(cell)
    judged = part.own.get("judged") != 0
    preset, held = part.own.get("preset", "standard"), asked[0]["held_out"]
    yield f"### `{part.model}`{part.title}\n"
    yield (
        f"Preset `{preset}`, seeds {', '.join(map(str, SEEDS))} (mean ± standard deviation), "
        f"{held} held-out noises. Ratio: to the row above. Cost: evaluations of the network on one "
        "sample while learning, a backward pass counted as two, the search for a start included, "
        "the teacher not.\n"
    )
    frechet = " Fréchet to accurate |" if judged else ""
    yield f"| solver | NFE | learned | distance | ratio | RMS to accurate |{frechet} cost |"
    yield "|---" * (7 + judged) + "|"
    for solver in part.solvers:
        for nfe in part.counts:
            yield from _rows(solver, nfe, groups, judged)
    yield ""


def _rows(
    solver: str, nfe: int, groups: Mapping[tuple[str, int, str], list[Cell]], judged: bool
) -> Iterator[str]:
    first = groups[solver, nfe, LEARN[0]][0]
    hand = best(first.scores, HANDMADE)
    kinds = ("distance", "to_accurate", *(["frechet_accurate"] if judged else []))
    before, rms, *more = (value(first, hand, kind) for kind in kinds)
    shown = "".join(f" {v:.3f} |" for v in more)
    yield (
        f"| {TITLES[solver]} | {nfe} | nothing: `{hand}` | {before:.5f} | | {rms:.4f} |{shown} |"
    )
    for learn in LEARN:
        runs = groups[solver, nfe, learn]
        far, rms, *more = ([value(run, "learned", kind) for run in runs] for kind in kinds)
        shown = "".join(f" {spread(v, 3)} |" for v in more)
        mean = statistics.fmean(far)
        cost = statistics.fmean(run.evaluations for run in runs)
        yield (
            f"| | | {learn} | {spread(far, 5)} | {mean / before:.2f} | {spread(rms, 4)} "
            f"|{shown} {cost:.0f} |"
        )
        before = mean


def fits(out: Path, jobs: int) -> Iterator[str]:
    """Learning and held-out distances for few and many pairs."""
    asked = [
        words("fashion", "dpmpp", nfe, seed)
        | {"pairs": pairs, "judged": 0, "recipe": {"epochs": round(640 / pairs)}}
        for nfe in FITTED
        for pairs in PAIRS
        for seed in SEEDS
    ]
    done = iter(run_all(asked, out, jobs))
    yield "### Learning and held-out pairs: `fashion`, DPM++3M, about 80 iterations each\n"
    yield "| NFE | pairs | distance on the learning pairs | on held-out noise |"
    yield "|---|---|---|---|"
    for nfe in FITTED:
        for pairs in PAIRS:
            runs = [next(done) for _ in SEEDS]
            seen = [on_learning_pairs(run, pairs, out) for run in runs]
            held = [value(run, "learned", "distance") for run in runs]
            yield f"| {nfe} | {pairs} | {spread(seen, 5)} | {spread(held, 5)} |"
    yield ""


def misses(out: Path, jobs: int) -> Iterator[str]:
    """Where coefficients gain less than we hoped for: is it every noise, or a few?"""
    asked = [
        words(*setting, seed) | changed(learn)
        for setting in MISSES
        for learn in LEARN[1:]
        for seed in SEEDS
    ]
    done, held = iter(run_all(asked, out, jobs)), range(HELD, HELD + HELD_OUT)
    yield "### Less than hoped for: with coefficients over without, by mean and by median\n"
    yield (
        "Perceptual distance on held-out noise. The share is what the two farthest noises of "
        f"{HELD_OUT} make of the mean with coefficients. A slash: seeds "
        f"{', '.join(map(str, SEEDS))}.\n"
    )
    yield "| model | solver | NFE | mean | median | means by seed | share of two |"
    yield "|---" * 7 + "|"
    for model, solver, nfe in MISSES:
        loaded = load_model(model)
        plain, tuned = (
            torch.stack([apart(loaded, next(done), held, out) for _ in SEEDS]) for _ in range(2)
        )
        two = tuned.topk(2).values.sum() / tuned.sum()
        medians = tuned.median(1).values.mean() / plain.median(1).values.mean()
        seeds = " / ".join(f"{ratio:.2f}" for ratio in tuned.mean(1) / plain.mean(1))
        yield (
            f"| `{model}` | {TITLES[solver]} | {nfe} | {tuned.mean() / plain.mean():.2f} "
            f"| {medians:.2f} | {seeds} | {100 * two:.0f} % |"
        )
    yield ""


def on_learning_pairs(run: Cell, pairs: int, out: Path) -> float:
    """The distance of a plan on what it was learned from."""
    seed = run.words["seed"]
    seeds = range(10_000 * seed, 10_000 * seed + pairs)
    return float(apart(load_model("fashion"), run, seeds, out).mean())


def apart(loaded: Loaded, run: Cell, seeds: range, out: Path) -> Tensor:
    """The distance of a plan's samples to its teacher's, for each noise."""
    plan, model = Plan.load(run.plan), loaded.model
    own = plan.learned["preset"]["teacher"]
    teacher = make_solver(own["solver"], own["order"], own["variant"])
    fine = make_grid(own["grid"], model.schedule, own["steps"])
    pairs = teach(model, loaded.identity, teacher, fine, seeds, folder=out / "pairs")
    sample = sampler(model, plan.table(), 1.0)(model.schedule.prior_std * pairs.noise, pairs.cond)
    with torch.no_grad():
        return make_distance("auto", loaded)(sample, pairs.target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"{', '.join(PARTS)}, misses, pairs; none: all")
    parser.add_argument("--out", type=Path, default=ROOT / "runs", help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=2, help="cells side by side")
    args = parser.parse_args()
    tables = {"misses": misses, "pairs": fits}
    for name in args.names or [*PARTS, *tables]:
        if name in tables:
            made = tables[name](args.out, args.jobs)
        elif PARTS[name].model == SPECTRA and importlib.util.find_spec("psdenoiser") is None:
            print(f"{name}: left out, for its package is not installed")
            continue
        else:
            made = table(PARTS[name], args.out, args.jobs)
        write(f"parts-{name}.md", "\n".join(made))


if __name__ == "__main__":
    main()
