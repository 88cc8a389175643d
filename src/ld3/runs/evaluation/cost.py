"""What an evaluation will cost, from a short timing: `ld3 evaluate --dry-run`.

network calls = samples x NFE                 of each plan or grid; twice with guidance
hours         = samples x (NFE x seconds per evaluation + seconds per features)
disk          = samples x features x 4 bytes, and twice the pixels where samples are kept
"""

import sys
import time

import torch

from ld3.evaluation import Cost
from ld3.metrics.inception import to_uint8
from ld3.runs.evaluation.evaluate import Task
from ld3.runs.session import Session
from ld3.seeds import seeds_for
from ld3.table import Table
from ld3.teacher import sample_table

GROUPS_AND_ROOTS = 24  # matrices (D, D) in float64 that are in memory at the same time, at most


def cost_of(task: Task) -> Cost:
    """Time one batch, and multiply."""
    session = task.session
    sets = task.sets_of_samples
    count = min(session.batch, task.spec.samples)
    table = task.items[0].table
    _sampled(session, table, 1)  # the first call is slower
    begin = time.perf_counter()
    images = _sampled(session, table, count)
    _wait(session)
    per_call = (time.perf_counter() - begin) / count / table.nfe
    begin = time.perf_counter()
    dimension = task.sets.net(to_uint8(images).float() / 127.5 - 1).shape[1]
    _wait(session)
    per_features = (time.perf_counter() - begin) / count
    calls = sum(samples.count * samples.table.nfe for samples, _ in sets)
    total = sum(samples.count for samples, _ in sets)
    pixels = 2 * images[0].numel() if task.spec.keep else 0
    return Cost(
        samples=total,
        calls=calls,
        passes=calls * (1 if session.guidance == 1 else 2),
        seconds=calls * per_call + total * per_features,
        memory=_memory(session) + GROUPS_AND_ROOTS * 8 * dimension**2,
        disk=total * (4 * dimension + pixels),
        batch=count,
        per_call=per_call,
        per_features=per_features,
    )


def _sampled(session: Session, table: Table, count: int) -> torch.Tensor:
    seeds = seeds_for("evaluation", count)
    return sample_table(
        session.model, table, seeds, guidance=session.guidance, device=session.device,
        cond=session.model.conditions(range(count)),
    )  # fmt: skip


def _wait(session: Session) -> None:
    if session.device.startswith("cuda"):
        torch.cuda.synchronize(session.device)


def _memory(session: Session) -> int:
    """The largest use so far: of the GPU where there is one, else of the process."""
    if session.device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(session.device))
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used
