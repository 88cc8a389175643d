"""Schedules that others made, as plans: lists of noise levels, published tables, stock schedulers.

    plan, notes = import_plan("ays-sd15", steps=10, schedule=schedule, model=part)

An imported plan can be scored, compared, exported, used in a tool, and used as a start for
learning. Nothing in a source is run, and no table comes with the package but those of
:mod:`ld3.known_grids`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ld3.errors import SpecError
from ld3.importing.files import read_numbers, read_table
from ld3.importing.lists import Kind, Read, from_list
from ld3.importing.tables import from_table
from ld3.known_grids import METHODS, make_grid
from ld3.plan import ModelPart, Plan, Provenance, SolverPart, rows_of
from ld3.schedule_json import schedule_to_json
from ld3.schedules import Schedule
from ld3.solvers import Solver, make_solver

__all__ = ["STOCK", "Imported", "import_plan"]

STOCK = "diffusers:"  # what names of stock schedulers begin with


@dataclass(frozen=True)
class Imported:
    """A plan, and what was changed on the way, in single lines."""

    plan: Plan
    notes: tuple[str, ...] = ()


def import_plan(
    source: str,
    *,
    schedule: Schedule,
    model: ModelPart,
    steps: int | None = None,
    solver: Solver | None = None,
    kind: Kind = "auto",
    shift: float | None = None,
) -> Imported:
    """A plan for a model from a published schedule.

    `source` is the name of a known grid, `diffusers:` with the class of a stock scheduler or the
    folder of one, the file of a list or of a table (FILE#NAME: of several), or a list such as
    `14.6,2.9,0.03`. `kind` says what the numbers of a list are. `steps` is needed where the source
    has several. `solver` is that of the plan: by default the scheduler's own, iPNDM for a table,
    else DPM-Solver++. `shift` is that of the flow on which a table of weights was learned, by
    default the model's.
    """
    if kind not in get_args(Kind):
        raise SpecError(f"kind: got {kind!r}, expected one of {', '.join(get_args(Kind))}")
    if source in METHODS:
        grid = make_grid(source, schedule, _given(steps, source))
        read = Read(grid, (f"{source}: {METHODS[source].source}",))
        return _plan(source, read, solver or make_solver("dpmpp"), schedule, model)
    if source.startswith(STOCK):
        from ld3.importing.stock import from_scheduler

        name = source.removeprefix(STOCK)
        stock = from_scheduler(name, _given(steps, source), schedule, model.prediction)
        made = _plan(source, stock.read, solver or stock.solver, schedule, model)
        return Imported(made.plan, (*made.notes, stock.difference(made.plan)))
    file, _, name = source.partition("#")
    path = Path(file).expanduser()
    if path.is_file():
        table = read_table(path, steps, name)
        if table is not None:
            solver = solver or make_solver("ipndm")
            read = from_table(table, solver, shift, schedule)
            return _plan(source, read, solver, schedule, model)
    read = from_list(read_numbers(source), kind, schedule)
    if steps not in (None, read.grid.steps):
        raise SpecError(f"steps: got {steps} for a list of {read.grid.steps} steps, expected that")
    return _plan(source, read, solver or make_solver("dpmpp"), schedule, model)


def _given(steps: int | None, source: str) -> int:
    if steps is None:
        raise SpecError(f"steps: got none for {source}, expected how many, such as --steps 8")
    return steps


def _plan(
    source: str, read: Read, solver: Solver, schedule: Schedule, model: ModelPart
) -> Imported:
    plan = Plan(
        nfe=solver.nfe(read.grid.steps),
        solver=SolverPart(name=solver.name, order=solver.order, variant=solver.variant),
        times=read.grid.times.tolist(),
        net_times=read.grid.net_times.tolist(),
        corrections=rows_of(read.corrections),
        schedule=schedule_to_json(schedule),
        model=model,
        learned=Provenance(start=f"imported from {source}"[:500]),
    )
    return Imported(Plan.checked(plan.model_dump(mode="json"), source), read.notes)
