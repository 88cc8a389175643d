"""The loop of long runs: open-ended, resumable, brought to an end when one likes.

Learning rate of iteration i:

    lr(i) = lr * min(1, (i + 1) / warmup) / sqrt(max(1, i / flat)) * down(i),

down(i) = 1 until ``decay_from``, then linear to 0 at ``until``. Without ``decay_from`` the run has
no end in sight: its rate falls like 1 / sqrt(i), and averages of any length can be made afterwards
(``averages.py``).

The random numbers of an iteration depend on the seed and its index alone. The checkpoint is
written every ten minutes and on SIGTERM; the same command goes on
from it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from averages import Averages
from data import pick, stream
from norms import quicken
from torch import Tensor, nn

Loss = Callable[[nn.Module, Tensor, Tensor, torch.Generator], Tensor]
Check = Callable[[dict[str, Tensor], int], dict[str, Any]]  # averaged weights, iteration -> facts


@dataclass(frozen=True)
class Pace:
    """How fast to train, and for how long."""

    batch: int = 64
    lr: float = 0.01
    warmup: int = 200
    flat: int = 1500
    decay_from: int | None = None
    until: int | None = None
    seed: int = 0
    betas: tuple[float, float] = (0.9, 0.99)

    def rate(self, i: int) -> float:
        """Learning rate of iteration ``i``, counted from 0."""
        rate = self.lr * min(1.0, (i + 1) / self.warmup) / math.sqrt(max(1.0, i / self.flat))
        if self.decay_from is None or self.until is None or i < self.decay_from:
            return rate
        return rate * max(0.0, (self.until - i) / (self.until - self.decay_from))


@dataclass(frozen=True)
class Every:
    """Intervals: in seconds for checkpoint and check, in iterations for log and snapshot."""

    checkpoint: float = 600
    check: float = 2700
    log: int = 50
    snapshot: int = 1000


def arguments(description: str, name: str, pace: Pace) -> argparse.ArgumentParser:
    """Options of every long run."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs") / name, help="folder of the run")
    parser.add_argument("--batch", type=int, default=pace.batch)
    parser.add_argument("--lr", type=float, default=pace.lr)
    parser.add_argument("--flat", type=int, default=pace.flat, help="iterations before 1/sqrt")
    parser.add_argument("--decay-from", type=int, help="iteration from which the rate falls to 0")
    parser.add_argument("--until", type=int, help="last iteration")
    parser.add_argument("--seed", type=int, default=pace.seed)
    parser.add_argument("--go-on", action="store_true", help="start from the package's weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check-minutes", type=float, default=45)
    return parser


def pace_of(args: argparse.Namespace, pace: Pace) -> Pace:
    """The pace that the options ask for."""
    return Pace(
        args.batch, args.lr, pace.warmup, args.flat, args.decay_from, args.until, args.seed,
        pace.betas,
    )  # fmt: skip


def save(path: Path, content: dict[str, Any]) -> None:
    """Write under another name, flush to disk, then rename: the file is never half written."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def note(path: Path, line: dict[str, Any]) -> None:
    """Add a line of JSON to a log."""
    with path.open("a") as log:
        log.write(json.dumps(line) + "\n")
    print(line, flush=True)


class Stop:
    """Becomes true on SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self.asked = False
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def train(
    net: nn.Module,
    loss: Loss,
    images: Tensor,
    labels: Tensor,
    pace: Pace,
    run: Path,
    check: Check | None = None,
    every: Every | None = None,
) -> bool:
    """Train until ``pace.until`` (then true) or until a signal; all results are in ``run``."""
    run.mkdir(parents=True, exist_ok=True)
    quicken()
    stop, every = Stop(), every or Every()
    net.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    weights = list(net.parameters())
    adam = torch.optim.Adam(weights, lr=pace.lr, betas=pace.betas, eps=1e-8, fused=True)
    averages = Averages(net)
    first, spent, checked = 0, 0.0, 0.0
    if (run / "last.pt").exists():
        state = torch.load(run / "last.pt", weights_only=True)
        net.load_state_dict(state["net"])
        adam.load_state_dict(state["adam"])
        averages.load(state["averages"])
        first, spent, checked = state["iteration"], state["seconds"], state["checked"]
    began = saved = time.monotonic()
    told, total, largest = first, 0.0, 0.0

    def seconds() -> float:
        return round(spent + time.monotonic() - began, 1)

    i = first
    while not stop.asked and (pace.until is None or i < pace.until):
        rows = pick(len(images), pace.batch, pace.seed, i)
        batch = images[rows].contiguous(memory_format=torch.channels_last)  # (B,C,H,W)
        for group in adam.param_groups:
            group["lr"] = pace.rate(i)
        value = loss(net, batch, labels[rows], stream(pace.seed, 1, i))
        value.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None])
        if torch.isfinite(norm):
            adam.step()
        adam.zero_grad(set_to_none=True)
        i += 1
        averages.update(i)
        total, largest = total + value.item(), max(largest, norm.item())
        if i % every.log == 0:
            line = {"iteration": i, "loss": round(total / (i - told), 6), "norm": round(largest, 4)}
            note(run / "log.jsonl", {**line, "rate": pace.rate(i), "seconds": seconds()})
            told, total, largest = i, 0.0, 0.0
        done = i == pace.until
        if i % every.snapshot == 0 or done:
            averages.snapshot(run / "averages", i)
        if check is not None and (seconds() - checked > every.check or done):
            facts = check(averages.state()[str(0.10)], i)
            checked = seconds()
            note(run / "quality.jsonl", {"iteration": i, **facts, "seconds": checked})
            net.train()
        if time.monotonic() - saved > every.checkpoint or done:
            _checkpoint(run, net, adam, averages, i, seconds(), checked)
            saved = time.monotonic()
    _checkpoint(run, net, adam, averages, i, seconds(), checked)
    return pace.until is not None and i >= pace.until


def _checkpoint(
    run: Path,
    net: nn.Module,
    adam: torch.optim.Adam,
    averages: Averages,
    iteration: int,
    seconds: float,
    checked: float,
) -> None:
    content = {"net": net.state_dict(), "adam": adam.state_dict(), "averages": averages.state()}
    save(
        run / "last.pt",
        {**content, "iteration": iteration, "seconds": seconds, "checked": checked},
    )
