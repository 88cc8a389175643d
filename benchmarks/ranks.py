"""Throughput of two ranks over that of one, and what smaller parts of a batch cost one rank.

    python benchmarks/ranks.py [--rounds 8] [--parts]

Ranks are processes with one thread each, on `fashion`. One and two ranks take turns in one run, in
rounds of about a second; starting up is not counted. A time is the smallest of all rounds, as other
programs on the cores can only add to it. Two ratios are printed: by wall time, and by CPU time of
the slower rank, which is what the wall time would be if no other program used the cores. With
`--parts` one rank then learns with parts of 8, 4, 2 and 1 samples, in CPU time relative to parts
of 8.
"""

import argparse
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, islice

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

NFE, PAIRS, ITERATIONS = 5, 64, 8
Took = tuple[float, float]  # seconds by wall and by CPU
Work = Callable[[], Took]


def session(ranks: Ranks, steps: int) -> Session:
    return open_session(RunSpec(), Teacher(steps=steps), Cache(None, ranks=ranks))


def pairs(ranks: Ranks) -> Work:
    """Teacher pairs, 32 seeds in a chunk."""
    own, made = session(ranks, 10), count(step=PAIRS)

    def work() -> Took:
        first = next(made)  # pairs that were made before are kept
        with Watch() as watch:
            own.pairs(seeds_for("training", first + PAIRS)[first:], "pairs")
        return watch.took

    return work


def iterations(ranks: Ranks, part: int = 4) -> Work:
    """Iterations of the learner, a batch of 8 in parts."""
    own = session(ranks, 4)
    problem = Problem(
        own.model, make_solver("dpmpp"), NFE, own.distance, own.training(8 * ITERATIONS, 0),
        own.validation(8, 0), share=ranks.share,
    )  # fmt: skip
    recipe = change_recipe(make_preset("fast", NFE).recipe, {"part": part, "validate_every": 1000})

    def work() -> Took:
        steps = learning(problem, recipe, make_grid("vp-uniform", own.model.schedule, NFE))
        next(steps)
        with Watch() as watch:
            for _ in islice(steps, ITERATIONS - 1):
                pass
        return watch.took

    return work


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


WORK: dict[str, Callable[[Ranks], Work]] = {
    "teacher pairs": pairs,
    "learner, parts of 4": iterations,
    **{f"parts of {part}": partial(iterations, part=part) for part in (8, 4, 2, 1)},
}


class Group:
    """Ranks that are ready, and work once per message."""

    def __init__(self, world: int, name: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        fork = multiprocessing.get_context("fork")
        self._found: multiprocessing.Queue[Took] = fork.Queue()
        self._go: list[multiprocessing.Queue[bool]] = [fork.Queue() for _ in range(world)]
        self._ranks = [
            fork.Process(target=_rank, args=(r, world, port, name, go, self._found))
            for r, go in enumerate(self._go)
        ]
        for one in self._ranks:
            one.start()
        self.measure()  # the first time is slower

    def measure(self) -> Took:
        """The slowest rank's seconds."""
        for go in self._go:
            go.put(True)
        took = [self._found.get() for _ in self._ranks]
        return max(wall for wall, _ in took), max(cpu for _, cpu in took)

    def end(self) -> None:
        for go in self._go:
            go.put(False)
        for one in self._ranks:
            one.join()


def _rank(
    rank: int,
    world: int,
    port: int,
    name: str,
    go: "multiprocessing.Queue[bool]",
    found: "multiprocessing.Queue[Took]",
) -> None:
    os.environ |= {
        "RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{world}",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}",
    }  # fmt: skip
    torch.set_num_threads(1)
    with joined() as ranks:
        work = WORK[name](ranks)
        while go.get():
            found.put(work())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="of one and two ranks in turn")
    parser.add_argument("--parts", action="store_true", help="also what parts of a batch cost")
    args = parser.parse_args()
    torch.set_num_threads(1)
    zoo.load("fashion")
    for name in list(WORK)[:2]:
        one, two = rounds([Group(1, name), Group(2, name)], args.rounds)
        print(
            f"{name}: {one[0] / two[0]:.2f} by wall ({one[0]:.2f} and {two[0]:.2f} s), "
            f"{one[1] / two[1]:.2f} by CPU ({one[1]:.2f} and {two[1]:.2f} s), "
            f"{args.rounds} rounds, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    if args.parts:
        parts = list(WORK)[2:]
        times = rounds([Group(1, name) for name in parts], args.rounds)
        for name, (_, cpu) in zip(parts, times, strict=True):
            print(f"{name}, one rank: {cpu / times[0][1]:.2f} of the time", flush=True)


def rounds(groups: Sequence[Group], number: int) -> list[Took]:
    """The groups in turn, so often; the smallest times of each."""
    found = [[group.measure() for group in groups] for _ in range(number)]
    for group in groups:
        group.end()
    return [smallest(times) for times in zip(*found, strict=True)]


def smallest(times: Sequence[Took]) -> Took:
    """Of wall and of CPU, each by itself."""
    return min(wall for wall, _ in times), min(cpu for _, cpu in times)


if __name__ == "__main__":
    main()
