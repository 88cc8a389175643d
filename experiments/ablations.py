"""What each part of the method gives: soft forcing, network times, distance, pairs, radius, solver.

    python experiments/ablations.py

writes docs/results/ablations.md and docs/images/ablations.png. Everything is on `fashion` with
5 evaluations of DPM++3M and the preset `fast`, one thing changed at a time, three seeds, and scored
on the same held-out noise by the perceptual distance to the teacher, whatever was learned with.
Plans for the comparison across solvers have times and network times only: coefficients belong to
a solver.
"""

import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from cells import IMAGES, Cell, arguments, run_all, spread, write

from ld3 import zoo
from ld3.grids import knots
from ld3.plan import Plan
from ld3.runs import HELD
from ld3.scores import ACCURATE, Scores, score
from ld3.searches import METHODS, make_grid
from ld3.solvers import make_solver
from ld3.table import Tuned, compile_table
from ld3.teacher import teach

SEEDS = (0, 1, 2)
NFE = 5
SOLVERS = ("dpmpp", "unipc", "ipndm", "euler")
BASE: dict[str, Any] = {
    "model": "fashion", "preset": "fast", "nfe": (NFE,), "held_out": 64, "judged": 0,
}  # fmt: skip
SOFT = {"rate_noise": 12.0 / NFE}
RADII = (0.001, 0.01, 0.1)
OWN, PAIRS = 48, (16, 256)  # of the preset, and tried
TIMES_NET = {"learn": "times+net"}

ROWS: dict[str, dict[str, Any]] = {
    f"nothing ({OWN} pairs, hard, times+net+coefficients, perceptual)": {},
    "times and network times": TIMES_NET,
    "times only": {"learn": "times"},
    "coefficients without constraint": {"recipe": {"exact": False}},
    "no preconditioner": {"recipe": {"precondition": 0, "rate_times": 0.1}},
    "L2 instead of perceptual": {"distance": "l2"},
    **{f"soft, gamma = {g:g}": {"recipe": {"gamma": g, **SOFT}} for g in RADII},
    **{f"{n} pairs": {"pairs": n, "recipe": {"epochs": round(5 * OWN / n)}} for n in PAIRS},
}


def words(change: dict[str, Any], seed: int, solver: str = "dpmpp") -> dict[str, Any]:
    order = {"order": 3} if solver == "ipndm" else {}
    return {**BASE, "solver": solver, **order, "seed": seed, **change}


def main() -> None:
    args = arguments(__doc__ or "")
    asked = [words(change, seed) for change in ROWS.values() for seed in SEEDS]
    asked += [words(TIMES_NET, seed, solver) for solver in SOLVERS for seed in SEEDS]
    cells = iter(run_all(asked, args.out, args.jobs))
    judge = Judge(args.out)
    rows = {name: [judge(next(cells), "dpmpp") for _ in SEEDS] for name in ROWS}
    plans = {solver: [next(cells) for _ in SEEDS] for solver in SOLVERS}
    across = {
        (learned, used): [judge(cell, used) for cell in plans[learned]]
        for learned in SOLVERS
        for used in SOLVERS
    }
    known = {used: judge.best_known(used) for used in SOLVERS}
    write("ablations.md", "\n".join(table(rows, across, known)))
    draw(IMAGES / "ablations.png", rows, known["dpmpp"][1])


class Judge:
    """Scores plans on the held-out noise, by the perceptual distance."""

    def __init__(self, out: Path) -> None:
        self.model, self.distance = zoo.load("fashion"), zoo.perceptual()
        digest, schedule = zoo.SHIPPED["fashion"].digest, self.model.schedule
        seeds, folder = range(HELD, HELD + BASE["held_out"]), out / "pairs"
        self.held, fine = (
            teach(
                self.model, digest, make_solver("unipc"), make_grid("logsnr", schedule, steps),
                seeds, folder=folder,
            )
            for steps in (20, ACCURATE)
        )  # fmt: skip
        self.exact = fine.target

    def __call__(self, cell: Cell, solver: str) -> Scores:
        return self._score(solver, Plan.load(cell.plan).tuned)

    def best_known(self, solver: str) -> tuple[str, float]:
        scores = {
            name: self._score(solver, Tuned(make_grid(name, self.model.schedule, NFE))).distance
            for name in METHODS
            if not name.startswith("paper-")
        }
        best = min(scores, key=lambda name: scores[name])
        return best, scores[best]

    def _score(self, solver: str, tuned: Tuned) -> Scores:
        made = make_solver(solver, 3 if solver == "ipndm" else None)
        k = knots(self.model.schedule, tuned.grid)
        table = compile_table(made, k, self.model.prediction, tuned.corrections)
        return score(self.model, table, self.distance, self.held, self.exact, 1.0)


