"""The teacher: a slow solver whose samples the student learns to reproduce.

A pair is a noise z and the sample Psi(sigma_T z) that the teacher's solver Psi makes, decoded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.grids import knots
from ld3.known_grids import make_grid
from ld3.models import Cond, Model, bind_network, start, take
from ld3.predictions import Prediction
from ld3.schedules import Schedule
from ld3.seeds import noise
from ld3.solvers import Solver, make_solver
from ld3.spaces import space_of
from ld3.table import Table, compile_table

BATCH = 32  # samples at a time


@dataclass(frozen=True)
class Teacher:
    """A solver on a grid, by name; order 0 and variant "" are the solver's own."""

    solver: str = "unipc"
    order: int = 3
    variant: str = "bh1"
    grid: str = "logsnr"
    steps: int = 20

    def make_solver(self) -> Solver:
        return make_solver(self.solver, self.order or None, self.variant or None)

    @property
    def nfe(self) -> int:
        return self.make_solver().nfe(self.steps)

    @property
    def title(self) -> str:
        """Such as `unipc-3, 20 steps on logsnr`."""
        return f"{self.solver}-{self.make_solver().order}, {self.steps} steps on {self.grid}"

    def table(self, schedule: Schedule, prediction: Prediction) -> Table:
        grid = make_grid(self.grid, schedule, self.steps)
        return compile_table(self.make_solver(), knots(schedule, grid), prediction)


@dataclass(frozen=True)
class Pairs:
    """Noise and what the teacher makes of it."""

    seeds: tuple[int, ...]
    noise: Tensor  # (M, *S) unit variance
    cond: Cond
    target: Tensor  # (M, *S') decoded

    def __len__(self) -> int:
        return len(self.seeds)


def make_pairs(
    model: Model,
    seeds: Sequence[int],
    teacher: Teacher | None = None,
    *,
    guidance: float = 1.0,
    batch: int = BATCH,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] = lambda count: None,
) -> Pairs:
    """Pairs for these seeds; `progress` gets how many were just made.

    A sample that is not finite is a :class:`ModelError`.
    """
    teacher = teacher or Teacher()
    table = teacher.table(model.schedule, model.prediction)
    targets = []
    for part, made in sample_batches(model, table, seeds, batch, guidance=guidance, device=device):
        _check_finite(made, part, model, teacher, guidance)
        targets.append(made)
        progress(len(part))
    z, cond = noise(seeds, model.shape, device=device), model.conditions(seeds)
    return Pairs(tuple(seeds), z, cond, torch.cat(targets))


def sample_batches(
    model: Model,
    table: Table,
    seeds: Sequence[int],
    batch: int,
    *,
    guidance: float = 1.0,
    device: torch.device | str = "cpu",
    cond: Cond = None,
) -> Iterator[tuple[Sequence[int], Tensor]]:
    """:func:`sample_table` for `batch` seeds at a time: these seeds, and their samples."""
    for first in range(0, len(seeds), batch):
        part = slice(first, first + batch)
        some, own = seeds[part], take(cond, part)
        yield some, sample_table(model, table, some, guidance=guidance, device=device, cond=own)


@torch.no_grad()
def sample_table(
    model: Model,
    table: Table,
    seeds: Sequence[int],
    *,
    guidance: float = 1.0,
    device: torch.device | str = "cpu",
    cond: Cond = None,
) -> Tensor:
    """Decoded samples of a table, one per seed, in one batch; `cond` replaces the model's own."""
    x = start(model, noise(seeds, model.shape, device=device))
    cond = model.conditions(seeds) if cond is None else cond
    network = bind_network(model, cond, guidance=guidance)
    return model.decode(table.run(network, x, space_of(model)))


def _check_finite(
    samples: Tensor, seeds: Sequence[int], model: Model, teacher: Teacher, guidance: float
) -> None:
    bad = [s for s, x in zip(seeds, samples, strict=True) if not bool(torch.isfinite(x).all())]
    if not bad:
        return
    when = _first_bad_time(model, teacher, bad[:1], guidance, samples.device)
    raise ModelError(
        f"teacher: got a sample that is not finite for seed {bad[0]} ({len(bad)} of {len(seeds)} "
        f"in this batch), {when}, in {model.dtype}; try another --dtype, a smaller --guidance or "
        "another --teacher-grid; nothing was stored"
    )


@torch.no_grad()
def _first_bad_time(
    model: Model,
    teacher: Teacher,
    seeds: Sequence[int],
    guidance: float,
    device: torch.device | str,
) -> str:
    """Where on its way a sample stops being finite."""
    network = bind_network(model, model.conditions(seeds), guidance=guidance)
    when: list[float] = []

    def watched(x: Tensor, t: Tensor) -> Tensor:
        out = network(x, t)
        if not when and not bool(torch.isfinite(out).all()):
            when.append(float(t))
        return out

    table = teacher.table(model.schedule, model.prediction)
    x = start(model, noise(seeds, model.shape, device=device))
    table.run(watched, x, space_of(model))
    return f"first at t = {when[0]:.4g}" if when else "in the decoder or in the last steps"
