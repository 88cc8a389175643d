"""A comparison on the terminal: one block for each solver and number of evaluations."""

from collections.abc import Callable, Iterator

from ld3.comparison import Block, Comparison, Metric, Range, Row
from ld3.report.tables import GAP, ratio_text, significant, table_lines, wrapped
from ld3.teacher import SHARE

SHORT = {
    "rmse": "RMSE", "frechet": "FD to data", "frechet_accurate": "FD to accurate",
    "kid": "KID", "cmmd": "CMMD", "precision": "precision", "recall": "recall",
    "agreement": "class",
}  # fmt: skip


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """All of it."""
    spec, first = comparison.spec, comparison.metrics[0]
    several = f", {spec['seeds']} seeds" if int(spec["seeds"]) > 1 else ""
    yield from wrapped(
        f"{comparison.model['name']}: {first.label.lower()} ({first.unit}) on {spec['held_out']} "
        f"held-out seeds{several}; lower is better"
    )
    for block in comparison.blocks:
        yield ""
        yield from _block(block, comparison.metrics)
    yield ""
    for sentence in (
        "* smallest distance; = best baseline, chosen on these seeds, which favours it.",
        "[ ] are 95 % intervals by paired bootstrap.",
        "ratio: to the best baseline. nearer: share of seeds on which a method beats it.",
        "evaluations: of the network on one sample, teacher included, a backward pass as two.",
    ):
        yield from wrapped(sentence)
    yield from _teacher(comparison)
    frechet = [metric for metric in comparison.metrics if metric.key.startswith("frechet")]
    if frechet:
        by = f" in {frechet[0].unit}" if frechet[0].unit else ""
        yield from wrapped(
            f"FD: Fréchet distance{by}, to real images (data) or to the reference solution from "
            "the same noise (accurate)."
        )


def _teacher(comparison: Comparison) -> Iterator[str]:
    """A warning where the smallest distance is hardly larger than the teacher's own error."""
    error, steps = comparison.teacher.get("error"), comparison.teacher.get("steps")
    rows = [row for block in comparison.blocks for row in block.rows if not row.failed]
    least = min((row.scores["distance"].value for row in rows), default=0.0)
    if not isinstance(error, float) or not isinstance(steps, int) or error <= SHARE * least:
        return
    yield from wrapped(
        f"The teacher is not accurate: its distance to the reference, {significant(error)}, is "
        f"{100 * error / max(least, 1e-30):.2g} % of the smallest distance, expected at most "
        f"{100 * SHARE:g} %. Give --teacher-steps {2 * steps}, or another --teacher-grid or "
        "--teacher-solver."
    )


def _block(block: Block, metrics: list[Metric]) -> Iterator[str]:
    shown = [metric for metric in metrics if metric.key in SHORT]
    head = ["method", "distance", "", "ratio", "", "nearer", *(SHORT[m.key] for m in shown)]
    rows = [_cells(row, block, shown) for row in block.rows if not row.failed]
    table = [[*head, "evaluations", "seconds"], *rows]
    yield f"{block.solver}, {block.nfe} evaluations"
    yield from table_lines(table, right=set(range(len(table[0]))) - {0, 2, 4}, whole=(0, 2, 4))
    for failed in (row for row in block.rows if row.failed):
        yield from wrapped(f"{failed.method}: failed: {failed.failed}", GAP)
    yield from wrapped(block.verdict)


def _cells(row: Row, block: Block, shown: list[Metric]) -> list[str]:
    best = row.method == block.baseline
    mark = " *" * (row is block.rows[0]) + " =" * best
    ratio, ends = _range(row.ratio, ratio_text)
    nearer = "" if row.wins is None else f"{100 * row.wins:.0f} %"
    return [
        row.method + mark,
        *_range(row.scores["distance"], significant),
        ratio,
        "" if best else ends,
        "" if best else nearer,
        *(significant(row.scores[m.key].value) if m.key in row.scores else "" for m in shown),
        f"{row.evaluations + row.teacher_evaluations:,}",
        f"{row.seconds:.1f}" if row.seconds >= 0.05 else "0",
    ]


def _range(interval: Range | None, written: Callable[[float], str]) -> tuple[str, str]:
    if interval is None:
        return "", ""
    return written(interval.value), f"[{written(interval.low)}, {written(interval.high)}]"
