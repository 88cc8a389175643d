"""The teacher: a slow solver whose samples the student learns to reproduce.

`teach` draws x_T from seeds, solves with the teacher and decodes. Targets are kept on disk under a
name that is a digest of all that determines them (model, guidance, solver, times), in chunks of
seeds, so that they are made once and shared by all runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ld3.errors import StoreError
from ld3.grids import TimeGrid, knots
from ld3.models import Cond, Model, bind_network
from ld3.schedules import schedule_to_json
from ld3.seeds import noise
from ld3.solvers import Solver
from ld3.store import digest, read_tensors, write_tensors
from ld3.table import compile_table

CHUNK = 32  # seeds a file


@dataclass(frozen=True)
class Teacher:
    """A solver and its grid by name; order 0 and variant "" are the solver's own."""

    solver: str = "unipc"
    order: int = 3
    variant: str = "bh1"
    grid: str = "logsnr"
    steps: int = 20


@dataclass(frozen=True)
class Pairs:
    """Noise and what the teacher makes of it."""

    seeds: tuple[int, ...]
    noise: Tensor  # (M, *S) unit variance
    cond: Cond
    target: Tensor  # (M, *S') decoded

    def __len__(self) -> int:
        return len(self.seeds)


def teach(
    model: Model,
    identity: str,
    solver: Solver,
    grid: TimeGrid,
    seeds: Sequence[int],
    *,
    guidance: float = 1.0,
    folder: Path | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] = lambda done: None,
) -> Pairs:
    """Pairs for these seeds, from the folder where they are there already.

    `identity` names the weights; `progress` is told how many pairs were just made ready.
    """
    name = digest(
        {
            "model": identity,
            "schedule": schedule_to_json(model.schedule),
            "guidance": guidance,
            "solver": [solver.name, solver.order, solver.variant],
            "times": grid.times.tolist(),
            "net_times": grid.net_times.tolist(),
            "dtype": str(model.dtype),
        }
    )
    table = compile_table(solver, knots(model.schedule, grid), model.prediction)
    wanted = set(seeds)
    found: dict[int, Tensor] = {}
    for first in sorted({seed // CHUNK * CHUNK for seed in seeds}):
        chunk = range(first, first + CHUNK)
        file = None if folder is None else folder / f"teacher-{name}" / f"{first}.safetensors"
        targets = None if file is None else _stored(file)
        if targets is None:
            with torch.no_grad():
                z = noise(chunk, model.shape, device=device)
                network = bind_network(model, model.conditions(chunk), guidance=guidance)
                targets = model.decode(table.run(network, model.schedule.prior_std * z))
            if file is not None:
                write_tensors(file, {"target": targets})
        ready = [seed for seed in chunk if seed in wanted]
        found |= {seed: targets[seed - first] for seed in ready}
        progress(len(ready))
    return Pairs(
        tuple(seeds),
        noise(seeds, model.shape, device=device),
        model.conditions(seeds),
        torch.stack([found[seed] for seed in seeds]).to(device),
    )


def _stored(file: Path) -> Tensor | None:
    """The targets in a file; a file that is broken is made anew."""
    if not file.exists():
        return None
    try:
        return read_tensors(file).get("target")
    except StoreError:
        return None
