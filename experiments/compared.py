"""A comparison as a page of the documentation, and the pictures of its report.

    ld3 compare --methods all --solvers unipc,ipndm:3,dpmpp:3 --nfe 4,6,8,10 --seeds 2 --full \\
        --judged 500 --jobs 2
    python experiments/compared.py compare/compare.json

writes docs/results/compare.md: who is first by which metric, what coefficients add to times, and
for each solver a table of methods and numbers of evaluations, best on the average first, with what
each block says of the learned plan.
"""

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cells import write

from ld3.comparison import Block, Comparison, Metric, Row

UNIT = 1000  # distances are shown in thousandths


def shown(row: Row | None, key: str, best: float) -> str:
    """A score with its interval; the best of a column in bold."""
    score = None if row is None else row.scores.get(key)
    if score is None:
        return ""
    scale = UNIT if key == "distance" else 1
    value = f"{scale * score.value:.3g}"
    ends = f" [{scale * score.low:.3g}, {scale * score.high:.3g}]"
    return (f"**{value}**" if score.value == best else value) + ends


def table(blocks: list[Block], metric: Metric) -> Iterator[str]:
    """Methods by numbers of evaluations."""
    rows = {b.nfe: {row.method: row for row in b.rows if not row.failed} for b in blocks}
    pick = min if metric.better == "lower" else max
    best = {
        nfe: pick(row.scores[metric.key].value for row in own.values() if metric.key in row.scores)
        for nfe, own in rows.items()
    }

    def rank(method: str) -> float:
        """By the geometric mean of its ratios to the best."""
        logs = [
            math.log(max(rows[nfe][method].scores["distance"].value, 1e-12)) for nfe in rows
            if method in rows[nfe]
        ]  # fmt: skip
        return sum(logs) / len(logs)

    methods = sorted({method for own in rows.values() for method in own}, key=rank)
    yield "| method | " + " | ".join(f"NFE {nfe}" for nfe in rows) + " | cost |"
    yield "|---" * (len(rows) + 2) + "|"
    for method in methods:
        own = [rows[nfe].get(method) for nfe in rows]
        costs = [row.evaluations + row.teacher_evaluations for row in own if row is not None]
        cost = f"{min(costs):,}" if min(costs) == max(costs) else f"{min(costs):,}–{max(costs):,}"
        cells = [shown(row, metric.key, best[nfe]) for nfe, row in zip(rows, own, strict=True)]
        yield f"| `{method}` | " + " | ".join(cells) + f" | {cost} |"
    yield ""


def first_places(comparison: Comparison) -> Iterator[str]:
    """By each metric, which method is first in how many blocks."""
    yield f"### First places in {len(comparison.blocks)} settings\n"
    yield "| metric | first |"
    yield "|---|---|"
    for metric in comparison.metrics:
        pick = min if metric.better == "lower" else max
        first: Counter[str] = Counter()
        for block in comparison.blocks:
            known = {
                r.method: r.scores[metric.key].value for r in block.rows if metric.key in r.scores
            }
            if known:
                first[pick(known, key=lambda m: known[m])] += 1
        said = ", ".join(f"`{method}` {count}" for method, count in first.most_common())
        yield f"| {metric.label} | {said} |"
    yield ""


def added(comparison: Comparison) -> Iterator[str]:
    """What coefficients add to times: the ratio of means and of medians over noises and seeds."""
    blocks = {(block.solver, block.nfe): block for block in comparison.blocks}
    counts = list(dict.fromkeys(nfe for _, nfe in blocks))
    yield "### Coefficients: distance of `ld3` over that of `ld3-times`, means and (medians)\n"
    yield "| solver | " + " | ".join(f"NFE {nfe}" for nfe in counts) + " |"
    yield "|---" * (len(counts) + 1) + "|"
    for solver in dict.fromkeys(solver for solver, _ in blocks):
        cells = []
        for nfe in counts:
            rows = {row.method: row for row in blocks[solver, nfe].rows}
            own, times = rows["ld3"], rows["ld3-times"]
            mean = own.scores["distance"].value / times.scores["distance"].value
            cells.append(f"{mean:.2f} ({(own.median or 0) / (times.median or math.inf):.2f})")
        yield f"| {solver} | " + " | ".join(cells) + " |"
    yield ""


def page(comparison: Comparison) -> Iterator[str]:
    """All tables, and the verdicts."""
    spec = comparison.spec
    yield (
        f"Made by `{comparison.command}`: {spec['held_out']} held-out noises, {spec['seeds']} "
        "learning seeds for methods with chance in them. Perceptual distance to the teacher in "
        "thousandths, with 95 % intervals over noise and seeds. Cost: network evaluations on "
        "one sample, the teacher's included, a backward pass counted as two.\n"
    )
    if len(comparison.metrics) > 4:
        yield (
            f"Set metrics are from {spec['judged']} samples. The Fréchet distance to an accurate "
            "run is from the same noise, so it is zero for the same samples; KID is to a run from "
            "other noise, so for perfect samples it scatters around zero.\n"
        )
    yield from first_places(comparison)
    yield from added(comparison)
    keys = {"distance", "frechet_accurate", "kid"}
    metrics = [metric for metric in comparison.metrics if metric.key in keys]
    for solver in dict.fromkeys(block.solver for block in comparison.blocks):
        blocks = [block for block in comparison.blocks if block.solver == solver]
        for metric in metrics:
            label = "" if metric.key == "distance" else f": {metric.label}"
            yield f"### {solver}{label}\n"
            yield from table(blocks, metric)
        for block in blocks:
            yield f"- {block.nfe} evaluations: {block.verdict}"
        yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="compare.json")
    args = parser.parse_args()
    write("compare.md", "\n".join(page(Comparison.load(args.file))))


if __name__ == "__main__":
    main()
