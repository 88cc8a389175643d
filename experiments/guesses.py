"""Numbers of evaluations that were not learned: what `Plan.guess` makes of a plan for them.

    python experiments/guesses.py

writes docs/results/guesses.md: plans of the preset `fast` for 4, 6 and 10 evaluations (times and
network times), used with others, beside their log-linear interpolation and the best known grid.
"""

from pathlib import Path

from cells import arguments, run_all, write
from ranges import log_linear
from tables import TITLES

from ld3.grids import TimeGrid, knots
from ld3.learner.starts import GRIDS
from ld3.plan import Plan
from ld3.runs import HELD
from ld3.scores import score
from ld3.searches import make_grid
from ld3.solvers import make_solver
from ld3.table import compile_table
from ld3.teacher import teach
from ld3.zoo.loading import load_model, make_distance

CASES = (("fashion", "unipc"), ("fashion-latent", "dpmpp"), ("fashion-flow", "euler"))
COUNTS = (4, 6, 8, 10)
LEARNED = (4, 6, 10)
HELD_OUT = 64


def rows(model: str, solver: str, plans: dict[int, Plan], out: Path) -> list[str]:
    """Of one model."""
    loaded = load_model(model)
    own, method, schedule = loaded.model, make_solver(solver), loaded.model.schedule
    fine, noise = make_grid("logsnr", schedule, 40), range(HELD, HELD + HELD_OUT)
    held = teach(own, loaded.digest, make_solver("unipc"), fine, noise, folder=out / "pairs")
    distance = make_distance("auto", loaded)

    def judged(grid: TimeGrid) -> float:
        table = compile_table(method, knots(schedule, grid), own.prediction)
        return score(own, table, distance, held, held.target, 1.0).distance

    known = {n: min(judged(make_grid(name, schedule, n)) for name in GRIDS) for n in COUNTS}
    lines = []
    for learned, plan in plans.items():
        found = [
            [f"`{model}`, {TITLES[solver]}", str(learned), what] for what in ("guess", "log-linear")
        ]
        for n in COUNTS:
            if n == learned:
                cells = [f"({judged(plan.grid):.5f})", ""]
            else:
                cells = [
                    f"{judged(grid):.5f}" for grid in (plan.guess(n).grid, log_linear(plan, n))
                ]
            for row, cell in zip(found, cells, strict=True):
                row.append(cell)
        lines += ["| " + " | ".join(row) + " |" for row in found]
    best = [f"{known[n]:.5f}" for n in COUNTS]
    return [
        *lines,
        "| " + " | ".join([f"`{model}`, {TITLES[solver]}", "", "best known grid", *best]) + " |",
    ]


def main() -> None:
    args = arguments(__doc__ or "")
    asked = [
        {
            "model": model, "solver": solver, "nfe": (n,), "preset": "fast", "learn": "times+net",
            "held_out": 8, "judged": 0,
        }
        for model, solver in CASES
        for n in LEARNED
    ]  # fmt: skip
    cells = iter(run_all(asked, args.out, args.jobs))
    lines = [
        f"Made by `python experiments/guesses.py`: preset `fast`, times and network times, seed 0; "
        f"perceptual distance to a teacher of 40 evaluations on {HELD_OUT} held-out noises. In "
        "brackets: the plan used as it was learned.\n",
        "| | learned for | | " + " | ".join(f"used with {n}" for n in COUNTS) + " |",
        "|---" * (len(COUNTS) + 3) + "|",
    ]
    for model, solver in CASES:
        plans = {n: Plan.load(next(cells).plan) for n in LEARNED}
        lines += rows(model, solver, plans, args.out)
    write("guesses.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
