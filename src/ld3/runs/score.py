"""A plan beside all known grids on held-out seeds, at its guidance scale and at others."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ld3.known_grids import GRIDS, METHODS
from ld3.models import Model
from ld3.plan import Plan
from ld3.runs.cache import Cache
from ld3.runs.expected import score_parts
from ld3.runs.plans import known_table, score_tables
from ld3.runs.progress import Report, expect, silent
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.sample import named_model, options_for
from ld3.runs.session import open_session
from ld3.runs.spec import RunSpec
from ld3.scores import GuidanceScores, best_of

KEPT = (  # of the options that a plan was learned with
    "preset", "distance", "dtype", "gradient_free", "reference_steps",
    "teacher_solver", "teacher_order", "teacher_variant", "teacher_grid", "teacher_steps",
)  # fmt: skip


def run_score(
    plan: Plan,
    guidances: Sequence[float] = (),
    held_out: int = 64,
    device: str = "cpu",
    out: Path | str = "runs",
    force: bool = False,
    report: Report = silent,
    model: Model | str | None = None,
    batch: int | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[GuidanceScores]:
    """A plan against every known grid, by its own teacher and distance, at each guidance scale.

    Without `guidances`, at that of the plan. `force` takes a model that the plan was not learned
    for; `model` is one to use instead of the one that the plan names.
    """
    named = model if isinstance(model, str) else plan.model.name if model else named_model(plan)
    options: dict[str, Any] = {
        "model": named, "pipeline": options_for(plan, named), "held_out": held_out,
        "device": device, "out": out, "batch": batch,
    }  # fmt: skip
    options |= {name: plan.learned.spec[name] for name in KEPT if name in plan.learned.spec}
    spec = RunSpec.read(options)
    session = open_session(
        spec, spec.make_preset(_taught_nfe(plan)).teacher,
        Cache.open(spec.out / "cache", ranks=ranks), report,
        model=None if isinstance(model, str) else model, gradients=False,
    )  # fmt: skip
    if not force:
        plan.check_fits(session.model, session.loaded.digest)
    solver, steps = plan.make_solver(), len(plan.times) - 1
    tables = {name: known_table(session, solver, steps, name) for name in GRIDS}
    tables["plan"] = plan.table()
    scales = guidances or (plan.model.guidance,)
    one = score_parts(held_out, session.teacher, spec.reference_steps, plan.nfe)
    expect(report, list(one) * len(scales))
    for scale in scales:
        grids = score_tables(session.at_guidance(scale), tables, held_out)
        yield GuidanceScores(scale, grids.pop("plan"), grids, best_of(grids, METHODS))


def _taught_nfe(plan: Plan) -> int:
    """The number of evaluations that chose the teacher: of a family the largest."""
    family = plan.learned.spec.get("family")
    if not isinstance(family, list | tuple) or len(family) != 2 or not isinstance(family[1], int):
        return plan.nfe
    return max(plan.nfe_per_step, family[1] - family[1] % plan.nfe_per_step)
