"""Learning to the end from each start, with the state on disk after every iteration.

A run that was stopped goes on from its last state, to the same bits. Without a folder nothing is
written.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ld3.errors import Ld3Error, SpecError, StoreError
from ld3.learner.course import Course
from ld3.learner.learn import Progress, learn_course
from ld3.learner.recipes import Recipe
from ld3.learner.state import State
from ld3.runs.progress import Interrupted, Report
from ld3.runs.ranks import ALONE, Ranks
from ld3.store import place, read_proved_tensors, write_bytes, write_proved_tensors

SO_FAR = "plan-so-far.json"


@dataclass(frozen=True)
class Descent:
    """Where and how a run learns."""

    recipe: Recipe
    seed: int
    key: Mapping[str, Any]  # what the result depends on: a state of another key does not count
    folder: Path | None
    report: Report
    save_so_far: Callable[[Progress], None]  # called when a run is interrupted
    tensorboard: bool = False
    watch: Callable[[str, Progress], None] = lambda start, progress: None  # each iteration
    ranks: Ranks = ALONE


@dataclass(frozen=True)
class Reached:
    """Where learning came to."""

    final: Progress  # of the best start
    start: str
    evaluations: int  # of all starts
    curve: tuple[float, ...]  # training losses from the best start


@dataclass
class _Log:
    """progress.jsonl: one line per iteration, by start."""

    file: Path | None
    lines: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path | None, starts: Sequence[str]) -> "_Log":
        log = cls(place(folder, "progress.jsonl"), {name: [] for name in starts})
        if log.file is not None and log.file.exists():
            for line in log.file.read_text("utf-8", "replace").splitlines():
                try:
                    log.lines[json.loads(line)["start"]].append(line)
                except (ValueError, KeyError, TypeError):
                    continue  # a damaged line, or one of another run
        return log

    def cut(self, start: str, iteration: int) -> None:
        """Keep the first lines of a start."""
        self.lines[start] = self.lines[start][:iteration]

    def add(self, start: str, progress: Progress) -> None:
        line = {
            "start": start,
            "iteration": progress.iteration,
            "loss": progress.loss if math.isfinite(progress.loss or 0.0) else None,
            "valid": progress.valid,
            "best": progress.best,
            "evaluations": progress.state.evaluations,
        }
        self.lines[start].append(json.dumps(line))
        if self.file is not None:
            every = [line for lines in self.lines.values() for line in lines]
            write_bytes(self.file, ("\n".join(every) + "\n").encode())


def descend(descent: Descent, courses: Mapping[str, Callable[[], Course]]) -> Reached:
    """Learn to the end from each start, by name, and take what validates best."""
    log = _Log.open(descent.folder, list(courses))
    ends: dict[str, Progress] = {}
    losses: dict[str, list[float]] = {}  # stored with the state, so that they are proved, too
    with _tracker(descent.folder, descent.tensorboard) as track:
        for number, (name, make) in enumerate(courses.items()):
            share = f" ({number + 1} of {len(courses)})" * (len(courses) > 1)
            file = place(descent.folder, f"state-{number}.safetensors")
            key = {"run": dict(descent.key), "start": name}
            tensors = descent.ranks.first_tensors(partial(read_proved_tensors, file, key))
            losses[name] = [] if tensors is None else tensors.pop("losses").tolist()
            state = None if tensors is None else State.from_tensors(tensors)
            log.cut(name, 0 if state is None else state.iteration)
            try:
                for last in learn_course(make(), descent.recipe, seed=descent.seed, state=state):
                    ends[name] = last
                    descent.watch(name, last)
                    if last.loss is None and state is not None:
                        continue  # where the run was left
                    if last.loss is not None:
                        log.add(name, last)
                        losses[name].append(last.loss)
                        track(len(log.lines[name]), last)
                    curve = torch.tensor(losses[name], dtype=torch.float64, device="cpu")
                    write_proved_tensors(file, key, {**last.state.to_tensors(), "losses": curve})
                    descent.report(_losses(last) + share, last.iteration, last.total)
            except (KeyboardInterrupt, Ld3Error) as stop:
                _stopped(descent, list(ends.values()), stop)
    best = min(ends, key=lambda name: ends[name].best)
    spent = sum(end.state.evaluations for end in ends.values())
    finite = tuple(loss for loss in losses[best] if math.isfinite(loss))
    return Reached(ends[best], best, spent, finite)


def _losses(last: Progress) -> str:
    valid = last.best if last.valid is None else last.valid
    loss = "-" if last.loss is None else f"{last.loss:.5f}"  # none before the first iteration
    return f"loss {loss}, valid {valid:.5f}, best {last.best:.5f}"


@contextmanager
def resumable(folder: Path | None) -> Iterator[None]:
    """Ctrl-C inside says where the best plan so far is."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is None:
            raise
        raise Interrupted(
            f"the best plan so far is {folder / SO_FAR}; the same command goes on from there"
        ) from None


def _stopped(descent: Descent, ends: Sequence[Progress], stop: BaseException) -> None:
    """Save the best plan so far and say where it is."""
    if isinstance(stop, StoreError) or descent.folder is None or not ends:
        raise stop  # what cannot be written now is in the last state
    descent.save_so_far(min(ends, key=lambda end: end.best))
    if isinstance(stop, Ld3Error):
        raise type(stop)(f"{stop}; the best plan so far is {descent.folder / SO_FAR}") from None
    with resumable(descent.folder):
        raise stop


@contextmanager
def _tracker(folder: Path | None, wanted: bool) -> Iterator[Callable[[int, Progress], None]]:
    """Writes losses for TensorBoard, if wanted."""
    if not wanted or folder is None:
        yield lambda number, progress: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SpecError(
            "tensorboard: the package is missing; pip install 'ld3[tracking]'"
        ) from None
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
