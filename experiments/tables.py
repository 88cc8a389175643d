"""Learned plans against the best known grid, on held-out noise, three seeds each.

    python experiments/tables.py

writes docs/results/tables.md. The best known grid of a cell is the one with the lowest held-out
distance: it is picked on the very noise it is compared on, in its favour.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator

from cells import Cell, arguments, run_all, spread, write

from ld3.discretizers import METHODS

SEEDS = (0, 1, 2)
HELD_OUT, JUDGED = 64, 500
MODELS = {
    "fashion": (("unipc", "ipndm", "dpmpp", "euler"), (4, 5, 6, 8, 10)),
    "fashion-flow": (("euler",), (2, 4, 6)),
    "fashion-latent": (("dpmpp", "euler"), (4, 6)),
}
TITLES = {"unipc": "UniPC-3", "ipndm": "iPNDM-3", "dpmpp": "DPM++3M", "euler": "Euler"}


def cells() -> list[dict[str, object]]:
    """The words of all runs."""
    order = {"ipndm": {"order": 3}}
    return [
        {
            "model": model, "solver": solver, **order.get(solver, {}), "nfe": (nfe,), "seed": seed,
            "held_out": HELD_OUT, "judged": JUDGED,
        }
        for model, (solvers, counts) in MODELS.items()
        for nfe in counts
        for solver in solvers
        for seed in SEEDS
    ]  # fmt: skip


def lines(model: str, groups: dict[tuple[str, int], list[Cell]]) -> Iterator[str]:
    """The table of one model."""
    yield f"### `{model}`\n"
    yield (
        "| solver | NFE | best known grid | its distance | learned | ratio | its Fréchet "
        "| learned | evaluations |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    wins = fairer = 0
    for (solver, nfe), runs in groups.items():
        known = {name: s for name, s in runs[0].scores.items() if name in METHODS}
        best = min(known, key=lambda name: known[name]["distance"] or 0.0)
        own = [run.scores["learned"]["distance"] or 0.0 for run in runs]
        judged = [run.scores["learned"]["frechet"] or 0.0 for run in runs]
        distance, frechet = known[best]["distance"] or 0.0, known[best]["frechet"] or 0.0
        wins += max(own) < distance
        fairer += statistics.fmean(judged) < frechet
        cost = statistics.fmean(run.evaluations for run in runs)
        yield (
            f"| {TITLES[solver]} | {nfe} | `{best}` | {distance:.5f} | {spread(own, 5)} "
            f"| {statistics.fmean(own) / distance:.2f} | {frechet:.3f} | {spread(judged, 3)} "
            f"| {cost:.0f} |"
        )
    accurate = next(iter(groups.values()))[0].scores["accurate"]["frechet"]
    yield (
        f"\nEvery seed beats the best known grid on distance in {wins} of {len(groups)} cells, the "
        f"mean over seeds beats it on Fréchet distance in {fairer}. Fréchet distance of an "
        f"accurate run (UniPC-3, 20 evaluations): {accurate:.3f}.\n"
    )


def main() -> None:
    args = arguments(__doc__ or "")
    done = run_all(cells(), args.out, args.jobs)
    groups: dict[str, dict[tuple[str, int], list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in done:
        groups[cell.words["model"]][cell.words["solver"], cell.words["nfe"][0]].append(cell)
    note = (
        f"Made by `python experiments/tables.py`: preset `fast`, seeds "
        f"{', '.join(map(str, SEEDS))} "
        f"(mean ± standard deviation), {HELD_OUT} held-out noises, {JUDGED} samples for the "
        "Fréchet distance. Evaluations: of the network on one sample while learning, a backward "
        "pass counted as two, teacher not included.\n\n"
    )
    text = "\n".join(line for model in MODELS for line in lines(model, groups[model]))
    write("tables.md", note + text)


if __name__ == "__main__":
    main()
