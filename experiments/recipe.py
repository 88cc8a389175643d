"""Which recipe should be the default? The same problems, one word of the recipe changed at a time.

    python experiments/recipe.py

writes docs/results/recipe.md: held-out distances on all models inside the package, over seeds.
The changes cost about the same; where one costs more, the table says so.
"""

import statistics
from typing import Any

from cells import Cell, arguments, run_all, spread, write

SEEDS = (0, 1)
PROBLEMS: dict[str, dict[str, Any]] = {
    "`fashion`, DPM++3M, 5": {"model": "fashion", "solver": "dpmpp", "nfe": (5,)},
    "`fashion-flow`, Euler, 4": {"model": "fashion-flow", "solver": "euler", "nfe": (4,)},
    "`fashion-latent`, DPM++3M, 5": {"model": "fashion-latent", "solver": "dpmpp", "nfe": (5,)},
}
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "coefficients without constraint": {"recipe": {"exact": False}},
    "no preconditioner: Adam, a rate a group": {"recipe": {"precondition": 0}},
    "batches of 16, half the iterations": {"recipe": {"batch": 16}},
    "no average": {"recipe": {"average": 0.0}},
    "plain means of distances": {"recipe": {"power": 1.0}},
    "means of their roots": {"recipe": {"power": 0.5}},
    "96 iterations": {"recipe": {"epochs": 6}},
    "soft forcing": {"recipe": {"gamma": 0.001, "rate_noise": 2.4}},
    "64 pairs, twice the epochs": {"pairs": 64, "recipe": {"epochs": 10}},
}


def main() -> None:
    args = arguments(__doc__ or "")
    asked = [
        {**problem, **change, "seed": seed, "judged": 0}
        for change in CHANGES.values()
        for seed in SEEDS
        for problem in PROBLEMS.values()
    ]
    done = iter(run_all(asked, args.out, args.jobs))
    cells: dict[tuple[str, str], list[Cell]] = {}
    for change in CHANGES:
        for _ in SEEDS:
            for problem in PROBLEMS:
                cells.setdefault((change, problem), []).append(next(done))

    def held(change: str, problem: str) -> list[float]:
        return [cell.scores["learned"]["distance"] or 0.0 for cell in cells[change, problem]]

    lines = [
        "| what is changed | " + " | ".join(PROBLEMS) + " | geometric mean of ratios | cost |",
        "|---" * (len(PROBLEMS) + 3) + "|",
    ]
    first = next(iter(CHANGES))
    for change in CHANGES:
        ratios = [
            statistics.fmean(held(change, problem)) / statistics.fmean(held(first, problem))
            for problem in PROBLEMS
        ]
        cost = statistics.fmean(
            cell.evaluations / base.evaluations
            for problem in PROBLEMS
            for cell, base in zip(cells[change, problem], cells[first, problem], strict=True)
        )
        lines.append(
            f"| {change} | "
            + " | ".join(spread(held(change, problem), 5) for problem in PROBLEMS)
            + f" | {statistics.geometric_mean(ratios):.2f} | {cost:.2f} |"
        )
    note = (
        "Made by `python experiments/recipe.py`: preset `standard` with one thing changed, seeds "
        f"{', '.join(map(str, SEEDS))} (mean ± standard deviation), distance on 64 held-out "
        "noises. The last columns are relative to the first row; cost is in evaluations of the "
        "network, a backward pass counted as two, without the teacher's.\n\n"
    )
    write("recipe.md", note + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
