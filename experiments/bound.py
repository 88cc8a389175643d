"""The bound of Theorem 1 on learned plans: its three terms against the radius, and what it bounds.

    python experiments/bound.py

writes docs/results/bound.md and docs/images/bound.png, in a minute or two. The models have exact
scores and at most 64 dimensions, so that log-determinants are those of the whole Jacobian. Teacher
and student are UniPC with 20 and 7 evaluations, as in the paper.
"""

from collections.abc import Callable, Sequence
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
    rows: dict[str, Callable[[Case], str]] = {
        "preimages found": lambda c: f"{c.true.found:.0%}",
        "KL(q ‖ p)": lambda c: f"{c.true.kl:.3f} ± {c.true.kl_error:.3f}",
        "bound": lambda c: f"{c.true.bound.total:.3f}",
        "· r²/2": lambda c: f"{c.true.bound.ball:.3f}",
        "· r √(d+1)": lambda c: f"{c.true.bound.shift:.3f}",
        "· gap": lambda c: f"{c.true.bound.gap:.3f}",
        "r: largest ‖a − b‖": lambda c: f"{c.true.bound.radius:.3f}",
        "median ‖a − b‖": lambda c: f"{float(c.true.distances.median()):.3f}",
        "random gap, r = 0": lambda c: f"{c.random[0].gap:.3f}",
        "random gap, r = 10": lambda c: f"{c.random[-1].gap:.3f}",
    }
    lines = [
        f"Made by `python experiments/bound.py`: UniPC-3, {NFE} evaluations, teacher UniPC-3 with "
        f"{TEACHER} on `logsnr`, {SAMPLES} noises, whole Jacobians in float64. In nats.\n",
        "| | " + " | ".join(f"{case.model}: `{case.student}`" for case in cases) + " |",
        "|---" * (len(cases) + 1) + "|",
    ]
    for title, show in rows.items():
        lines.append(f"| {title} | " + " | ".join(show(case) for case in cases) + " |")
    return "\n".join(lines) + "\n"


def draw(path: Path, cases: Sequence[Case]) -> None:
    """Per model the terms for a at random, and the one radius where preimages are true."""
    names = list(dict.fromkeys(case.model for case in cases))
    figure, axes = plt.subplots(1, len(names), figsize=(10, 5), layout="constrained", sharey=True)
    for axis, name in zip(axes, names, strict=True):
        learned, known = (case for case in cases if case.model == name)
        known_terms = [Bound.of(0.002 * i, learned.d, 0.0) for i in range(1, 5001)]
        fine = [b.radius for b in known_terms]
        axis.plot(fine, [b.ball for b in known_terms], color="tab:green", label="r²/2")
        axis.plot(fine, [b.shift for b in known_terms], color="tab:orange", label="r √(d+1)")
        r = RADII
        for case, style, what in ((learned, "-", "learned"), (known, ":", "best grid")):
            axis.plot(
                r,
                [b.gap for b in case.random],
                style,
                color="tab:blue",
                label=f"gap at random a: {what}",
            )
        axis.plot(r, [b.total for b in learned.random], color="black", lw=1, label="sum, learned")
        for case, fill, what in ((learned, "full", "learned"), (known, "none", "best grid")):
            bound = case.true.bound
            for value, mark, colour, kind in (
                (bound.total, "s", "black", "true sum"),
                (bound.gap, "D", "tab:blue", "true gap"),
                (case.true.kl, "o", "tab:red", "KL itself"),
            ):
                axis.plot(
                    bound.radius, value, mark, color=colour, fillstyle=fill, ms=8, ls="none",
                    label=f"{kind}: {what}",
                )  # fmt: skip
        axis.set(yscale="log", xlabel="radius r, in standard deviations", title=name)
        axis.set_xscale("symlog", linthresh=0.1, linscale=0.5)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
    axes[0].set_ylim(1e-3, 3e3)
    axes[0].set_ylabel("nats")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncol=4, frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    args = arguments(__doc__ or "")
    torch.set_num_threads(1)
    cases = [case for name, m in models().items() for case in measure(name, m, args.out)]
    draw(IMAGES / "bound.png", cases)
    write("bound.md", table(cases))


if __name__ == "__main__":
    main()
