"""Learned plans against the best known grid, on held-out noise, three seeds each.

    python experiments/tables.py

writes docs/results/tables.md. The best known grid of a cell is the one with the lowest held-out
distance: it is picked on the very noise it is compared on, in its favour.
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator

from cells import Cell, arguments, run_all, spread, write

from ld3.searches import HANDMADE, METHODS

SEEDS = (0, 1, 2)
HELD_OUT, JUDGED = 64, 300
MODELS = {
    "fashion": (("unipc", "ipndm", "dpmpp", "euler"), (4, 10, 6, 5, 8)),
    "fashion-flow": (("euler",), (2, 4, 6)),
    "fashion-latent": (("dpmpp", "euler"), (4, 6)),
}
TITLES = {"unipc": "UniPC-3", "ipndm": "iPNDM-3", "dpmpp": "DPM++3M", "euler": "Euler"}


def words(model: str, solver: str, nfe: int, seed: int) -> dict[str, object]:
    """Those of one run."""
    order = {"order": 3} if solver == "ipndm" else {}
    fixed = {"held_out": HELD_OUT, "judged": JUDGED}
    return {"model": model, "solver": solver, **order, "nfe": (nfe,), "seed": seed, **fixed}


def cells() -> list[dict[str, object]]:
    """The words of all runs."""
    return [
        words(model, solver, nfe, seed)
        for model, (solvers, counts) in MODELS.items()
        for seed in SEEDS
        for nfe in counts
        for solver in solvers
    ]


def lines(model: str, groups: dict[tuple[str, int], list[Cell]]) -> Iterator[str]:
    """The table of one model."""
    yield f"### `{model}`\n"
    yield (
        "| solver | NFE | best hand-made | best known | learned | ratio to known | Fréchet to "
        "accurate: hand-made | known | learned | Fréchet to real: hand-made | known | learned |"
    )
    yield "|---" * 12 + "|"
    wins = closer = nearer = 0
    for solver, nfe in sorted(groups, key=lambda key: (list(TITLES).index(key[0]), key[1])):
        runs = groups[solver, nfe]
        scores = runs[0].scores
        hand, known = (best(scores, among) for among in (HANDMADE, METHODS))
        own = [value(run, "learned", "distance") for run in runs]
        wins += max(own) < value(runs[0], known, "distance")
        shown = []
        for kind in ("frechet_accurate", "frechet"):
            learned = [value(run, "learned", kind) for run in runs]
            theirs = [value(runs[0], name, kind) for name in (hand, known)]
            shown += [f"{theirs[0]:.3f}", f"{theirs[1]:.3f}", spread(learned, 3)]
            if kind == "frechet_accurate":
                closer += statistics.fmean(learned) < min(theirs)
            else:
                nearer += statistics.fmean(learned) < theirs[0]
        grids = [f"{value(runs[0], name, 'distance'):.5f} `{name}`" for name in (hand, known)]
        ratio = statistics.fmean(own) / value(runs[0], known, "distance")
        row = [TITLES[solver], str(nfe), *grids, spread(own, 5), f"{ratio:.2f}", *shown]
        yield "| " + " | ".join(row) + " |"
    accurate = next(iter(groups.values()))[0].scores["accurate"]["frechet"]
    yield (
        f"\nOf {len(groups)} cells: in {wins} every seed has a smaller distance than the best "
        f"known grid; in {closer} the mean over seeds is nearer to the accurate run by Fréchet "
        f"distance than both grids; in {nearer} it is nearer to real pictures than the best "
        f"hand-made grid. An accurate run (UniPC-3, 20 evaluations) itself is at {accurate:.3f} "
        "from real pictures.\n"
    )


def best(scores: dict[str, dict[str, float | None]], among: Collection[str]) -> str:
    """The grid with the smallest held-out distance."""
    return min((n for n in scores if n in among), key=lambda name: scores[name]["distance"] or 0.0)


def value(run: Cell, name: str, kind: str) -> float:
    return run.scores[name][kind] or 0.0


def main() -> None:
    args = arguments(__doc__ or "")
    done = run_all(cells(), args.out, args.jobs)
    groups: dict[str, dict[tuple[str, int], list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in done:
        groups[cell.words["model"]][cell.words["solver"], cell.words["nfe"][0]].append(cell)
    note = (
        "Made by `python experiments/tables.py`: the preset `standard` (times, network times and "
        f"coefficients), seeds {', '.join(map(str, SEEDS))} (mean ± standard deviation), "
        f"perceptual distance on {HELD_OUT} held-out noises, Fréchet distances from {JUDGED} "
        "samples. Known grids are the hand-made and the published ones; the best of each kind is "
        "picked on the held-out noise, in its favour.\n\n"
    )
    text = "\n".join(line for model in MODELS for line in lines(model, groups[model]))
    write("tables.md", note + text)


if __name__ == "__main__":
    main()
