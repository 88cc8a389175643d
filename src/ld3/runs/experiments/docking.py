"""Docking: few steps against the teacher on several complexes, by RMSD and by ranked success.

Every complex is a comparison of its own (:func:`ld3.runs.compare.run.run_compare`), so that pairs,
plans and samples are cached as everywhere. Numbers are means over complexes; intervals are over
complexes and learning seeds, because complexes differ far more than noise does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ld3.errors import SpecError
from ld3.experiment import Findings, Frozen, ResultTable, Value
from ld3.metrics.bootstrap import Weights, mean, ratio
from ld3.metrics.docking import SUCCESS, success_rate, symmetric_rmsd, top_rmsd
from ld3.models import bind_network, start
from ld3.report.poses import draw_poses
from ld3.runs.compare.cells import found_cells
from ld3.runs.compare.run import compare_session, run_compare, write_files
from ld3.runs.compare.spec import CompareSpec, kind_of
from ld3.runs.experiments.context import Context
from ld3.runs.session import Session, batches, table_key
from ld3.runs.spec import solver_title
from ld3.seeds import noise, seeds_for
from ld3.spaces import space_of
from ld3.table import Table
from ld3.zoo.docking.model import DockingModel, is_docking

RANKED = (1, 5)
NEAR = 5.0  # Angstrom: poses that are drawn
TEACHER, REFERENCE = "teacher", "reference"
ERRORS = {"error": "RMSD", "median": "median RMSD", "near": f"% below {SUCCESS:g} A"}


class DockingOptions(Frozen):
    """`compare` are options of `ld3 compare`; `complexes` names models, none: the one given."""

    compare: dict[str, Any]
    complexes: tuple[str, ...] = ()
    solvers: Annotated[tuple[str, ...], Field(min_length=1)]  # each also makes its own teacher
    poses: Annotated[int, Field(ge=5, le=1000)] = 40  # of a complex, that are ranked

    def checked(self, context: Context) -> None:
        for solver in self.solvers:
            for place in self.places(context):
                spec = self.spec(place, solver)
        if spec.held_out < self.poses:
            raise SpecError(f"poses: got {self.poses}, expected at most held_out = {spec.held_out}")

    def places(self, context: Context) -> list[Context]:
        """One for each complex."""
        return [replace(context, model=name) for name in self.complexes or (context.model,)]

    def spec(self, place: Context, solver: str) -> CompareSpec:
        """The student's solver makes the teacher's poses, too."""
        own = {"solvers": [solver], "teacher_solver": solver}
        return place.compare_spec({**self.compare, **own})


def run_docking(options: DockingOptions, context: Context) -> Findings:
    """Errors from the same noise, success of ranked poses, and poses drawn."""
    tables, notes, images = [], [], []
    for solver in options.solvers:
        found: dict[str, list[dict[str, list[float]]]] = {}  # method -> complex -> metric -> seeds
        names = []
        for number, place in enumerate(options.places(context)):
            spec = options.spec(place, solver)
            title = solver_title(spec.made_solvers[0])
            name = spec.model.rpartition(":")[2].replace("/", "-")
            write_files(run_compare(spec, context.report), context.folder / f"{name}-{title}")
            session = compare_session(spec, context.report)
            names.append(_docking(session).ligand.name)
            values = complex_values(session, spec, options.poses)
            for method, own in values.items():
                found.setdefault(method, []).append(own)
            if number == 0:
                images.append(f"{title}-poses.png")
                _draw(session, spec, context.folder / images[-1])
        title = f"{title}, {spec.nfe[0]} steps"
        tables += [error_table(title, found), ranked_table(title, found)]
        notes.append(verdict(title, found, len(names)))
    first = f"Complexes: {', '.join(names)}. Poses drawn are of the first."
    return Findings(
        tables=tuple(t for t in tables if t is not None), images=tuple(images),
        notes=(first, *notes), reference=session.reference.title,
    )  # fmt: skip


def complex_values(session: Session, spec: CompareSpec, poses: int) -> dict[str, dict[str, Any]]:
    """By method: each metric, one value per seed; and RMSDs to the teacher, for a verdict."""
    own = {TEACHER: [session.table(session.teacher)]}
    for cell, result in found_cells(session, spec):
        if result.tuned is not None:
            own.setdefault(cell.method, []).append(session.table(result.tuned))
    found = {}
    for method, several in own.items():
        each = [table_values(session, table, spec.held_out, poses) for table in several]
        found[method] = {key: [one[key] for one in each] for key in each[0]}
    return found


def table_values(session: Session, table: Table, held_out: int, poses: int) -> dict[str, float]:
    """Of one table: RMSD to the teacher and to the reference, and success of ranked poses."""
    model = _docking(session)
    key = {
        **session.identity, "reference": session.reference.title, "held_out": held_out,
        "poses": poses, "what": "docking", "table": table_key(table),
    }  # fmt: skip

    def make() -> dict[str, float]:
        atoms, confidence = poses_of(session, table, held_out)
        symmetries = model.ligand.symmetries
        values: dict[str, float] = {}
        for name, target in (
            ("teacher", session.held_out(held_out).target), ("reference", session.exact(held_out)),
        ):  # fmt: skip
            rmsd = symmetric_rmsd(atoms, target, symmetries)
            values |= {
                f"error_{name}": float(rmsd.mean()), f"median_{name}": float(rmsd.median()),
                f"near_{name}": 100 * success_rate(rmsd),
            }  # fmt: skip
        if model.crystal is not None and confidence is not None:
            rmsd = symmetric_rmsd(atoms, model.crystal, symmetries)
            whole = held_out // poses * poses
            rmsd, order = (each[:whole].view(-1, poses) for each in (rmsd, confidence))
            for k in RANKED:
                values[f"top_{k}"] = 100 * success_rate(top_rmsd(rmsd, order, k))
        return values

    found: dict[str, float] = session.cache.json("scores", key, make)
    return found


@torch.no_grad()
def poses_of(session: Session, table: Table, count: int) -> tuple[Tensor, Tensor | None]:
    """Poses from held-out seeds (B, n, 3), and their confidence (B,) if the model ranks."""
    model = _docking(session)
    atoms, ranks = [], []
    for seeds in batches(seeds_for("held-out", count), session.batch):
        network = bind_network(model, model.conditions(seeds), guidance=session.guidance)
        x = start(model, noise(seeds, model.shape, device=session.device))
        x = table.run(network, x, space_of(model))
        atoms.append(model.decode(x))
        ranks += [model.confidence(x)] if model.confidence is not None else []
    return torch.cat(atoms), torch.cat(ranks) if ranks else None


def matrix(several: Sequence[Mapping[str, Sequence[float]]], key: str) -> np.ndarray:
    """Values (S, n) over seeds and complexes."""
    return np.array([own[key] for own in several], dtype=np.float64).T


def value_of(several: Sequence[Mapping[str, Sequence[float]]], key: str) -> Value:
    """The mean over complexes, its spread over seeds, and its interval over both."""
    values = matrix(several, key)
    weights = Weights.drawn(values.shape[1], values.shape[0])
    return Value.over(values.mean(1).tolist(), mean(values, weights))


def error_table(title: str, found: Mapping[str, Any]) -> ResultTable:
    """Poses against those of the teacher and of the reference, from the same noise."""
    keys = [f"{key}_{to}" for to in (TEACHER, REFERENCE) for key in ERRORS]
    head = [f"{label}, {to}" for to in (TEACHER, REFERENCE) for label in ERRORS.values()]
    rows: dict[str, list[Value | None]] = {
        method: [value_of(several, key) for key in keys] for method, several in found.items()
    }
    rows[TEACHER][:3] = [None] * 3  # to itself
    title = f"RMSD in A to the teacher's and the reference's pose from the same noise, {title}"
    return ResultTable.of(title, ("method", *head), rows)


def ranked_table(title: str, found: Mapping[str, Any]) -> ResultTable | None:
    """Success among ranked poses, if there is a true pose and a ranking."""
    keys = [f"top_{k}" for k in RANKED]
    if not all(key in own for several in found.values() for own in several for key in keys):
        return None
    rows = {method: [value_of(several, key) for key in keys] for method, several in found.items()}
    head = ("method", *(f"top-{k}, % below {SUCCESS:g} A" for k in RANKED))
    return ResultTable.of(f"Ranked poses, {title}", head, rows)


def verdict(title: str, found: Mapping[str, Any], complexes: int) -> str:
    """Learned methods against the default, which is the first method, and the best baseline, by
    mean RMSD to the teacher."""
    errors = {m: matrix(own, "error_teacher") for m, own in found.items() if m != TEACHER}
    baselines = [method for method in errors if kind_of(method) != "learned"]
    learned = [method for method in errors if kind_of(method) == "learned"]
    if not baselines or not learned:
        return f"{title}: there is nothing to compare."
    best = min(baselines, key=lambda method: float(errors[method].mean()))
    said = []
    for method in learned:
        own = errors[method]
        weights = Weights.drawn(own.shape[1], own.shape[0])
        for base in dict.fromkeys((baselines[0], best)):
            part = ratio(own, errors[base], weights)
            ahead = int((own.mean(0) < errors[base].mean(0)).sum())
            said.append(
                f"`{method}` is at {part.value:.2f} of `{base}` (95 %: {part.low:.2f} to "
                f"{part.high:.2f}; lower on {ahead} of {complexes} complexes)"
            )
    return f"{title}, mean RMSD to the teacher: {'; '.join(said)}."


def _draw(session: Session, spec: CompareSpec, path: Path) -> None:
    """Poses of the teacher, the first method and the last learned one, from two seeds: one of
    median gain, and the one of largest gain among those that stay near the teacher."""
    model, shown = _docking(session), {TEACHER: session.held_out(spec.held_out).target}
    learned = [method for method in spec.names if kind_of(method) == "learned"]
    for method in (spec.names[0], *learned[-1:]):
        _, result = next(found_cells(session, spec, method))
        if result.tuned is not None:
            shown[method], _ = poses_of(session, session.table(result.tuned), spec.held_out)
    names = list(shown)[1:]
    rmsd = {n: symmetric_rmsd(shown[n], shown[TEACHER], model.ligand.symmetries) for n in names}
    gain = rmsd[names[0]] - rmsd[names[-1]]
    far = (rmsd[names[0]] > NEAR) | (rmsd[names[-1]] > NEAR)
    picked = {
        "median gain": int(torch.argsort(gain)[len(gain) // 2]),
        "largest gain nearby": int(gain.masked_fill(far, -torch.inf).argmax()),
    }
    panels = []
    for what, number in picked.items():
        errors = ", ".join(f"{name} {float(rmsd[name][number]):.2f}" for name in names)
        poses = {name: atoms[number] for name, atoms in shown.items()}
        panels.append((f"{what}; RMSD in A: {errors}", poses))
    draw_poses(path, panels, model.ligand.edges)


def _docking(session: Session) -> DockingModel:
    if not is_docking(session.model):
        raise SpecError(
            f"docking: got the model {session.loaded.name}, expected one of poses of a ligand; see "
            "the page on docking"
        )
    return cast(DockingModel, session.model)
