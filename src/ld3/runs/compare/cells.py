"""Cells of a comparison: one method, solver, number of evaluations and seed each.

What a method finds and what that scores are two entries of the cache, each under a digest of all it
depends on. A method that does not look at the solver searches once for all solvers. So a comparison
that was stopped is resumed, a second one shares the cells of the first, and more held-out seeds do
not search again.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ld3.errors import Ld3Error, StoreError
from ld3.plan import tuned_from_json, tuned_to_json
from ld3.problem import Problem
from ld3.runs.cloud_metrics import CloudMetrics
from ld3.runs.compare.methods import LEARNED
from ld3.runs.compare.spec import CompareSpec, needs_of
from ld3.runs.run import Run, learn_run, read_start, solver_key
from ld3.runs.session import Session
from ld3.runs.set_metrics import SetMetrics, Values
from ld3.runs.spec import solver_title, steps_of
from ld3.searches.registry import find
from ld3.share import alone
from ld3.solvers import Solver
from ld3.table import TunedSolver

Inside = Callable[[int, int], None]


@dataclass(frozen=True)
class Cell:
    """What is run once."""

    method: str
    solver: Solver
    nfe: int
    seed: int | None  # None: the method is not random

    @property
    def name(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.method}, {solver_title(self.solver)}, NFE {self.nfe}{seed}"


@dataclass(frozen=True)
class CellResult:
    """What a method found in a cell, or why it failed."""

    tuned: TunedSolver | None
    evaluations: int = 0
    seconds: float = 0.0
    curve: tuple[float, ...] = ()
    start: str = ""  # where a learned method began
    secant: float = 0.0  # of its slopes in time; 0: exact
    failed: str = ""


@dataclass(frozen=True)
class Scored:
    """A cell with its scores; empty ones if a sample is not finite."""

    cell: Cell
    found: CellResult
    held: Mapping[str, Sequence[float]]  # one value per held-out seed
    sets: Values  # of set metrics, with --full


def cells_of(spec: CompareSpec) -> list[Cell]:
    """All of them; methods that look at nothing but the schedule run once, others once per seed."""
    return [
        Cell(method, solver, nfe, seed)
        for solver in spec.made_solvers
        for nfe in spec.nfe
        for method in spec.names
        for seed in (range(spec.seeds) if needs_of(method) else (None,))
    ]


def score_cell(
    session: Session,
    spec: CompareSpec,
    cell: Cell,
    sets: SetMetrics | CloudMetrics | None,
    inside: Inside = lambda done, total: None,
) -> Scored:
    """Run a cell, or read what is there."""
    found = find_cell(session, spec, cell, inside)
    if found.tuned is None:
        return Scored(cell, found, {}, {})
    table = session.table(found.tuned)
    held = session.score(table, spec.held_out)
    return Scored(cell, found, held, sets.values(table) if sets is not None and held else {})


def found_cells(
    session: Session, spec: CompareSpec, *methods: str
) -> Iterator[tuple[Cell, CellResult]]:
    """Each cell, or those of some methods, with what was found; finished ones are read."""
    for cell in cells_of(spec):
        if not methods or cell.method in methods:
            yield cell, find_cell(session, spec, cell)


def find_cell(
    session: Session, spec: CompareSpec, cell: Cell, inside: Inside = lambda done, total: None
) -> CellResult:
    """What the method of a cell finds."""
    run = _learned if cell.method in LEARNED else _searched
    try:
        return run(session, spec, cell, inside)
    except StoreError:
        raise
    except Ld3Error as error:
        return CellResult(None, failed=str(error))


def _learned(session: Session, spec: CompareSpec, cell: Cell, inside: Inside) -> CellResult:
    preset = LEARNED[cell.method].preset(spec, session, cell.nfe)

    quiet = session.reporting(lambda what, done, total: inside(done, total))
    run = Run(quiet, cell.solver, cell.nfe, preset, cell.seed or 0, read_start(spec.start))
    folder = session.cache.own_folder("learned", run.key)
    run = run if folder is None else run.stored(folder)
    learned = learn_run(run)
    return CellResult(
        learned.tuned, learned.evaluations, learned.seconds, learned.curve, learned.start,
        learned.secant,
    )  # fmt: skip


def _searched(session: Session, spec: CompareSpec, cell: Cell, inside: Inside) -> CellResult:
    steps, needs = steps_of(cell.solver, cell.nfe), needs_of(cell.method)
    key: dict[str, Any] = {**session.identity, "method": cell.method, "steps": steps}
    if "solver" in needs:
        key["solver"] = solver_key(cell.solver, session, steps)
    if cell.seed is not None:
        key |= {"seed": cell.seed, "pairs": [spec.pairs, spec.valid]}

    def search(problem: Problem) -> dict[str, Any]:
        begin = time.perf_counter()
        try:
            found = find(cell.method, problem, cell.seed or 0, inside)
            found.tuned.grid.checked(session.model.schedule, steps)
        except StoreError:
            raise
        except Ld3Error as error:
            return {"failed": str(error)}
        return {
            **tuned_to_json(found.tuned),
            "evaluations": int(found.evaluations),
            "seconds": time.perf_counter() - begin,
            "curve": [float(value) for value in found.curve if math.isfinite(value)],
        }

    def make() -> Any:
        problem = session.problem(cell.solver, steps, spec.pairs, spec.valid, cell.seed)
        return session.ranks.first(lambda: search(replace(problem, share=alone)))

    content = session.cache.json("found", key, make)
    if "failed" in content:
        return CellResult(None, failed=str(content["failed"]))
    tuned = tuned_from_json(content, cell.solver)
    curve = tuple(float(value) for value in content["curve"])
    return CellResult(tuned, content["evaluations"], content["seconds"], curve)
