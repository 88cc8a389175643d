"""Distance to the fully guided teacher against network passes: guidance fixed or in the plan.

A plan with a fixed scale runs both passes at each of N evaluations: 2 N passes. At how many passes
it would be as good as a plan with learned guidance is read from its curve, by a line through the
logarithm of the distance; beyond the ends of the curve, by its last piece.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from ld3.experiment import Curve, Findings, Panel, ResultTable, Value
from ld3.runs.budget import Chosen, learn_budget
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import LearningOptions, Sessions, in_cache, learn_all
from ld3.runs.experiments.scoring import LABELS, Scoring
from ld3.runs.spec import Count, Scale

NFE, PASSES = "nfe", "passes"  # what is given of a plan with a fixed scale, or with guidance


class GuidancePassesOptions(LearningOptions):
    """Plans of both kinds for each guidance scale."""

    scales: Annotated[tuple[Scale, ...], Field(min_length=1)]
    nfe: Annotated[tuple[Count, ...], Field(min_length=2)]  # of plans with a fixed scale
    passes: Annotated[tuple[Count, ...], Field(min_length=1)]  # of plans with guidance

    def wanted(self, context: Context) -> dict[tuple[float, str, int], tuple[str, dict[str, Any]]]:
        return {
            (scale, name, n): (f"guidance {scale:g}, {name} {n}", {"guidance": scale, name: n})
            for scale in self.scales
            for name, numbers in ((NFE, self.nfe), (PASSES, self.passes))
            for n in numbers
        }


def run_guidance_passes(options: GuidancePassesOptions, context: Context) -> Findings:
    """One row per scale and plan."""
    requests = options.requests(context)
    results = learn_all({key: r for key, r in requests.items() if key[1] == NFE}, context)
    scoring = Scoring.of(context.compare_spec(options.scoring), context)
    sessions, panels = Sessions(ranks=context.ranks), list[Panel]()
    rows: dict[tuple[str, ...], tuple[Value | None, ...]] = {}
    for scale in options.scales:
        here = scoring.at_guidance(scale)
        fixed, own = dict[float, Value](), dict[float, Value]()
        for nfe in options.nfe:
            tuned = [learned.tuned for _, learned in results[scale, NFE, nfe]]
            fixed[2 * nfe] = here.values(tuned)["distance"]
            label = (f"{scale:g}", "fixed", f"{nfe}, all", f"{2 * nfe}")
            rows[label] = (fixed[2 * nfe], None, None)
        for passes in options.passes:
            chosen = []
            for request in requests[scale, PASSES, passes]:
                run = sessions.make_run(request, context.report)
                stored = partial(in_cache, spec=request.spec)
                chosen.append(learn_budget(run, request.spec, stored))
            own[passes] = here.values([one.learned.tuned for one in chosen])["distance"]
            equal = passes_at(fixed, own[passes].value)
            label = (f"{scale:g}", "learned", _sets(chosen), f"{passes}")
            rows[label] = (own[passes], Value(value=equal), Value(value=passes / equal))
        curves = (Curve.of("fixed scale", fixed), Curve.of("guidance in the plan", own))
        title, y = f"guidance {scale:g}", LABELS["distance"]
        panels.append(Panel(title=title, x="passes", y=y, log_y=True, curves=curves))
    head = (
        "scale", "guidance", "NFE, guided", "passes", "distance", "fixed scale: passes for that",
        "ratio of passes",
    )  # fmt: skip
    table = ResultTable.of("Distance to the fully guided teacher", head, rows)
    reference = scoring.session.reference.title
    return Findings(tables=(table,), panels=tuple(panels), reference=reference)


def passes_at(curve: dict[float, Value], distance: float) -> float:
    """Passes at which a falling curve reaches a distance."""
    points = sorted((passes, math.log(value.value)) for passes, value in curve.items())
    pieces = list(pairwise(points))
    goal = math.log(distance)
    # the first piece whose lower end is below the goal, else the last
    (p, a), (q, b) = next((piece for piece in pieces if piece[1][1] <= goal), pieces[-1])
    return p + (q - p) * (goal - a) / (b - a) if a != b else q


def _sets(chosen: Sequence[Chosen]) -> str:
    """Such as `5, 1 2 4`: the number of evaluations, and which are guided."""
    each = (
        f"{one.run.nfe}, {' '.join(str(n + 1) for n in one.run.guided or ())}" for one in chosen
    )
    return "; ".join(dict.fromkeys(each))
