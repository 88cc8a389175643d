"""Engines that fill the cache ahead of the one that reads it: two of them, one interface.

`local` is a pool of processes on this machine, `ray` a cluster.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from ld3.errors import SpecError
from ld3.runs.pool import work_ahead
from ld3.runs.progress import Report
from ld3.runs.ranks import Ranks
from ld3.runs.ray_cluster import RayCluster

EngineName = Literal["local", "ray"]
Engine = Callable[[Callable[[Any], None], Sequence[Any], Callable[[Any], str], Report], None]
"""engine(work, items, name, report) calls `work`, a function of a module, on each item, plain data,
in another process. Errors are left to the process that reads the cache."""


def make_engine(name: EngineName, jobs: int = 1, gpus: float = 0.0) -> Engine | None:
    """By name; None if nothing is to be made ahead."""
    if name == "ray":
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
