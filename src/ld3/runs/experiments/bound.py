"""The terms of Theorem 1 against the radius, on learned plans and on the best known grid."""

import statistics
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field

from ld3.errors import SpecError
from ld3.experiment import Curve, Findings, Panel, ResultTable, Value
from ld3.known_grids import GRIDS
from ld3.metrics.bound import MAX_EXACT, Bound, Map, random_bounds, true_bound
from ld3.models import Model, bind_network
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import LearningOptions, learn_all
from ld3.runs.experiments.scoring import Scoring
from ld3.runs.plans import known_table
from ld3.runs.session import table_key
from ld3.runs.spec import Count
from ld3.seeds import noise, seeds_for
from ld3.table import Table
from ld3.teacher import Teacher

HELD_OUT = 32  # seeds on which the best known grid is picked
Found = dict[str, list[dict[str, Any]]]  # by student, one per plan


class BoundOptions(LearningOptions):
    """The teacher is UniPC-3 on the logSNR grid."""

    radii: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=2)]
    nfe: Count = 7
    teacher_steps: Annotated[int, Field(ge=1, le=1000)] = 20
    samples: Annotated[int, Field(ge=2, le=10_000)] = 100

    def wanted(self, context: Context) -> dict[str, tuple[str, dict[str, Any]]]:
        changes = {"nfe": [self.nfe]}
        solver = context.run_spec({**self.learn, **changes}).solver
        return {"learned": (f"{solver}, NFE {self.nfe}", changes)}


def run_bound(options: BoundOptions, context: Context) -> Findings:
    """With random points in the ball, as the paper measures it, and with true preimages."""
    requests = options.requests(context)
    scored = {"distance": requests["learned"][0].spec.distance, "held_out": HELD_OUT}
    scoring = Scoring.of(context.compare_spec(scored | options.scoring), context)
    session = scoring.session
    model, d = session.model, torch.Size(session.model.shape).numel()
    if d > MAX_EXACT:
        raise SpecError(
            f"bound: got {context.model} with {d} dimensions, expected at most {MAX_EXACT}: whole "
            "Jacobians"
        )
    results = learn_all(requests, context)["learned"]
    run = results[0][0]
    best = scoring.best_grid(GRIDS, run.solver, run.steps)
    students = {
        "learned": [session.table(learned.tuned) for _, learned in results],
        best: [known_table(session, run.solver, run.steps, best)],
    }
    teacher = _as_map(model, session.table(Teacher(steps=options.teacher_steps)))
    b = noise(seeds_for("bound", options.samples), model.shape, torch.float64)

    def measured(table: Table) -> dict[str, Any]:
        student = _as_map(model, table)
        bounds = random_bounds(teacher, student, b, options.radii)
        gaps = {"gaps": [bound.gap for bound in bounds]}
        try:
            true = true_bound(teacher, student, b)
        except SpecError:  # too few preimages were found
            return gaps
        radius, gap = true.bound.radius, true.bound.gap
        return gaps | {"radius": radius, "gap": gap, "kl": true.kl, "found": true.found}

    found: Found = {}
    for done, (name, tables) in enumerate(students.items()):
        context.report(f"bound: {name}", done, len(students))
        for table in tables:
            key = {
                **session.source, "samples": options.samples, "teacher": options.teacher_steps,
                "radii": list(options.radii), "table": table_key(table),
            }  # fmt: skip
            one = session.cache.json("bound", key, partial(measured, table))
            found.setdefault(name, []).append(one)
    return _findings(options, found, d)


def _as_map(model: Model, table: Table) -> Map:
    """From unit noise to a sample."""
    network = bind_network(model)
    return lambda z: table.run(network, model.schedule.prior_std * z)


def _findings(options: BoundOptions, all_found: Found, d: int) -> Findings:
    at = [r for r in options.radii if r > 0]
    terms = [Bound.of(r, d, 0.0) for r in at]
    curves = [
        Curve(name="r²/2", x=tuple(at), y=tuple(t.ball for t in terms)),
        Curve(name="r √(d+1)", x=tuple(at), y=tuple(t.shift for t in terms)),
    ]
    for name, several in all_found.items():
        for found in several:
            gaps = tuple(g for r, g in zip(options.radii, found["gaps"], strict=True) if r > 0)
            curves.append(Curve(name=f"gap at random a: {name}", x=tuple(at), y=gaps))
            for what, label in (("gap", "gap at true a"), ("kl", "KL itself")):
                if found.get(what, 0) > 0:
                    x, y = (found["radius"],), (found[what],)
                    curves.append(Curve(name=f"{label}: {name}", x=x, y=y, style="points"))
    random = ResultTable.of(
        "Gap E|C − C'| in nats, with a at random in the ball of radius r",
        ("student", *(f"r = {r:g}" for r in options.radii)),
        {
            name: map(Value.over, zip(*(found["gaps"] for found in several), strict=True))
            for name, several in all_found.items()
        },
    )
    exact = ResultTable.of(
        "With true preimages, in nats",
        ("student", "KL(q ‖ p)", "largest ‖a − b‖ = r", "gap", "bound", "preimages found"),
        {name: _exact(several, d) for name, several in all_found.items()},
        note="no preimages",
    )
    learned, radii = all_found["learned"], options.radii
    low, high = radii.index(min(radii)), radii.index(max(radii))
    falls = sum(f["gaps"][low] < f["gaps"][high] for f in learned)
    near, far = (statistics.fmean(f["gaps"][i] for f in learned) for i in (low, high))
    tested = [f for f in learned if "kl" in f]
    holds = sum(f["kl"] <= Bound.of(f["radius"], d, f["gap"]).total for f in tested)
    panel = Panel(
        title=f"d = {d}", x="radius r, in standard deviations", y="nats", log_x=True, log_y=True,
        curves=tuple(curves),
    )  # fmt: skip
    return Findings(
        tables=(random, exact),
        panels=(panel,),
        notes=(
            f"The gap at r = {radii[low]:g} is below that at r = {radii[high]:g} in {falls} of "
            f"{len(learned)} learned plans; on average it is {near:.3g} after {far:.3g} nats.",
            f"With true preimages KL(q ‖ p) is below the bound in {holds} of {len(tested)} plans.",
        ),
    )


def _exact(several: list[dict[str, Any]], d: int) -> list[Value | None]:
    """KL, r, gap, bound and share found, over the seeds; nothing if one has no preimages."""
    if not all("kl" in found for found in several):
        return [None] * 5
    rows = [
        (f["kl"], f["radius"], f["gap"], Bound.of(f["radius"], d, f["gap"]).total, f["found"])
        for f in several
    ]
    return [Value.over(column) for column in zip(*rows, strict=True)]
