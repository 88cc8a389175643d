"""Learning to the end from each start, with the state on disk after every iteration."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ld3.errors import Ld3Error, SpecError, StoreError
from ld3.learner.learn import (
    Progress,
    State,
    begin_with,
    finished,
    learn_all,
)  # fmt: skip
from ld3.parameters import Numbers, Tuning
from ld3.plan import Plan
from ld3.problem import Problem
from ld3.runs.jobs import Job
from ld3.scores import Tell
from ld3.store import read_tensors, write_bytes, write_tensors

SO_FAR = "plan-so-far.json"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with word of what was saved."""


@dataclass(frozen=True)
class Course:
    """What is descended on, how a start becomes numbers, and how numbers become a plan."""

    problems: tuple[Problem, ...]
    tuning: Tuning
    numbers: Callable[[str], Numbers]
    plan: Callable[[Progress], Plan]


def descend(job: Job, course: Course, starts: Sequence[str], tell: Tell, fresh: bool) -> Progress:
    """Learn to the end from each start and take what validates best.

    The state is written after each iteration; a run that was stopped goes on from it. Ctrl-C and
    errors leave the best plan so far on disk.
    """
    recipe, folder, tuning = job.preset.recipe, job.folder, course.tuning
    log = folder / "progress.jsonl"
    lines: list[str] = []
    if log.exists() and not fresh:
        lines = log.read_text().splitlines()
    kept = 0
    ends: list[Progress] = []
    with ExitStack() as stack:
        track = stack.enter_context(_tracker(folder, job.spec.tensorboard))
        for number, name in enumerate(starts):
            file = folder / f"state-{number}.safetensors"
            if file.exists() and not fresh:
                state = State.from_tensors(read_tensors(file))
            else:
                state = begin_with(course.problems, recipe, tuning, course.numbers(name))
                write_tensors(file, state.to_tensors())
            last = finished(tuning, course.problems[0].steps, state)
            valid = last.best
            lines = lines[: kept + state.iteration]
            try:
                for last in learn_all(course.problems, recipe, tuning, state, job.spec.seed):
                    lines.append(json.dumps(_line(name, last)))
                    write_bytes(log, ("\n".join(lines) + "\n").encode())
                    write_tensors(file, last.state.to_tensors())
                    track(len(lines), last)
                    valid = valid if last.valid is None else last.valid
                    share = f" ({number + 1} of {len(starts)})" * (len(starts) > 1)
                    what = f"loss {last.loss:.5f}, valid {valid:.5f}, best {last.best:.5f}{share}"
                    tell(what, last.iteration, last.total)
            except (KeyboardInterrupt, Ld3Error) as stop:
                if isinstance(stop, StoreError):
                    raise  # what cannot be written now is in the last state
                best = min([*ends, last], key=lambda end: end.best)
                course.plan(best).save(folder / SO_FAR)
                if isinstance(stop, Ld3Error):
                    raise type(stop)(f"{stop}; the best plan so far is {folder / SO_FAR}") from None
                raise Interrupted(word_of(folder)) from None
            kept += last.iteration
            ends.append(last)
    best = min(ends, key=lambda end: end.best)
    evaluations = sum(end.state.evaluations for end in ends)
    return replace(best, state=replace(best.state, evaluations=evaluations))


def word_of(folder: Path) -> str:
    """Where the plan of an interrupted run is."""
    return f"the best plan so far is {folder / SO_FAR}; the same command goes on from there"


def _line(start: str, progress: Progress) -> dict[str, Any]:
    return {
        "start": start,
        "iteration": progress.iteration,
        "loss": progress.loss if math.isfinite(progress.loss) else None,
        "valid": progress.valid,
        "best": progress.best,
        "evaluations": progress.state.evaluations,
    }


@contextmanager
def _tracker(folder: Path, wanted: bool) -> Iterator[Callable[[int, Progress], None]]:
    """Writes losses for TensorBoard, if wanted."""
    if not wanted:
        yield lambda number, progress: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SpecError("tensorboard: wanted the package; pip install 'ld3[tracking]'") from None
    writer = SummaryWriter(str(folder / "tensorboard"))

    def track(number: int, progress: Progress) -> None:
        values = {"loss": progress.loss, "valid": progress.valid, "best": progress.best}
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(name, value, number)

    try:
        yield track
    finally:
        writer.close()
