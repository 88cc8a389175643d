"""The training loop all scripts share.

Learning rate of iteration i out of N: linear warm-up, then half a cosine down to ``lr_end``.
Weights shipped are the running mean  m <- m + (w - m) / (1 + i / 20),  i.e. about the last 5 %.

A run can be stopped at any time and goes on from its last checkpoint to the same bits: the random
numbers of an iteration depend on the seed and on its index alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from data import DATA, pick, stream
from torch import Tensor, nn

Loss = Callable[[nn.Module, Tensor, Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train.

    A batch is cut into ``shards`` which are worked on side by side, each by one of ``threads``
    workers; that loses less time to waiting than threads inside every layer.
    """

    iterations: int
    batch: int = 64
    lr: float = 1e-3
    lr_end: float = 1e-5
    warmup: int = 100
    clip: float = 1.0
    decay: float = 0.0
    seed: int = 0
    shards: int = 1
    threads: int = 2

    def rate(self, i: int) -> float:
        """Learning rate of iteration ``i``."""
        if i < self.warmup:
            return self.lr * (i + 1) / self.warmup
        done = (i - self.warmup) / max(1, self.iterations - self.warmup)
        return self.lr_end + (self.lr - self.lr_end) * (1 + math.cos(math.pi * done)) / 2


def arguments(description: str, name: str, iterations: int, lr: float) -> argparse.ArgumentParser:
    """Options every script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the idx files")
    parser.add_argument("--run", type=Path, default=Path("runs") / name, help="folder of the run")
    parser.add_argument("--iterations", type=int, default=iterations)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=lr)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser


def save(path: Path, content: dict[str, Any]) -> None:
    """Write under another name, flush to disk, then rename: the file is never half written."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


@torch.no_grad()
def _average(mean: nn.Module, model: nn.Module, i: int) -> None:
    current = model.state_dict()
    for name, value in mean.state_dict().items():
        if value.is_floating_point():
            value.lerp_(current[name], 1 / (1 + i / 20))
        else:
            value.copy_(current[name])


def _gradient(
    model: nn.Module,
    loss: Loss,
    batch: Tensor,
    labels: Tensor,
    plan: Plan,
    i: int,
    pool: ThreadPoolExecutor,
) -> Tensor:
    """Put the gradient of the mean loss into ``.grad``; the shards are summed in fixed order."""
    weights = list(model.parameters())

    def work(k: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        g = stream(plan.seed, 1, i * plan.shards + k)
        value = loss(model, batch[k :: plan.shards], labels[k :: plan.shards], g)
        return value.detach(), torch.autograd.grad(value, weights)

    parts = list(pool.map(work, range(plan.shards))) if plan.shards > 1 else [work(0)]
    for n, weight in enumerate(weights):
        weight.grad = torch.stack([grads[n] for _, grads in parts]).mean(0)
    return torch.stack([value for value, _ in parts]).mean()


def train(
    model: nn.Module, loss: Loss, images: Tensor, labels: Tensor, plan: Plan, run: Path
) -> nn.Module:
    """Train (or go on training) and give the averaged model in eval mode."""
    run.mkdir(parents=True, exist_ok=True)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    mean = copy.deepcopy(model)
    rates = {"lr": plan.lr, "betas": (0.9, 0.99), "weight_decay": plan.decay}
    optimizer = torch.optim.AdamW(model.parameters(), **rates)
    pool = ThreadPoolExecutor(plan.threads, initializer=torch.set_num_threads, initargs=(1,))
    first, spent = 0, 0.0
    if (run / "last.pt").exists():
        state = torch.load(run / "last.pt", weights_only=True)
        model.load_state_dict(state["model"])
        mean.load_state_dict(state["mean"])
        optimizer.load_state_dict(state["optimizer"])
        first, spent = state["iteration"], state["seconds"]
    began, saved, told, recent = time.monotonic(), time.monotonic(), first, 0.0
    for i in range(first, plan.iterations):
        rows = pick(len(images), plan.batch, plan.seed, i)
        batch = images[rows].contiguous(memory_format=torch.channels_last)  # (B,C,H,W)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(i)
        model.train()
        value = _gradient(model, loss, batch, labels[rows], plan, i, pool)
        norm = nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        if torch.isfinite(norm):
            optimizer.step()
        _average(mean, model, i)
        recent += value.item()
        last = i + 1 == plan.iterations
        if (i + 1) % 50 == 0 or last:
            line = {
                "iteration": i + 1,
                "loss": round(recent / (i + 1 - told), 6),
                "norm": round(norm.item(), 4),
                "seconds": round(spent + time.monotonic() - began, 1),
            }
            with (run / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            print(line, flush=True)
            told, recent = i + 1, 0.0
        if time.monotonic() - saved > 120 or last:
            content = {
                "model": model.state_dict(),
                "mean": mean.state_dict(),
                "optimizer": optimizer.state_dict(),
                "iteration": i + 1,
                "seconds": spent + time.monotonic() - began,
            }
            save(run / "last.pt", content)
            saved = time.monotonic()
    return mean.eval()


def finish(
    run: Path,
    model: nn.Module,
    plan: Plan,
    command: str,
    about: dict[str, Any],
    log: Path | None = None,
) -> None:
    """Write ``final.pt``: weights and everything ``export.py`` needs to describe them."""
    lines = [json.loads(line) for line in (log or run / "log.jsonl").read_text().splitlines()]
    tail = [line["loss"] for line in lines if line["iteration"] > 0.95 * plan.iterations]
    about = {
        **about,
        "training": {
            "command": command,
            "iterations": plan.iterations,
            "batch": plan.batch,
            "lr": plan.lr,
            "seed": plan.seed,
            "minutes": round(lines[-1]["seconds"] / 60, 1),
            "final_loss": round(sum(tail) / max(1, len(tail)), 5),
        },
    }
    weights = {k: v.contiguous() for k, v in model.state_dict().items()}
    save(run / "final.pt", {"weights": weights, "about": json.dumps(about)})
