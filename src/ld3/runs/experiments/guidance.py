"""Plans learned for one guidance scale, or for a range, used with others."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ld3.experiment import Curve, Findings, Panel, ResultRow, ResultTable, Value
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import RunRequest, learn_all
from ld3.runs.experiments.scoring import LABELS, Scoring, title_of
from ld3.runs.spec import Count, Scale


class GuidanceOptions(BaseModel):
    """`learn` are options of `ld3 learn`, `scoring` of `ld3 compare`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learn: dict[str, Any]
    scoring: dict[str, Any]
    learned_for: Annotated[tuple[str, ...], Field(min_length=1)]  # such as "1" or "1-4"
    scales: Annotated[tuple[Scale, ...], Field(min_length=1)]
    nfe: Count = 6
    seeds: Annotated[int, Field(ge=1, le=20)] = 1

    def checked(self, context: Context) -> None:
        context.compare_spec(self.scoring)
        for scale in self.learned_for:
            self.request(context, scale, 0)

    def request(self, context: Context, scale: str, seed: int) -> RunRequest:
        options = {**self.learn, "nfe": [self.nfe], "seed": seed, "guidance": scale}
        return RunRequest(f"guidance {scale}, seed {seed}", context.run_spec(options))


def run_guidance(options: GuidanceOptions, context: Context) -> Findings:
    """Rows: learned for; columns: used with."""
    seeds = range(options.seeds)
    requests = [options.request(context, scale, s) for scale in options.learned_for for s in seeds]
    results = iter(learn_all(requests, context))
    scoring = Scoring.of(context.compare_spec(options.scoring), context.report, context.ranks)
    solver = requests[0].spec.make_solver()
    rows: dict[str, list[Value | None]] = {}
    for scale in options.learned_for:
        tuned = [next(results)[1].tuned for _ in seeds]
        rows[scale] = [
            scoring.at_guidance(used).values(tuned).get("distance") for used in options.scales
        ]
    rows["best known grid"] = [
        scoring.at_guidance(used).known("best known", solver, options.nfe).get("distance")
        for used in options.scales
    ]
    table = ResultTable(
        title=title_of("distance"),
        head=("learned for", *(f"used with {scale:g}" for scale in options.scales)),
        rows=tuple(ResultRow(label=(name,), cells=tuple(row)) for name, row in rows.items()),
        best="lower",
    )
    curves = [
        Curve.of(name, dict(zip(options.scales, row, strict=True))) for name, row in rows.items()
    ]
    panel = Panel(
        title="", x="guidance scale", y=LABELS["distance"], log_y=True, curves=tuple(curves)
    )
    reference = scoring.session.reference.title
    return Findings(tables=(table,), panels=(panel,), reference=reference)
