"""What learning costs: against the paper's settings, against bare network calls, and in memory.

    python benchmarks/learning.py

Cost counts evaluations of the network on one sample, a backward pass as two. Times are ratios
measured in one run: the learner and the bare calls it makes take turns. Memory is torch's own
record of allocations during one iteration.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ld3 import zoo
from ld3.distances import FeatureDistance
from ld3.known_grids import make_grid
from ld3.learner.learn import learning
from ld3.learner.presets import make_preset
from ld3.learner.recipes import PaperRules, Recipe
from ld3.models import bind
from ld3.problem import KEPT, Problem
from ld3.runs.learn import run_learn
from ld3.runs.spec import RunSpec
from ld3.seeds import seeds_for
from ld3.solvers import make_solver
from ld3.teacher import make_pairs

NFE = 5


def problem(nfe: int, train: int = 64, valid: int = 32) -> Problem:
    """`fashion` with pairs of a quick teacher."""
    model = zoo.load("fashion")
    pairs = [
        make_pairs(model, seeds)
        for seeds in (seeds_for("training", train), seeds_for("validation", valid))
    ]
    return Problem(model, make_solver("dpmpp"), nfe, zoo.perceptual(), pairs[0], pairs[1])


def cost(out: Path, seeds: int, counts: list[int]) -> None:
    """Held-out distance and evaluations of our presets beside those of the paper's settings."""
    for nfe in counts:
        paper = None
        for preset in ("paper-pixel", "standard", "fast"):
            spec = RunSpec(preset=preset, nfe=(nfe,), judged=0, out=out)
            runs = [
                next(run_learn(spec.model_copy(update={"seed": seed}))) for seed in range(seeds)
            ]
            found = " ".join(f"{run.scores['learned'].distance:.5f}" for run in runs)
            own = statistics.fmean(run.plan.learned.evaluations for run in runs)
            teacher = statistics.fmean(run.plan.learned.teacher_evaluations for run in runs)
            paper = paper or (own, own + teacher)
            print(
                f"NFE {nfe} {preset:<12} held-out distance {found}   evaluations {own:.0f}"
                f" ({own / paper[0]:.3f} of the paper's) + {teacher:.0f} of the teacher"
                f" (together {(own + teacher) / paper[1]:.3f})",
                flush=True,
            )


def bare(task: Problem, recipe: Recipe) -> None:
    """The network and distance calls of the learner, and nothing else."""
    assert isinstance(task.distance, FeatureDistance)
    ts = make_grid("logsnr", task.model.schedule, task.nfe).times[1:-1]
    model, epochs = task.model, recipe.all_epochs
    count = 0
    features = task.distance.target(task.train.target), task.distance.target(task.valid.target)
    for pairs in (task.train, task.valid):
        denoise = bind(model, pairs.cond)
        with torch.no_grad():
            denoise(80 * pairs.noise, torch.tensor(80.0))
    for _ in range(epochs):
        for first in range(0, len(task.train), recipe.batch):
            index = torch.arange(first, min(first + recipe.batch, len(task.train)))
            cond = task.train.cond
            assert isinstance(cond, Tensor)
            denoise = bind(model, cond[index])
            x = task.train.noise[index].requires_grad_()
            with torch.no_grad():
                for t in ts[: max(0, len(ts) - KEPT)]:
                    denoise(x, t)  # what the backward pass computes again
            for t in ts:
                leaf = t.clone().requires_grad_()
                out = denoise(x, leaf)
                torch.autograd.grad(out, (x, leaf), torch.ones_like(out))
            sample = task.train.target[index].requires_grad_()
            loss = task.distance.distance_to(sample, tuple(f[index] for f in features[0]))
            torch.autograd.grad(loss.sum(), sample)
            count += 1
            if count % recipe.validate_every == 0:
                with torch.no_grad():
                    denoise = bind(model, task.valid.cond)
                    for t in ts:
                        denoise(task.valid.noise, t)
                    task.distance.distance_to(task.valid.target, features[1])


def wall(rounds: int) -> None:
    """Time of the learner over that of its bare calls."""
    task, recipe = problem(NFE), make_preset("fast", NFE).recipe
    start = make_grid("vp-uniform", task.model.schedule, NFE)
    own, raw = [], []
    for _ in range(rounds):
        steps = learning(task, recipe, start)
        next(steps)  # the preconditioner and the first validation
        began = time.perf_counter()
        for _ in steps:
            pass
        middle = time.perf_counter()
        bare(task, recipe)
        own.append(middle - began)
        raw.append(time.perf_counter() - middle)
    ratios = [a / b for a, b in zip(own, raw, strict=True)]
    every = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"learner / bare calls: {statistics.median(ratios):.2f} (median of {every})", flush=True)


def peak(nfe: int) -> int:
    """The largest sum of living allocations in one iteration, in bytes."""
    task = problem(nfe, 8, 8)
    recipe = PaperRules(epochs_times=0, epochs=1, batch=8, gamma=0.0, validate_every=100)
    steps = learning(task, recipe, make_grid("logsnr", task.model.schedule, nfe))
    next(steps)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        next(steps)
    events = record.profiler.kineto_results.events()
    living = highest = 0
    for _, change in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        living += change
        highest = max(highest, living)
    return highest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the runs  [a temporary one]")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each preset")
    parser.add_argument("--nfe", type=int, nargs="+", default=[4, 6], help="for the cost")
    args = parser.parse_args()
    few, many = peak(4), peak(20)
    print(
        f"peak memory of an iteration, {KEPT} calls kept: NFE 4 {few / 1e6:.0f} MB, "
        f"NFE 20 {many / 1e6:.0f} MB, ratio {many / few:.2f}",
        flush=True,
    )
    wall(5)
    with tempfile.TemporaryDirectory() as folder:
        cost(args.out or Path(folder), args.seeds, args.nfe)


if __name__ == "__main__":
    main()
