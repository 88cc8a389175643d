"""Several processes that fill the cache ahead of the one that reads it: two engines, one interface.

`local` is a pool of processes on this machine, `ray` a cluster (:mod:`ld3.runs.ray_cluster`).

They share nothing but the cache, whose files are written whole or not at all. A process that dies
loses its own piece of work; the reader runs whatever is missing afterwards. Workers end with their
parent, however it ends.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from typing import Literal, Protocol, TypeVar

import torch

from ld3.errors import Ld3Error, SpecError
from ld3.runs.progress import Report
from ld3.runs.ranks import Ranks

Item = TypeVar("Item")
EngineName = Literal["local", "ray"]


class Engine(Protocol):
    """Calls `work` on each item somewhere else; errors are left for the reader to meet.

    `work` and the items are sent to other processes: a function of a module, and plain data.
    """

    def __call__(
        self,
        work: Callable[[Item], None],
        items: Sequence[Item],
        name: Callable[[Item], str],
        report: Report,
    ) -> None: ...


def make_engine(name: EngineName, jobs: int = 1, gpus: float = 0.0) -> Engine | None:
    """By name; None if nothing is to be made ahead."""
    if name == "ray":
        from ld3.runs.ray_cluster import RayCluster

        return RayCluster(gpus)
    if gpus:
        raise SpecError(
            "gpus-per-cell: got it without --engine ray; local processes share --device"
        )
    return None if jobs == 1 else partial(work_ahead, jobs)


def check_alone(engine: Engine | None, ranks: Ranks) -> None:
    """Cells run side by side in processes, or one by one in ranks."""
    if engine is not None and ranks.world > 1:
        raise SpecError(
            f"ranks: got {ranks.world} with --jobs or --engine ray; give one of them: ranks share "
            "the work inside of a cell, the others run several cells"
        )


def work_ahead(
    jobs: int,
    work: Callable[[Item], None],
    items: Sequence[Item],
    name: Callable[[Item], str],
    report: Report,
) -> None:
    """In so many processes of this machine."""
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // jobs)
    pool = ProcessPoolExecutor(
        min(jobs, len(items)), mp_context=context, initializer=_begin, initargs=(threads,)
    )
    try:
        futures = {pool.submit(quietly, work, item): item for item in items}
        for done, future in enumerate(as_completed(futures)):
            if isinstance(future.exception(), BrokenProcessPool):
                break
            report(name(futures[future]), done + 1, len(items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in multiprocessing.active_children():
            worker.terminate()
            worker.join()


def _begin(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def quietly(work: Callable[[Item], None], item: Item) -> None:
    """Without errors that a user can fix."""
    with suppress(Ld3Error):  # the reader meets it again, and says it
        work(item)
