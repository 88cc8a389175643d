"""A comparison on the terminal: one block for each solver and number of evaluations."""

from collections.abc import Callable, Iterator

from ld3.comparison import Block, Comparison, Metric, Range, Row
from ld3.report.tables import significant, table_lines

SHORT = {
    "rmse": "RMSE", "frechet": "FD real", "frechet_accurate": "FD reference", "kid": "KID",
    "cmmd": "CMMD", "precision": "precision", "recall": "recall", "agreement": "class",
}  # fmt: skip


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """All of it."""
    spec, first = comparison.spec, comparison.metrics[0]
    several = f", {spec['seeds']} seeds" if int(spec["seeds"]) > 1 else ""
    yield (
        f"{comparison.model['name']}: {first.label.lower()} ({first.unit}) on {spec['held_out']} "
        f"held-out noises{several}; lower is better"
    )
    for block in comparison.blocks:
        yield ""
        yield from _block(block, comparison.metrics)
    yield ""
    yield (
        "* smallest distance; = best baseline, picked on this very noise, in its favour. [ ] are "
        "95 % intervals by"
    )
    yield (
        "paired bootstrap. ratio: to the best baseline; nearer: noises on which a method beats it. "
        "evaluations: of the"
    )
    yield "network on one sample, teacher included, a backward pass as two."


def _block(block: Block, metrics: list[Metric]) -> Iterator[str]:
    shown = [metric for metric in metrics if metric.key in SHORT]
    head = ["method", "distance", "", "ratio", "", "nearer", *(SHORT[m.key] for m in shown)]
    rows = [_cells(row, block, shown) for row in block.rows if not row.failed]
    table = [[*head, "evaluations", "seconds"], *rows]
    yield f"{block.solver}, {block.nfe} evaluations"
    yield from table_lines(table, right=set(range(len(table[0]))) - {0, 2, 4})
    for failed in (row for row in block.rows if row.failed):
        yield f"{failed.method}: failed: {failed.failed}"
    yield block.verdict


def _cells(row: Row, block: Block, shown: list[Metric]) -> list[str]:
    best = row.method == block.baseline
    mark = " *" * (row is block.rows[0]) + " =" * best
    ratio, ends = _range(row.ratio, "{:.2f}".format)
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
