"""What each group of numbers gives: times, network times, coefficients; and whether they over-fit.

    python experiments/parts.py

writes docs/results/parts.md. The model from elsewhere (examples/spectra.py) is ten times as dear,
so there the preset is `fast`, and it is left out where its package is not installed.
"""

import importlib.util
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from cells import Cell, arguments, run_all, spread, write
from tables import SEEDS, TITLES, best, value, words

from ld3.discretizers import HANDMADE, make_grid
from ld3.loading import load_model, make_distance
from ld3.plan import Plan
from ld3.scores import score
from ld3.solvers import make_solver
from ld3.teacher import Pairs, teach

LEARN = ("times", "times+net", "times+net+coefficients")
MODELS = {
    "fashion": (("unipc", "ipndm", "dpmpp", "euler"), (4, 6, 10)),
    "fashion-flow": (("euler",), (4, 6, 10)),
    "fashion-latent": (("dpmpp", "euler"), (4, 6, 10)),
}
SPECTRA = "examples.spectra:model"
PAIRS = (16, 64, 256)
FITTED = (4, 6)
OUTSIDE = {"preset": "fast", "distance": "l1", "held_out": 32, "judged": 0}


def changed(learn: str) -> dict[str, object]:
    """Everything is what the default learns."""
    return {} if learn == LEARN[-1] else {"learn": learn}


def cells() -> list[dict[str, object]]:
    """The words of all runs."""
    if importlib.util.find_spec("psdenoiser") is not None:
        MODELS[SPECTRA] = (("dpmpp",), (4, 6, 10))
    return [
        words(model, solver, nfe, seed) | changed(learn) | (OUTSIDE if model == SPECTRA else {})
        for model, (solvers, counts) in MODELS.items()
        for seed in SEEDS
        for nfe in counts
        for solver in solvers
        for learn in LEARN
    ]


def lines(model: str, groups: dict[tuple[str, int, str], list[Cell]]) -> Iterator[str]:
    """The table of one model."""
    yield f"### `{model}`\n"
    yield "| solver | NFE | learned | distance | ratio | RMS to accurate | Fréchet | cost |"
    yield "|---" * 8 + "|"
    solvers, counts = MODELS[model]
    for solver in solvers:
        for nfe in counts:
            runs = groups[solver, nfe, LEARN[0]]
            hand = best(runs[0].scores, HANDMADE)
            own = runs[0].scores[hand]
            yield (
                f"| {TITLES[solver]} | {nfe} | nothing: `{hand}` | {own['distance']:.5f} | "
                f"| {own['to_accurate']:.4f} | {_frechet(own['frechet_accurate'])} | |"
            )
            before = own["distance"] or 1.0
            for learn in LEARN:
                runs = groups[solver, nfe, learn]
                shown = {
                    kind: [value(run, "learned", kind) for run in runs]
                    for kind in ("distance", "to_accurate", "frechet_accurate")
                }
                judged = spread(shown["frechet_accurate"], 3) if model != SPECTRA else ""
                mean = statistics.fmean(shown["distance"])
                cost = statistics.fmean(run.evaluations for run in runs)
                yield (
                    f"| | | {learn} | {spread(shown['distance'], 5)} | {mean / before:.2f} "
                    f"| {spread(shown['to_accurate'], 4)} | {judged} "
                    f"| {cost:.0f} |"
                )
                before = mean
    yield ""


def _frechet(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


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


def on_learning_pairs(run: Cell, pairs: int, out: Path) -> float:
    """The distance of a plan on what it was learned from."""
    plan = Plan.load(run.plan)
    loaded = load_model("fashion")
    model, seed = loaded.model, run.words["seed"]
    fine = make_grid("logsnr", model.schedule, 20)
    seeds = range(10_000 * seed, 10_000 * seed + pairs)
    solver = make_solver("unipc")
    own: Pairs = teach(model, loaded.digest, solver, fine, seeds, folder=out / "pairs")
    distance = make_distance("auto", loaded)
    return score(model, plan.table(), distance, own, own.target, 1.0).distance


def main() -> None:
    args = arguments(__doc__ or "")
    done = run_all(cells(), args.out, args.jobs)
    groups: dict[str, dict[tuple[str, int, str], list[Cell]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for cell in done:
        w = cell.words
        key = w["solver"], w["nfe"][0], w.get("learn", LEARN[-1])
        groups[w["model"]][key].append(cell)
    note = (
        "Made by `python experiments/parts.py`: preset `standard`, for the model from elsewhere "
        "`fast`, L1 and 32 held-out noises, seeds "
        f"{', '.join(map(str, SEEDS))} (mean ± standard deviation), distances and RMS on held-out "
        "noise, Fréchet distance to an accurate run. Ratio: to the row above. Cost: evaluations of "
        "the network on one sample while learning, a backward pass counted as two, the search for "
        "a start included, the teacher not.\n\n"
    )
    text = [line for model in MODELS for line in lines(model, groups[model])]
    text += fits(args.out, args.jobs)
    write("parts.md", note + "\n".join(text))


if __name__ == "__main__":
    main()
