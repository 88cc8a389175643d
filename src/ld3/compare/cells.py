"""Cells: one method, solver, number of evaluations and seed each, kept on disk by content.

A cell has two files in `cells/`: what the method *found* (named by the digest of all that
determines it; a method that does not look at the solver searches once for all solvers) and its
distances on *held*-out noise (named by the digest of the very numbers that were run, the noise and
the references). So a comparison that was stopped goes on, a second one shares the cells of the
first, and more held-out noise does not search again.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ld3 import __version__, zoo
from ld3.compare.spec import CompareSpec, steps_of, title
from ld3.distances import Distance
from ld3.errors import Ld3Error, StoreError
from ld3.grids import TimeGrid, knots
from ld3.learner.presets import Teacher
from ld3.models import Model
from ld3.plan import Plan
from ld3.problem import Problem, chunks, take
from ld3.runs import HELD, VALID
from ld3.schedules import schedule_to_json
from ld3.scores import BATCH, Tell, sampler, silent
from ld3.searches import make_grid
from ld3.searches.registry import SEARCHES, find
from ld3.solvers import Solver, make_solver
from ld3.store import digest, read_json, write_json
from ld3.table import Table, Tuned, compile_table
from ld3.teacher import Pairs, teach
from ld3.zoo.loading import Loaded, load_model, make_distance, of_model

KEYS = ("distance", "distance_accurate", "rmse", "rmse_accurate")


@dataclass(frozen=True)
class Cell:
    """What is run once."""

    method: str
    solver: Solver
    nfe: int
    seed: int | None  # None: there is no chance in it

    @property
    def name(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.method}, {title(self.solver)}, {self.nfe} evaluations{seed}"


@dataclass(frozen=True)
class Found:
    """What a method came to, or why it did not."""

    tuned: Tuned | None
    evaluations: int = 0
    seconds: float = 0.0
    curve: tuple[float, ...] = ()
    failed: str = ""


@dataclass(frozen=True)
class Ground:
    """What all cells have in common: model, distance, teacher, pairs and held-out noise."""

    spec: CompareSpec
    loaded: Loaded
    distance: Distance

    @classmethod
    def of(cls, spec: CompareSpec, model: Model | None = None) -> "Ground":
        """`model` is one of one's own, instead of the one that the spec names."""
        if model is None:
            loaded = load_model(spec.model, spec.device, spec.dtype)
        else:
            loaded = of_model(model, spec.model if ":" in spec.model else "own", spec.device)
        return cls(spec, loaded, make_distance(spec.distance, loaded, spec.device))

    @property
    def accurate(self) -> Teacher:
        """Finer than any teacher: stands for the exact solution."""
        return Teacher("unipc", 3, "bh1", "logsnr", max(80, 2 * self.spec.teacher.steps))

    def pairs(self, seed: int, tell: Tell = silent) -> tuple[Pairs, Pairs]:
        """Of learning and of validation: the same for every method."""
        first = 10_000 * seed
        teacher, spec = self.spec.teacher, self.spec
        train = self._taught(teacher, range(first, first + spec.pairs), "pairs to learn", tell)
        check = range(VALID + first, VALID + first + spec.valid)
        return train, self._taught(teacher, check, "pairs to validate", tell)

    @property
    def nothing(self) -> Pairs:
        """For methods that say they look at no pairs."""
        empty = torch.empty(0, *self.loaded.model.shape, device=self.spec.device)
        return Pairs((), empty, None, empty)

    @cached_property
    def held(self) -> Pairs:
        return self.held_by(self.spec.teacher)

    @cached_property
    def exact(self) -> Tensor:
        return self.held_by(self.accurate).target

    def held_by(self, teacher: Teacher, tell: Tell = silent) -> Pairs:
        """Held-out noise and what a teacher makes of it."""
        seeds = range(HELD, HELD + self.spec.held_out)
        return self._taught(teacher, seeds, "held-out noise", tell)

    def _taught(self, teacher: Teacher, seeds: range, what: str, tell: Tell) -> Pairs:
        ready = 0

        def progress(done: int) -> None:
            nonlocal ready
            ready += done
            tell(f"teacher: {what}", ready, len(seeds))

        return teach(
            self.loaded.model,
            self.loaded.digest,
            make_solver(teacher.solver, teacher.order or None, teacher.variant or None),
            make_grid(teacher.grid, self.loaded.model.schedule, teacher.steps),
            seeds,
            guidance=self.spec.guidance,
            folder=self.spec.out / "pairs",
            device=self.spec.device,
            progress=progress,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What every result depends on."""
        eyes = ("perceptual",) if self.loaded.name in zoo.SHIPPED else ()
        return {
            "model": [self.loaded.digest, str(self.loaded.model.dtype), self.spec.guidance],
            "schedule": schedule_to_json(self.loaded.model.schedule),
            "teacher": asdict(self.spec.teacher),
            "distance": [self.spec.distance, *(zoo.checksum(eye) for eye in eyes)],
            "version": __version__,
        }

    def table(self, cell: Cell, tuned: Tuned) -> Table:
        model = self.loaded.model
        k = knots(model.schedule, tuned.grid)
        return compile_table(cell.solver, k, model.prediction, tuned.corrections)


def cells_of(spec: CompareSpec) -> list[Cell]:
    """All of them; methods that look at nothing but the schedule run once, others a seed each."""
    return [
        Cell(method, solver, nfe, seed)
        for solver in spec.made_solvers
        for nfe in spec.nfe
        for method in spec.names
        for seed in (range(spec.seeds) if needs_of(method) else (None,))
    ]


def needs_of(method: str) -> list[str]:
    """What of a problem it looks at besides schedule and steps."""
    return sorted(SEARCHES[method].needs) if method in SEARCHES else []


def found_of(
    ground: Ground,
    cell: Cell,
    tell: Callable[[int, int], None] = lambda done, total: None,
    fresh: bool = False,
) -> Found:
    """What the method came to, from disk if it was run before."""
    spec, steps = ground.spec, steps_of(cell.solver, cell.nfe)
    key = ground.identity | {
        "method": cell.method,
        "nfe": cell.nfe,
        "steps": steps,
    }
    if "solver" in needs_of(cell.method):
        key |= {"solver": [cell.solver.name, cell.solver.order, cell.solver.variant]}
    if cell.seed is not None:
        key |= {"seed": cell.seed, "pairs": spec.pairs, "valid": spec.valid}
    file = spec.out / "cells" / f"found-{digest(key)}.json"
    if file.exists() and not fresh:
        with suppress(StoreError, KeyError, TypeError, ValueError, Ld3Error):
            return _read_found(read_json(file), ground, steps)
    train, valid = (ground.nothing,) * 2 if cell.seed is None else ground.pairs(cell.seed)
    model = ground.loaded.model
    problem = Problem(model, cell.solver, steps, ground.distance, train, valid, spec.guidance)
    begin = time.perf_counter()
    try:
        out = find(cell.method, problem, cell.seed or 0, tell)
        out.tuned.grid.checked(model.schedule, steps)
    except StoreError:
        raise
    except Ld3Error as error:
        write_json(file, {"cell": key, "failed": str(error)})
        return Found(None, failed=str(error))
    seconds = time.perf_counter() - begin
    content = {
        "cell": key,
        "times": out.tuned.grid.times.tolist(),
        "net_times": out.tuned.grid.net_times.tolist(),
        "corrections": Plan.rows(out.tuned),
        "evaluations": int(out.evaluations),
        "seconds": seconds,
        "curve": [float(value) for value in out.curve if math.isfinite(value)],
    }
    write_json(file, content)
    return _read_found(content, ground, steps)


def _read_found(content: Any, ground: Ground, steps: int) -> Found:
    if "failed" in content:
        return Found(None, failed=str(content["failed"]))
    grid = TimeGrid.of(content["times"], content["net_times"])
    grid = grid.checked(ground.loaded.model.schedule, steps)
    corrections = None
    if content["corrections"] is not None:
        rows = content["corrections"]
        corrections = torch.zeros(len(rows), len(rows) + 1, dtype=torch.float64, device="cpu")
        for n, row in enumerate(rows):
            corrections[n, : len(row)] = torch.tensor(row, dtype=torch.float64, device="cpu")
    curve = tuple(float(value) for value in content["curve"])
    evaluations, seconds = int(content["evaluations"]), float(content["seconds"])
    return Found(Tuned(grid, corrections), evaluations, seconds, curve)


def held_of(
    ground: Ground, cell: Cell, tuned: Tuned, fresh: bool = False
) -> dict[str, list[float]]:
    """Distances a held-out noise, from disk if they were measured before; empty if not finite."""
    table = ground.table(cell, tuned)
    file = ground.spec.out / "cells" / f"held-{digest(held_key(ground, table))}.json"
    if file.exists() and not fresh:
        with suppress(StoreError, KeyError, TypeError, ValueError, AttributeError):
            content = read_json(file)["distances"]
            return {key: [float(value) for value in content[key]] for key in content}
    samples = samples_of(ground, table)
    distances: dict[str, list[float]] = {}
    if bool(torch.isfinite(samples).all()):
        for end, reference in (("", ground.held.target), ("_accurate", ground.exact)):
            distances["distance" + end] = _by_batch(ground.distance, samples, reference)
            distances["rmse" + end] = _by_batch(_rmse, samples, reference)
    write_json(file, {"cell": held_key(ground, table), "distances": distances})
    return distances


def held_key(ground: Ground, table: Table) -> dict[str, Any]:
    """What samples on held-out noise, and their distances, depend on."""
    return ground.identity | {
        "table": [table.weights.tolist(), table.net_times.tolist()],
        "held_out": ground.spec.held_out,
        "accurate": asdict(ground.accurate),
    }


def samples_of(ground: Ground, table: Table, numbers: list[int] | None = None) -> Tensor:
    """Decoded samples from held-out noise, or from some of it."""
    model, held = ground.loaded.model, ground.held
    index = torch.arange(len(held), device="cpu") if numbers is None else torch.tensor(numbers)
    draw = sampler(model, table, ground.spec.guidance)
    parts = []
    for part in chunks(len(index), BATCH):
        noise = held.noise[index[part]]
        parts.append(draw(model.schedule.prior_std * noise, take(held.cond, index[part])))
    return torch.cat(parts)


def _rmse(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).double().flatten(1).square().mean(1).sqrt()


@torch.no_grad()
def _by_batch(distance: Distance, a: Tensor, b: Tensor) -> list[float]:
    values = torch.cat([distance(a[part], b[part]) for part in chunks(len(a), BATCH)])
    return [float(value) for value in values.double()]
