"""Plans learned for one guidance scale, or for a range, used with others."""

from typing import Annotated, Any

from pydantic import Field

from ld3.experiment import Curve, Findings, Panel, ResultTable, Value
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import LearningOptions, learn_all
from ld3.runs.experiments.scoring import LABELS, Scoring, title_of
from ld3.runs.spec import Count, Scale


class GuidanceOptions(LearningOptions):
    """Plans for each of `learned_for`, each used with all `scales`."""

    learned_for: Annotated[tuple[str, ...], Field(min_length=1)]  # such as "1" or "1-4"
    scales: Annotated[tuple[Scale, ...], Field(min_length=1)]
    nfe: Count = 6

    def wanted(self, context: Context) -> dict[str, tuple[str, dict[str, Any]]]:
        return {
            scale: (f"guidance {scale}", {"nfe": [self.nfe], "guidance": scale})
            for scale in self.learned_for
        }


def run_guidance(options: GuidanceOptions, context: Context) -> Findings:
    """Rows: learned for; columns: used with."""
    results = learn_all(options.requests(context), context)
    scoring = Scoring.of(context.compare_spec(options.scoring), context)
    used = [scoring.at_guidance(scale) for scale in options.scales]
    rows: dict[str, list[Value | None]] = {}
    for scale, own in results.items():
        tuned = [learned.tuned for _, learned in own]
        rows[scale] = [here.values(tuned).get("distance") for here in used]
    solver = results[options.learned_for[0]][0][0].solver
    known = [here.known("best known", solver, options.nfe) for here in used]
    rows["best known grid"] = [values.get("distance") for values in known]
    head = ("learned for", *(f"used with {scale:g}" for scale in options.scales))
    table = ResultTable.of(title_of("distance"), head, rows, "lower")
    curves = [
        Curve.of(name, dict(zip(options.scales, row, strict=True))) for name, row in rows.items()
    ]
    panel = Panel(
        title="", x="guidance scale", y=LABELS["distance"], log_y=True, curves=tuple(curves)
    )
    reference = scoring.session.reference.title
    return Findings(tables=(table,), panels=(panel,), reference=reference)