def table(
    rows: dict[str, list[Scores]],
    across: dict[tuple[str, str], list[Scores]],
    known: dict[str, tuple[str, float]],
) -> list[str]:
    """The page."""
    best, value = known["dpmpp"]
    lines = [
        "Made by `python experiments/ablations.py`: `fashion`, DPM++3M, 5 evaluations, preset "
        f"`fast`, seeds {', '.join(map(str, SEEDS))} (mean ± standard deviation), "
        f"{BASE['held_out']} held-out noises. The number of iterations is about the same in all "
        f"rows. Best known grid: `{best}`, {value:.5f}.\n",
        "| what is changed | perceptual distance | RMS to the teacher |",
        "|---|---|---|",
    ]
    for name, scores in rows.items():
        distance, rms = [s.distance for s in scores], [s.to_teacher for s in scores]
        lines.append(f"| {name} | {spread(distance, 5)} | {spread(rms, 4)} |")
    lines += [
        "\nA plan learned for one solver (rows), used with another (columns): perceptual distance, "
        "mean over the seeds.\n",
        "| learned for | " + " | ".join(f"`{used}`" for used in SOLVERS) + " |",
        "|---|" + "---|" * len(SOLVERS),
    ]
    for learned in SOLVERS:
        means = [statistics.fmean(s.distance for s in across[learned, used]) for used in SOLVERS]
        lines.append(f"| `{learned}` | " + " | ".join(f"{mean:.5f}" for mean in means) + " |")
    lines.append(
        "| best known grid | "
        + " | ".join(f"{known[used][1]:.5f} (`{known[used][0]}`)" for used in SOLVERS)
        + " |\n"
    )
    return lines


def draw(path: Path, rows: dict[str, list[Scores]], known: float) -> None:
    """Distance against the number of pairs, the radius, and the switches."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained", sharey=True)
    default = rows[next(iter(ROWS))]

    def points(axis: Any, x: list[float], groups: list[list[Scores]], line: str = "-") -> None:
        means = [statistics.fmean(s.distance for s in group) for group in groups]
        axis.plot(x, means, ls=line, color="tab:blue", lw=1)
        for at, group in zip(x, groups, strict=True):
            axis.plot([at] * len(group), [s.distance for s in group], "o", color="tab:blue", ms=4)
        axis.axhline(known, color="gray", ls="--", lw=1)

    counts = sorted((*PAIRS, OWN))
    points(axes[0], list(counts), [rows.get(f"{n} pairs", default) for n in counts])
    axes[0].set(xscale="log", xlabel="learning pairs", ylabel="held-out perceptual distance")
    axes[0].set_xticks(counts, [str(n) for n in counts])
    axes[0].minorticks_off()
    soft = [rows[f"soft, gamma = {g:g}"] for g in RADII]
    points(axes[1], list(range(len(RADII) + 1)), [default, *soft])
    axes[1].set_xticks(range(len(RADII) + 1), ["hard", *(f"{g:g}" for g in RADII)])
    axes[1].set_xlabel("radius: gamma of r = gamma d / NFE²")
    switches = {
        "all": default,
        "times\n+ net": rows["times and network times"],
        "times\nonly": rows["times only"],
        "free\ncoef.": rows["coefficients without constraint"],
        "no\nprec.": rows["no preconditioner"],
        "L2": rows["L2 instead of perceptual"],
    }
    points(axes[2], list(range(len(switches))), list(switches.values()), line="none")
    axes[2].set_xticks(range(len(switches)), list(switches))
    axes[2].set_xlabel("dashed: best known grid")
    axes[0].set_ylim(0, 1.1 * known)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
