"""One plan for many numbers of evaluations, and for many guidance scales.

    python experiments/ranges.py

writes docs/results/ranges.md and docs/images/ranges.png: the family of one run against a run for
each number of evaluations and against one plan interpolated to the others, and how a plan ages when
the guidance scale is not the one it was learned for.
"""

import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch
from cells import IMAGES, arguments, run_all, spread, write
from parts import LEARN, changed
from tables import HELD_OUT, SEEDS, words

from ld3.families import run_family
from ld3.grids import TimeGrid, knots
from ld3.learner.starts import GRIDS
from ld3.plan import Plan
from ld3.runs import HELD
from ld3.scores import score
from ld3.searches import METHODS, make_grid
from ld3.solvers import make_solver
from ld3.spec import RunSpec
from ld3.table import Table, compile_table
from ld3.teacher import Pairs, teach
from ld3.zoo.loading import load_model, make_distance

LOW, HIGH = 4, 10
SCALES = (1.0, 1.5, 2.0, 3.0, 4.0)


class Judge:
    """The perceptual distance of tables to a 40-step teacher on held-out noise."""

    def __init__(self, out: Path) -> None:
        self.loaded = load_model("fashion")
        self.model = self.loaded.model
        self.distance = make_distance("auto", self.loaded)
        self.solver = make_solver("dpmpp")
        self.out = out
        self._held: dict[float, Pairs] = {}

    def __call__(self, table: Table, guidance: float = 1.0) -> float:
        if guidance not in self._held:
            self._held[guidance] = teach(
                self.model,
                self.loaded.digest,
                make_solver("unipc"),
                make_grid("logsnr", self.model.schedule, 40),
                range(HELD, HELD + HELD_OUT),
                guidance=guidance,
                folder=self.out / "pairs",
            )
        held = self._held[guidance]
        return score(self.model, table, self.distance, held, held.target, guidance).distance

    def grid(self, grid: TimeGrid, guidance: float = 1.0) -> float:
        k = knots(self.model.schedule, grid)
        return self(compile_table(self.solver, k, self.model.prediction), guidance)

    def best_known(self, nfe: int, guidance: float = 1.0) -> float:
        return min(self.grid(METHODS[name](self.model.schedule, nfe), guidance) for name in GRIDS)


def base(nfe: int, seed: int) -> dict[str, Any]:
    """The words of a run: those of the table, which then need not be run again."""
    return words("fashion", "dpmpp", nfe, seed)


def evaluations(out: Path, jobs: int, judge: Judge) -> list[str]:
    """The table over numbers of evaluations; draws it, too."""
    counts = range(LOW, HIGH + 1)
    runs = [
        run_family(
            RunSpec.read(base(LOW, seed) | {"nfe": f"{LOW}-{HIGH}", "judged": 0, "out": out})
        )
        for seed in SEEDS
    ]
    families = [run.plan for run in runs]
    alone = {}
    for learn in LEARN[1:]:
        asked = [base(n, seed) | changed(learn) for n in counts for seed in SEEDS]
        cells = iter(run_all(asked, out, jobs))
        alone[learn] = {n: [Plan.load(next(cells).plan) for _ in SEEDS] for n in counts}
    net, full = alone["times+net"], alone["times+net+coefficients"]
    middle = 6
    rows: dict[str, list[list[float]]] = {
        "best known grid": [[judge.best_known(n)] for n in counts],
        "the plan for 6, interpolated": [
            [judge.grid(log_linear(plan, n)) for plan in net[middle]] for n in counts
        ],
        "family, one run": [[judge(plan.at(n).table()) for plan in families] for n in counts],
        "a run each: times+net": [[judge(plan.table()) for plan in net[n]] for n in counts],
        "a run each: everything": [[judge(plan.table()) for plan in full[n]] for n in counts],
    }  # fmt: skip
    costs = {
        "family, one run": statistics.fmean(p.learned["evaluations"] for p in families),
        "a run each: times+net": _cost(net),
        "a run each: everything": _cost(full),
    }
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name, values in rows.items():
        axis.plot(counts, [statistics.fmean(v) for v in values], "o-", ms=3, label=name)
    axis.set(yscale="log", xlabel="evaluations", ylabel="held-out perceptual distance")
    axis.legend(fontsize=8)
    figure.savefig(IMAGES / "ranges.png", dpi=130)
    lines = [
        "### Evaluations: `fashion`, DPM++3M\n",
        "| | " + " | ".join(map(str, counts)) + " | cost |",
        "|---" * (len(counts) + 2) + "|",
    ]
    for name, values in rows.items():
        cost = f"{costs[name]:.0f}" if name in costs else ""
        lines.append(f"| {name} | " + " | ".join(spread(v, 5) for v in values) + f" | {cost} |")
    return [*lines, ""]


def log_linear(plan: Plan, steps: int) -> TimeGrid:
    """lam, and the shift of lam that the network is told, linear in i/N; `Plan.guess` does not."""
    schedule, own = plan.noise_schedule, plan.grid
    lam, told = schedule.lam(own.times), schedule.lam(own.net_times)
    at = torch.linspace(0, own.steps, steps + 1, dtype=torch.float64)
    left = at.long().clamp(max=own.steps - 1)
    lam, shift = (torch.lerp(v[left], v[left + 1], at - left) for v in (lam, told - lam))
    times, net_times = (
        schedule.time_at(x).clamp(schedule.t_min, schedule.t_max) for x in (lam, lam + shift)
    )
    times[0], times[-1] = own.times[0], own.times[-1]
    return TimeGrid.of(times, net_times)


def _cost(plans: dict[int, list[Plan]]) -> float:
    return sum(
        statistics.fmean(p.learned["evaluations"] for p in group) for group in plans.values()
    )


def guidance(out: Path, jobs: int, judge: Judge) -> list[str]:
    """How plans age with the scale."""
    learned: dict[str, dict[str, object]] = {
        "1": {},
        "3": {"guidance": 3.0, "judged": 0},
        "1-4": {"guidance": "1-4", "judged": 0},
    }
    asked = [base(6, seed) | change for change in learned.values() for seed in SEEDS]
    cells = iter(run_all(asked, out, jobs))
    lines = [
        "### Guidance: `fashion`, DPM++3M, 6 evaluations; rows: learned for, columns: used with\n",
        "| | " + " | ".join(f"{scale:g}" for scale in SCALES) + " |",
        "|---" * (len(SCALES) + 1) + "|",
    ]
    for name in learned:
        plans = [Plan.load(next(cells).plan) for _ in SEEDS]
        found = [[judge(plan.table(), scale) for plan in plans] for scale in SCALES]
        lines.append(f"| {name} | " + " | ".join(spread(values, 5) for values in found) + " |")
    known = [f"{judge.best_known(6, scale):.5f}" for scale in SCALES]
    return [*lines, "| best known grid | " + " | ".join(known) + " |", ""]


def main() -> None:
    args = arguments(__doc__ or "")
    judge = Judge(args.out)
    note = (
        f"Made by `python experiments/ranges.py`: preset `standard`, seeds "
        f"{', '.join(map(str, SEEDS))} (mean ± standard deviation), perceptual distance to a "
        f"teacher of 40 evaluations on {HELD_OUT} held-out noises. Cost: evaluations of the "
        "network while learning, for the whole row.\n\n"
    )
    text = evaluations(args.out, args.jobs, judge) + guidance(args.out, args.jobs, judge)
    write("ranges.md", note + "\n".join(text))


if __name__ == "__main__":
    main()
