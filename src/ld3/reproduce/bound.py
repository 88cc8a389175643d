"""The terms of Theorem 1 against the radius, on learned plans and on the best known grid."""

import statistics
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from ld3.errors import SpecError
from ld3.grids import knots
from ld3.metrics.bound import MAX_EXACT, Bound, Map, random_bounds, true_bound
from ld3.models import Model, bind_network
from ld3.reproduce.ahead import Asked, learn_all
from ld3.reproduce.kept import kept
from ld3.reproduce.result import Line, Made, Panel, Row, Table, Value
from ld3.reproduce.stage import Stage
from ld3.searches import METHODS, make_grid
from ld3.seeds import noise
from ld3.solvers import make_solver
from ld3.table import Table as SolverTable
from ld3.table import compile_table
from ld3.zoo.loading import load_model

FIRST_SEED = 5_000_000_000  # away from those of learning and of scores


class BoundWords(BaseModel):
    """`learn` are words of `ld3 learn`; the teacher is UniPC-3 on the logSNR grid."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: dict[str, Any]
    radii: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=2)]
    nfe: Annotated[int, Field(ge=1, le=100)] = 7
    teacher_steps: Annotated[int, Field(ge=1, le=1000)] = 20
    samples: Annotated[int, Field(ge=2, le=10_000)] = 100
    seeds: Annotated[int, Field(ge=1, le=20)] = 1

    def checked(self, stage: Stage) -> None:
        self.asked(stage, 0)

    def asked(self, stage: Stage, seed: int) -> Asked:
        spec = stage.run_spec({**self.learn, "nfe": [self.nfe], "seed": seed})
        return Asked(f"{spec.solver}, {self.nfe} evaluations, seed {seed}", spec)


def run_bound(words: BoundWords, stage: Stage) -> Made:
    """With random points in the ball, as the paper measures it, and with true preimages."""
    loaded = load_model(stage.model, stage.device)
    model, d = loaded.model, torch.Size(loaded.model.shape).numel()
    if d > MAX_EXACT:
        raise SpecError(
            f"bound: got {stage.model} with {d} dimensions, wanted at most {MAX_EXACT}: whole "
            "Jacobians"
        )
    asked = [words.asked(stage, seed) for seed in range(words.seeds)]
    plans = learn_all(asked, stage.jobs, stage.tell)
    teacher = _on_grid(model, "unipc", None, "logsnr", words.teacher_steps)
    scores = {name: score["distance"] for name, score in plans[0].scores.items()}
    best = min((name for name in scores if name in METHODS), key=lambda name: scores[name])
    solver = plans[0].solver
    students: dict[str, list[SolverTable]] = {
        "learned": [plan.table() for plan in plans],
        best: [_on_grid(model, solver.name, solver.order, best, words.nfe)],
    }
    b = noise(range(FIRST_SEED, FIRST_SEED + words.samples), model.shape, torch.float64)

    def measured(table: SolverTable) -> dict[str, Any]:
        student, reference = _as_map(model, table), _as_map(model, teacher)
        bounds = random_bounds(reference, student, b, words.radii)
        gaps = {"gaps": [bound.gap for bound in bounds]}
        try:
            true = true_bound(reference, student, b)
        except SpecError:  # too few preimages were found
            return gaps
        radius, gap = true.bound.radius, true.bound.gap
        return gaps | {"radius": radius, "gap": gap, "kl": true.kl, "found": true.found}

    said: dict[str, list[dict[str, Any]]] = {}
    for done, (name, tables) in enumerate(students.items()):
        stage.tell(f"bound: {name}", done, len(students))
        for table in tables:
            key = {
                "what": "bound", "model": loaded.digest, "samples": words.samples,
                "teacher": words.teacher_steps, "radii": list(words.radii),
                "table": [table.weights.tolist(), table.net_times.tolist()],
            }  # fmt: skip
            found = kept(stage.cache, key, partial(measured, table))
            said.setdefault(name, []).append(found)
    return _shown(words, said, d)


def _as_map(model: Model, table: SolverTable) -> Map:
    """From unit noise to a sample."""
    network = bind_network(model)
    return lambda z: table.run(network, model.schedule.prior_std * z)


def _on_grid(model: Model, solver: str, order: int | None, grid: str, steps: int) -> SolverTable:
    k = knots(model.schedule, make_grid(grid, model.schedule, steps))
    return compile_table(make_solver(solver, order), k, model.prediction)


def _shown(words: BoundWords, said: dict[str, list[dict[str, Any]]], d: int) -> Made:
    at = [r for r in words.radii if r > 0]
    terms = [Bound.of(r, d, 0.0) for r in at]
    lines = [
        Line(name="r²/2", x=tuple(at), y=tuple(t.ball for t in terms)),
        Line(name="r √(d+1)", x=tuple(at), y=tuple(t.shift for t in terms)),
    ]
    rows, true = [], []
    for name, several in said.items():
        for found in several:
            gaps = tuple(g for r, g in zip(words.radii, found["gaps"], strict=True) if r > 0)
            lines.append(Line(name=f"gap at random a: {name}", x=tuple(at), y=gaps))
            for what in ("gap", "kl"):
                label = f"{'gap at true a' if what == 'gap' else 'KL itself'}: {name}"
                if found.get(what, 0) > 0:
                    x, y = (found["radius"],), (found[what],)
                    lines.append(Line(name=label, x=x, y=y, style="points"))
        over = [Value.over(list(gaps)) for gaps in zip(*(f["gaps"] for f in several), strict=True)]
        rows.append(Row(label=(name,), cells=tuple(over)))
        true.append(Row(label=(name,), cells=_exact(several, d), note="no preimages"))
    random = Table(
        title="Gap E|C − C'| in nats, with a at random in the ball of radius r",
        head=("student", *(f"r = {r:g}" for r in words.radii)), rows=tuple(rows),
    )  # fmt: skip
    exact = Table(
        title="With true preimages, in nats",
        head=("student", "KL(q ‖ p)", "largest ‖a − b‖ = r", "gap", "bound", "preimages found"),
        rows=tuple(true),
    )
    learned = said["learned"]
    radii = words.radii
    low, high = radii.index(min(radii)), radii.index(max(radii))
    falls = sum(f["gaps"][low] < f["gaps"][high] for f in learned)
    near, far = (statistics.fmean(f["gaps"][i] for f in learned) for i in (low, high))
    tested = [f for f in learned if "kl" in f]
    holds = sum(f["kl"] <= Bound.of(f["radius"], d, f["gap"]).total for f in tested)
    panel = Panel(
        title=f"d = {d}", x="radius r, in standard deviations", y="nats", log_x=True, log_y=True,
        lines=tuple(lines),
    )  # fmt: skip
    return Made(
        tables=(random, exact),
        panels=(panel,),
        notes=(
            f"The gap at r = {radii[low]:g} is below that at r = {radii[high]:g} in {falls} of "
            f"{len(learned)} learned plans; on average it is {near:.3g} after {far:.3g} nats.",
            f"With true preimages KL(q ‖ p) is below the bound in {holds} of {len(tested)} plans.",
        ),
    )


def _exact(several: list[dict[str, Any]], d: int) -> tuple[Value | None, ...]:
    """KL, r, gap, bound and share found, over the seeds; nothing if one has no preimages."""
    if not all("kl" in found for found in several):
        return (None,) * 5
    bounds = [Bound.of(found["radius"], d, found["gap"]).total for found in several]
    kl, radius, gap, share = (
        [found[key] for found in several] for key in ("kl", "radius", "gap", "found")
    )
    return tuple(Value.over(column) for column in (kl, radius, gap, bounds, share))
