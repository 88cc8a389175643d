"""What was measured of a table before, kept on disk, so that runs share it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ld3 import __version__, zoo
from ld3.errors import StoreError
from ld3.runs.jobs import Job
from ld3.schedules import schedule_to_json
from ld3.store import digest, read_json, write_json
from ld3.table import Table


def measure_of(job: Job) -> list[Any]:
    """What a distance to the teacher depends on."""
    eye = zoo.checksum("perceptual") if job.loaded.name in zoo.SHIPPED else ""
    return [job.spec.distance, eye, asdict(job.preset.teacher)]


def remembered(
    job: Job, table: Table, what: list[Any], compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What `compute` gives, from disk if it was computed before."""
    file = file_of(job, table, what, "json")
    if file.exists():
        with suppress(StoreError):
            content = read_json(file)
            if isinstance(content, dict):
                return content
    content = compute()
    write_json(file, content)
    return content


def file_of(job: Job, table: Table, what: list[Any], kind: str) -> Path:
    """Where something about a table on a model is kept."""
    key = {
        "what": what,
        "model": [job.loaded.identity, str(job.loaded.model.dtype), job.guidances[0]],
        "schedule": schedule_to_json(job.loaded.model.schedule),
        "table": [table.weights.tolist(), table.net_times.tolist()],
        "version": __version__,
    }
    return job.spec.out / "scores" / f"{digest(key)}.{kind}"
