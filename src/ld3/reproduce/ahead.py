"""Learning runs, one after the other or several side by side.

Processes share nothing but the folder of runs, where every file is written whole or not at all. One
that dies loses its own run only; what is missing afterwards is run by the reader.
"""

import multiprocessing
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from multiprocessing.queues import Queue
from queue import Empty
from typing import Any

import torch
from torch import Tensor

from ld3 import zoo
from ld3.errors import Ld3Error, SpecError
from ld3.plan import Plan
from ld3.runs import run_learn
from ld3.scores import Tell
from ld3.spec import RunSpec
from ld3.store import digest
from ld3.zoo.shipped import CLASSES, ClassModel


@dataclass(frozen=True)
class Asked:
    """One learning run: one number of evaluations, perhaps on some of the classes only."""

    name: str
    spec: RunSpec
    classes: tuple[int, ...] = ()  # of a shipped model; none: all of them


@dataclass(frozen=True)
class Narrowed(ClassModel):
    """A shipped model whose seeds ask for some of its classes only, in turn."""

    classes: tuple[int, ...] = ()
    digest: str = ""

    def conditions(self, seeds: Sequence[int]) -> Tensor:
        wanted = [self.classes[seed % len(self.classes)] for seed in seeds]
        return torch.tensor(wanted, device=self.device)


def narrowed(name: str, classes: Sequence[int], device: str = "cpu") -> Narrowed:
    """A shipped model by name, for these classes."""
    if name not in zoo.SHIPPED:
        raise SpecError(f"classes: got the model {name}, wanted one of {', '.join(zoo.SHIPPED)}")
    if not classes or not all(0 <= c < len(CLASSES) for c in classes):
        raise SpecError(f"classes: got {list(classes)}, wanted numbers of 0 to {len(CLASSES) - 1}")
    model = zoo.load(name, device)
    own = digest([zoo.SHIPPED[name].digest, list(classes)])
    parts = {field.name: getattr(model, field.name) for field in fields(ClassModel)}
    return Narrowed(**parts, classes=tuple(classes), digest=own)


def learn_all(asked: Sequence[Asked], jobs: int, tell: Tell) -> list[Plan]:
    """The plans, in order; finished ones are read."""
    unique = list({(a.spec.model_dump_json(), a.classes): a for a in asked}.values())
    if jobs > 1 and len(unique) > 1:
        _work_ahead(unique, jobs, tell)
    plans = []
    for done, one in enumerate(asked):
        plans.append(_learned(one, done, len(asked), tell))
    tell(f"runs: all {len(asked)} done", len(asked), len(asked))
    return plans


def _learned(one: Asked, done: int, total: int, tell: Tell) -> Plan:
    def inside(what: str, part: int, of: int) -> None:
        tell(f"runs: {one.name}, {what}, {100 * part // max(of, 1)} %", done, total)

    model = narrowed(one.spec.model, one.classes, one.spec.device) if one.classes else None
    (result,) = run_learn(one.spec, inside, model=model)
    return result.plan


def _work_ahead(asked: Sequence[Asked], jobs: int, tell: Tell) -> None:
    context = multiprocessing.get_context("spawn")
    turn, news = context.Value("i", 0), context.Queue()
    threads = max(1, torch.get_num_threads() // jobs)
    workers = [
        context.Process(target=_work, args=(asked, threads, turn, news), daemon=True)
        for _ in range(min(jobs, len(asked)))
    ]
    done = 0
    try:
        for worker in workers:
            worker.start()
        while done < len(asked) and any(worker.is_alive() for worker in workers):
            with suppress(Empty):
                name = news.get(timeout=0.5)
                done += 1
                tell(f"runs: {name}", done, len(asked))
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(asked: Sequence[Asked], threads: int, turn: Any, news: "Queue[str]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the reader ends us
    torch.set_num_threads(threads)
    while True:
        with turn.get_lock():
            number = turn.value
            turn.value += 1
        if number >= len(asked):
            break
        with suppress(Ld3Error):  # the reader will meet and tell it
            _learned(asked[number], 0, 1, lambda what, done, total: None)
        news.put(asked[number].name)
    news.close()
    news.join_thread()
