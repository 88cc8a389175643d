"""Items of work as Ray tasks, on all machines of a cluster that `ray start` made.

Tasks share nothing but the cache, which must be a folder that all machines see. A task whose
machine dies is run again on another one; what it had stored is read, not made again.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from ld3.errors import SpecError
from ld3.runs.pool import quietly
from ld3.runs.progress import Report

Item = TypeVar("Item")
RETRIES = 10  # of a task whose machine or process died


@dataclass(frozen=True)
class RayCluster:
    """The cluster that is running; each item of work gets one CPU and so many GPUs."""

    gpus: float = 0.0

    def __call__(
        self,
        work: Callable[[Item], None],
        items: Sequence[Item],
        name: Callable[[Item], str],
        report: Report,
    ) -> None:
        """Call `work` on each item; errors are left to the process that reads the cache."""
        with _connected() as ray:
            self.check(ray)
            task = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=RETRIES)(_in_folder)
            waiting = {task.remote(os.getcwd(), work, item): item for item in items}
            done = 0
            try:
                while waiting:
                    (ready,), _ = ray.wait(list(waiting), num_returns=1)
                    item = waiting.pop(ready)
                    try:
                        ray.get(ready)
                    except ray.exceptions.RayError:
                        continue  # the reader runs it again and raises the error
                    done += 1
                    report(name(item), done, len(items))
            finally:
                for task_left in waiting:
                    ray.cancel(task_left, force=True)

    def check(self, ray: Any) -> None:
        """Tasks that no machine can run would wait forever."""
        most = max(node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"])
        if self.gpus > most:
            raise SpecError(
                f"gpus-per-cell: got {self.gpus:g}, but the largest machine of the cluster has "
                f"{most:g} GPUs; give fewer, or add a machine with `ray start`"
            )


def _in_folder(folder: str, work: Callable[[Item], None], item: Item) -> None:
    """Relative paths mean the same as where the command was given."""
    if os.path.isdir(folder):
        os.chdir(folder)
    quietly(work, item)


@contextmanager
def _connected() -> Iterator[ModuleType]:
    """Ray, connected to a running cluster."""
    try:
        import ray
    except ImportError:
        raise SpecError(
            "engine: got ray, but the package is missing; pip install 'ld3[ray]'"
        ) from None
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(address="auto", logging_level=logging.ERROR, log_to_driver=False)
    except ConnectionError:
        raise SpecError(
            "engine: got ray, but no cluster runs here; start one with `ray start --head`, or name "
            "one in RAY_ADDRESS"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()
