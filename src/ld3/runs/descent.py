"""Learning from one or several starts, with the state on disk after every iteration.

Several starts race: after each share of RACE the half with the lower validation loss is continued.
A stopped run is resumed from its last states, to the same bits. The race ends the same: the lowest
loss of a continued start can only have fallen since. Without a folder nothing is written.
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

from ld3.errors import Ld3Error, StoreError
from ld3.learner.course import Course
from ld3.learner.learn import Progress, learn_course
from ld3.learner.recipes import Recipe
from ld3.report.tables import significant
from ld3.runs.progress import Report, resumable
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.states import from_tensors, to_tensors
from ld3.store import place, read_proved_tensors, write_bytes, write_proved_tensors

SO_FAR = "plan-so-far.json"
RACE = (1 / 8, 1 / 2)  # of the iterations


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
    passes: int
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


class _Racer:
    """Learning from one start, as far as it has come."""

    def __init__(self, descent: Descent, name: str, number: int, make: Callable[[], Course]):
        self.descent, self.name = descent, name
        self._file = place(descent.folder, f"state-{number}.safetensors")
        self._key = {"run": dict(descent.key), "start": name}
        tensors = descent.ranks.first_tensors(partial(read_proved_tensors, self._file, self._key))
        # losses of the batches are stored with the state, so that they are proved, too
        self.losses: list[float] = [] if tensors is None else tensors.pop("losses").tolist()
        state = None if tensors is None else from_tensors(tensors)
        self._steps = learn_course(make(), descent.recipe, seed=descent.seed, state=state)
        self.last = next(self._steps)  # before the first iteration, or where the run was left
        descent.watch(name, self.last)
        if state is None:
            self._save()

    def until(self, iteration: int) -> Iterator[Progress]:
        """Learn up to and with an iteration. Each is stored after its line is in the log, so that a
        run that is killed in between does it again, and no line is lost."""
        while self.last.iteration < iteration:
            last = next(self._steps, None)
            if last is None:
                return
            assert last.loss is not None  # only before the first iteration
            self.last = last
            self.losses.append(last.loss)
            self.descent.watch(self.name, last)
            yield last
            self._save()

    def drop(self) -> None:
        """Forget what the iterations to come would need."""
        self._steps = iter(())

    def _save(self) -> None:
        losses = torch.tensor(self.losses, dtype=torch.float64, device="cpu")
        content = {**to_tensors(self.last.state), "losses": losses}
        write_proved_tensors(self._file, self._key, content)


def descend(descent: Descent, courses: Mapping[str, Callable[[], Course]]) -> Reached:
    """Learn from each start, by name, those that fall behind not to the end."""
    log = _Log.open(descent.folder, list(courses))
    racers: list[_Racer] = []
    running = racers
    with _tracker(descent.folder, descent.tensorboard) as track:
        try:
            for number, (name, make) in enumerate(courses.items()):
                racers.append(_Racer(descent, name, number, make))
                del log.lines[name][racers[-1].last.iteration :]
            length = race_length(len(racers), racers[0].last.total)

            def report(last: Progress, behind: str = "") -> None:
                done = sum(racer.last.iteration for racer in racers)
                descent.report(_losses(last) + behind, done, length)

            report(racers[0].last)
            for share in (*RACE, 1.0):
                until = math.ceil(share * racers[0].last.total)
                for number, racer in enumerate(running):
                    behind = f" (start {number + 1} of {len(running)})" * (len(running) > 1)
                    for last in racer.until(until):
                        log.add(racer.name, last)
                        track(len(log.lines[racer.name]), last)
                        report(last, behind)
                ranked = sorted(running, key=lambda racer: racer.last.best)
                dropped = ranked[math.ceil(len(ranked) / 2) :] if share < 1 else []
                for racer in dropped:
                    racer.drop()
                running = [racer for racer in running if racer not in dropped]
        except (KeyboardInterrupt, Ld3Error) as stop:
            _stopped(descent, [racer.last for racer in racers], stop)
    best, states = ranked[0], [racer.last.state for racer in racers]
    spent, passes = sum(s.evaluations for s in states), sum(s.passes for s in states)
    finite = tuple(loss for loss in best.losses if math.isfinite(loss))
    return Reached(best.last, best.name, spent, passes, finite)


def race_length(starts: int, total: int) -> int:
    """The iterations of all starts together, `total` of them from the one that wins."""
    length, begun = 0, 0
    for share in (*RACE, 1.0):
        until = math.ceil(share * total)
        length += starts * (until - begun)
        starts, begun = math.ceil(starts / 2), until
    return length


def _losses(last: Progress) -> str:
    valid = last.best if last.valid is None else last.valid
    loss = "-" if last.loss is None else significant(last.loss)  # none before the first iteration
    return f"loss {loss}, valid {significant(valid)}, best {significant(last.best)}"


def saved_so_far(folder: Path | None) -> str:
    """Where the best plan so far is, if there is a folder."""
    return "" if folder is None else f"the best plan so far is {folder / SO_FAR}"


def _stopped(descent: Descent, ends: Sequence[Progress], stop: BaseException) -> None:
    """Save the best plan so far and say where it is."""
    if isinstance(stop, StoreError) or descent.folder is None or not ends:
        raise stop  # what cannot be written now is in the last state
    descent.save_so_far(min(ends, key=lambda end: end.best))
    if isinstance(stop, Ld3Error):
        raise type(stop)(f"{stop}; {saved_so_far(descent.folder)}") from None
    with resumable(saved_so_far(descent.folder)):
        raise stop


@contextmanager
def _tracker(folder: Path | None, wanted: bool) -> Iterator[Callable[[int, Progress], None]]:
    """Writes losses for TensorBoard, if wanted."""
    if not wanted or folder is None:
        yield lambda number, progress: None
        return
    from torch.utils.tensorboard import SummaryWriter

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
