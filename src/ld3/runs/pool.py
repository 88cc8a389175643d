"""Several processes that fill the cache ahead of the one that reads it.

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
from typing import TypeVar

import torch

from ld3.errors import Ld3Error
from ld3.runs.progress import Report

Item = TypeVar("Item")


def work_ahead(
    jobs: int,
    work: Callable[[Item], None],
    items: Sequence[Item],
    name: Callable[[Item], str],
    report: Report,
) -> None:
    """Call `work` on each item in `jobs` processes of this machine; errors are left to the process
    that reads the cache.

    `work` and the items are sent to other processes: a function of a module, and plain data.
    """
    others = set(multiprocessing.active_children())  # not ours to end
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
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
            while worker.is_alive():  # also while a thread of the pool is at its end
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
    with suppress(Ld3Error):  # the reader runs it again and raises the error
        work(item)
