"""The teacher: a slow solver whose samples the student learns to reproduce.

A pair is a noise z and the sample Psi(sigma_T z) that the teacher's solver Psi makes, decoded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.known_grids import make_grid
from ld3.models import Cond, Model, bind_network, bind_passes, start, take
from ld3.predictions import Prediction
from ld3.schedules import Schedule
from ld3.seeds import noise
from ld3.solvers import Solver, make_solver
from ld3.spaces import space_of
from ld3.table import Table, TunedSolver

BATCH = 32  # samples at a time
SHARE = 0.1  # of the student's error that the teacher's may have


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
        return TunedSolver(self.make_solver(), grid).table(schedule, prediction)


@dataclass(frozen=True)
class TeacherCheck:
    """A teacher, its measured error, and the error that the student is expected to reach."""

    teacher: Teacher
    error: float
    student: float

    @property
    def is_enough(self) -> bool:
        return self.error <= SHARE * self.student


@dataclass(frozen=True)
class Pairs:
    """Noise and the teacher's sample for it."""

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
    table = (teacher or Teacher()).table(model.schedule, model.prediction)
    targets = []
    for part, made in sample_batches(model, table, seeds, batch, guidance=guidance, device=device):
        _check_finite(made, part, model, table, guidance)
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
    network = bind_passes(model, cond, table.guided, table.nfe, guidance=guidance)
    return model.decode(table.run(network, x, space_of(model)))


@torch.no_grad()
def _check_finite(
    samples: Tensor, seeds: Sequence[int], model: Model, table: Table, guidance: float
) -> None:
    bad = [s for s, x in zip(seeds, samples, strict=True) if not bool(torch.isfinite(x).all())]
    if not bad:
        return
    network = bind_network(model, model.conditions(bad[:1]), guidance=guidance)
    x = start(model, noise(bad[:1], model.shape, device=samples.device))
    _, outputs = table.follow(network, x, space=space_of(model))
    outputs_at = zip(table.net_times.tolist(), outputs, strict=True)
    times = [t for t, out in outputs_at if not bool(torch.isfinite(out).all())]
    when = f"first at t = {times[0]:.4g}" if times else "in the decoder or in the last steps"
    raise ModelError(
        f"teacher: got a sample that is not finite for seed {bad[0]} ({len(bad)} of {len(seeds)} "
        f"in this batch), {when}, in {model.dtype}; try another --dtype, a smaller --guidance or "
        "another --teacher-grid; nothing was stored"
    )
