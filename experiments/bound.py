"""The bound of Theorem 1 on learned plans: its three terms against the radius, and what it bounds.

    python experiments/bound.py

writes docs/results/bound.md and docs/images/bound.png, in a minute or two. The models have exact
scores and at most 64 dimensions, so that log-determinants are those of the whole Jacobian. Teacher
and student are UniPC with 20 and 7 evaluations, as in the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch
from cells import IMAGES, arguments, write
from torch import Tensor

import ld3
from ld3.metrics.bound import Bound, Map, TrueBound, random_bounds, true_bound
from ld3.runs import run_learn
from ld3.spec import RunSpec
from ld3.zoo.toy import Mixture, image_mixture, mixture

SAMPLES = 100
FIRST_SEED = 5_000_000_000  # away from those of learning and of scores
RADII = [0.0, 0.05, 0.1, 0.2, *(0.5 * i for i in range(1, 21))]
NFE, TEACHER = 7, 20


@dataclass(frozen=True)
class Case:
    """One student on one model."""

    model: str
    student: str
    d: int
    true: TrueBound
    random: list[Bound]  # for all RADII


def models() -> dict[str, Mixture]:
    """Six clusters in 16 dimensions, and smooth 8x8 pictures."""
    means = ld3.noise(range(6), (16,), torch.float64)
    return {
        "mixture, d = 16": mixture(means, std=0.25),
        "pictures, d = 64": image_mixture(count=4, rank=6, shape=(1, 8, 8)),
    }


def as_map(model: Mixture, table: ld3.Table) -> Map:
    """From unit noise to a sample."""
    network = ld3.bind_network(model)
    return lambda z: table.run(network, model.schedule.prior_std * z)


def on_grid(model: Mixture, name: str, steps: int) -> Map:
    knots = ld3.knots(model.schedule, ld3.make_grid(name, model.schedule, steps))
    return as_map(model, ld3.compile_table(ld3.make_solver("unipc"), knots, model.prediction))


def measure(name: str, model: Mixture, out: Path) -> list[Case]:
    """The learned plan, and the best known grid."""
    spec = RunSpec(solver="unipc", nfe=(NFE,), distance="l2", judged=0, out=out)
    (learned,) = run_learn(spec, model=model)
    teacher = on_grid(model, "logsnr", TEACHER)
    students = {
        "learned": as_map(model, learned.plan.table()),
        learned.best_grid: on_grid(model, learned.best_grid, NFE),
    }
    b = noise(model)
    d = b[0].numel()
    return [
        Case(name, which, d, true_bound(teacher, f, b), random_bounds(teacher, f, b, RADII))
        for which, f in students.items()
    ]


def noise(model: Mixture) -> Tensor:
    return ld3.noise(range(FIRST_SEED, FIRST_SEED + SAMPLES), model.shape, torch.float64)


def table(cases: Sequence[Case]) -> str:
    lines = [
        f"Made by `python experiments/bound.py`: UniPC-3, {NFE} evaluations, teacher UniPC-3 with "
        f"{TEACHER} on `logsnr`, {SAMPLES} noises, whole Jacobians in float64. Nats.\n",
        "| model | student | found | KL(q ‖ p) | largest ‖a − b‖ = r | median | r²/2 | r√(d+1) | gap "
        "| bound | random gap, r = 0 | r = 10 |",
        "|---" * 12 + "|",
    ]
    for case in cases:
        true, bound = case.true, case.true.bound
        gaps = {b.radius: b.gap for b in case.random}
        lines.append(
            f"| {case.model} | `{case.student}` | {true.found:.0%} "
            f"| {true.kl:.3f} ± {true.kl_error:.3f} | {bound.radius:.3f} "
            f"| {float(true.distances.median()):.3f} | {bound.ball:.3f} | {bound.shift:.3f} "
            f"| {bound.gap:.3f} | {bound.total:.3f} | {gaps[0.0]:.3f} | {gaps[10.0]:.3f} |"
        )
    return "\n".join(lines) + "\n"


def draw(path: Path, cases: Sequence[Case]) -> None:
    """Per model the terms for a at random, and the one radius where preimages are true."""
    names = list(dict.fromkeys(case.model for case in cases))
    figure, axes = plt.subplots(1, len(names), figsize=(11, 4.2), layout="constrained", sharey=True)
    for axis, name in zip(axes, names, strict=True):
        learned, known = (case for case in cases if case.model == name)
        bounds = [b for b in learned.random if b.radius > 0]
        r = [b.radius for b in bounds]
        axis.plot(r, [b.ball for b in bounds], color="tab:green", label="r²/2")
        axis.plot(r, [b.shift for b in bounds], color="tab:orange", label="r √(d+1)")
        for case, style, what in ((learned, "-", "learned"), (known, ":", known.student)):
            gaps = [b.gap for b in case.random if b.radius > 0]
            axis.plot(r, gaps, style, color="tab:blue", label=f"gap at random a: {what}")
        axis.plot(r, [b.total for b in bounds], color="black", lw=1, label="sum, learned")
        for case, fill, what in ((learned, "full", "learned"), (known, "none", known.student)):
            at, kind = case.true.bound.radius, {"ls": "none", "fillstyle": fill, "ms": 8}
            axis.plot(at, case.true.bound.gap, "D", color="tab:blue", **kind, label=f"true gap: {what}")
            axis.plot(at, case.true.bound.total, "s", color="black", **kind, label=f"true sum: {what}")
            axis.plot(at, case.true.kl, "o", color="tab:red", **kind, label=f"KL itself: {what}")
        axis.set(xscale="log", yscale="log", xlabel="radius r, in standard deviations", title=name)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("nats")
    axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=130)


def main() -> None:
    args = arguments(__doc__ or "")
    torch.set_num_threads(1)
    cases = [case for name, m in models().items() for case in measure(name, m, args.out)]
    draw(IMAGES / "bound.png", cases)
    write("bound.md", table(cases))


if __name__ == "__main__":
    main()
