"""Throughput of two ranks over that of one, and what smaller parts of a batch cost one rank.

    python benchmarks/ranks.py [--rounds 3]

Ranks are processes with one thread each, on `fashion`. One and two ranks take turns in one run. Two
ratios are printed: by wall time, and by CPU time of the slower rank, which is what the wall time
would be if no other program used the cores. Starting up is not counted. Then one rank learns with
parts of 8, 4, 2 and 1 samples, in CPU time relative to parts of 8.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from functools import partial
from itertools import islice

import torch

from ld3 import zoo
from ld3.known_grids import make_grid
from ld3.learner.learn import learning
from ld3.learner.presets import make_preset
from ld3.learner.recipes import change_recipe
from ld3.problem import Problem
from ld3.runs.cache import Cache
from ld3.runs.ranks import Ranks, joined
from ld3.runs.session import Session, open_session
from ld3.runs.spec import RunSpec
from ld3.seeds import seeds_for
from ld3.solvers import make_solver
from ld3.teacher import Teacher

NFE, PAIRS, ITERATIONS = 5, 128, 8
Took = tuple[float, float]  # seconds by wall and by CPU


def session(ranks: Ranks, steps: int) -> Session:
    return open_session(RunSpec(), Teacher(steps=steps), Cache(None, ranks=ranks))


def pairs(ranks: Ranks) -> Took:
    """Teacher pairs, 32 seeds in a chunk."""
    own = session(ranks, 10)
    with Watch() as watch:
        own.pairs(seeds_for("training", PAIRS), "pairs")
    return watch.took


def iterations(ranks: Ranks, part: int = 4) -> Took:
    """Iterations of the learner, a batch of 8 in parts."""
    own = session(ranks, 4)
    problem = Problem(
        own.model, make_solver("dpmpp"), NFE, own.distance, own.training(8 * ITERATIONS, 0),
        own.validation(8, 0), share=ranks.share,
    )  # fmt: skip
    recipe = change_recipe(make_preset("fast", NFE).recipe, {"part": part, "validate_every": 1000})
    steps = learning(problem, recipe, make_grid("vp-uniform", own.model.schedule, NFE))
    next(steps)
    with Watch() as watch:
        for _ in islice(steps, ITERATIONS - 1):
            pass
    return watch.took


class Watch:
    """Wall and CPU seconds of a block."""

    def __enter__(self) -> "Watch":
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.took: Took = (
            time.perf_counter() - self._began[0],
            time.process_time() - self._began[1],
        )


WORK = {
    "teacher pairs": pairs,
    "learner, parts of 4": iterations,
    **{f"parts of {part}": partial(iterations, part=part) for part in (8, 4, 2, 1)},
}


def _rank(
    rank: int, world: int, port: int, name: str, found: "multiprocessing.Queue[Took]"
) -> None:
    os.environ |= {
        "RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{world}",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}",
    }  # fmt: skip
    torch.set_num_threads(1)
    with joined() as ranks:
        found.put(WORK[name](ranks))


def measure(world: int, name: str) -> Took:
    """The slowest rank's seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    found: multiprocessing.Queue[Took] = fork.Queue()
    ranks = [fork.Process(target=_rank, args=(r, world, port, name, found)) for r in range(world)]
    for one in ranks:
        one.start()
    took = [found.get() for _ in ranks]
    for one in ranks:
        one.join()
    return max(wall for wall, _ in took), max(cpu for _, cpu in took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of one and two ranks in turn")
    args = parser.parse_args()
    torch.set_num_threads(1)
    zoo.load("fashion")
    for name in list(WORK)[:2]:
        ratios = []
        for _ in range(args.rounds):
            one, two = measure(1, name), measure(2, name)
            ratios.append((one[0] / two[0], one[1] / two[1]))
        wall, cpu = (statistics.median(ratio) for ratio in zip(*ratios, strict=True))
        load = os.getloadavg()[0]
        print(f"{name}: {wall:.2f} by wall, {cpu:.2f} by CPU (load {load:.1f})", flush=True)
    alone = {name: [measure(1, name)[1] for _ in range(args.rounds)] for name in list(WORK)[2:]}
    whole = statistics.median(alone["parts of 8"])
    for name, times in alone.items():
        print(f"{name}, one rank: {statistics.median(times) / whole:.2f} of the time", flush=True)


if __name__ == "__main__":
    main()
