"""Several processes that fill the cells ahead of the one that reads them.

Each takes the next cell that nobody took. They share nothing but the folder of cells, where every
file is written whole or not at all; so one that dies loses its own cell only, and whatever is
missing afterwards is run by the reader.
"""

import multiprocessing
import signal
from contextlib import suppress
from multiprocessing.queues import Queue
from queue import Empty
from typing import Any

import torch

from ld3.compare.cells import Ground, cells_of, found_of, held_of
from ld3.compare.spec import CompareSpec
from ld3.errors import Ld3Error
from ld3.scores import Tell

News = tuple[int, str]  # cells finished by it, what is done now


def work_ahead(spec: CompareSpec, fresh: bool, tell: Tell) -> None:
    """Run all cells in `spec.jobs` processes."""
    context = multiprocessing.get_context("spawn")
    turn, news = context.Value("i", 0), context.Queue()
    threads = max(1, torch.get_num_threads() // spec.jobs)
    workers = [
        context.Process(target=_work, args=(spec, fresh, threads, turn, news), daemon=True)
        for _ in range(spec.jobs)
    ]
    total, done = len(cells_of(spec)), 0
    try:
        for worker in workers:
            worker.start()
        while done < total and any(worker.is_alive() for worker in workers):
            with suppress(Empty):
                more, what = news.get(timeout=0.5)
                done += more
                tell(f"cells: {what}", done, total)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(spec: CompareSpec, fresh: bool, threads: int, turn: Any, news: "Queue[News]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the reader ends us
    torch.set_num_threads(threads)
    ground, cells = Ground.of(spec), cells_of(spec)
    bench = None
    if spec.full:
        from ld3.compare.full import Bench, full_of

        bench = Bench.of(ground)
    while True:
        with turn.get_lock():
            number = turn.value
            turn.value += 1
        if number >= len(cells):
            break
        cell = cells[number]
        news.put((0, cell.name))

        def inside(done: int, of: int, name: str = cell.name) -> None:
            news.put((0, f"{name}, {100 * done // max(of, 1)} %"))

        with suppress(Ld3Error):  # the reader will meet and tell it
            found = found_of(ground, cell, inside, fresh)
            if found.tuned is not None and held_of(ground, cell, found.tuned, fresh) and bench:
                full_of(bench, cell, found.tuned, fresh)
        news.put((1, cell.name))
    news.close()
    news.join_thread()
