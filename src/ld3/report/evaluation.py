"""An evaluation on the terminal and as Markdown, and what it will cost."""

import math
from collections.abc import Iterator

from ld3.evaluation import LABELS, Cost, Estimate, Evaluation
from ld3.report.tables import GAP, markdown_row, table_lines, wrapped

INCEPTION = "FID Inception"


def evaluation_lines(found: Evaluation) -> Iterator[str]:
    """All of it, for the terminal."""
    for line in _about(found):
        yield from wrapped(line, GAP)
    yield ""
    rows = list(_rows(found))
    yield from table_lines(rows, right=range(2, len(rows[0])))
    for line in _notes(found):
        yield from wrapped(line, GAP)


def evaluation_markdown(found: Evaluation) -> str:
    """All of it, as a page."""
    head, *rows = _rows(found)
    lines = [f"    {found.command}", "", *(f"- {line}" for line in _about(found)), ""]
    lines += map(markdown_row, (head, ["---"] * len(head), *rows))
    return "\n".join([*lines, "", *_notes(found), ""])


def cost_lines(cost: Cost) -> Iterator[str]:
    """What `--dry-run` prints."""
    guided = f", {cost.passes:,} passes with guidance" if cost.passes != cost.calls else ""
    yield f"samples         {cost.samples:,}"
    yield f"network calls   {cost.calls:,}{guided}"
    yield f"memory          {_bytes(cost.memory)}"
    yield f"disk            {_bytes(cost.disk)}"
    yield f"time            {_time(cost.seconds)} on one device"
    yield from wrapped(
        f"timed           {1000 * cost.per_call:.3g} ms per network call and "
        f"{1000 * cost.per_features:.3g} ms of features, per sample, in a batch of {cost.batch}",
        " " * 16,
    )


def label_of(name: str, network: str) -> str:
    """FID is the Fréchet distance by the FID Inception; by other networks it gets their name."""
    label = LABELS[name]
    if label.startswith("FID") and network != INCEPTION:
        return label.replace("FID", f"FD ({network})")
    return label


def _about(found: Evaluation) -> Iterator[str]:
    guided = "" if found.guidance == 1 else f", guidance {found.guidance:g}"
    yield f"model: {found.model} ({found.model_digest}){guided}"
    yield f"samples: {found.samples:,}, seeds {found.seeds}, rounded to 8 bits"
    rule = f", resize rule {found.resize}" if found.network == INCEPTION else ""
    yield f"features: {found.network} ({found.network_digest}){rule}"
    if found.data:
        yield f"data: {found.data}"
    if any(name.endswith("accurate") for name in found.metrics):
        yield f"accurate run: {found.reference}, from the same noise"


def _rows(found: Evaluation) -> Iterator[list[str]]:
    names = list(found.metrics)
    limits = any(e.infinity is not None for row in found.rows for e in row.metrics.values())
    head = ["plan or grid", "solver", "NFE"]
    for name in names:
        head += [label_of(name, found.network), "95 %"]
        head += ["bias", "at infinity"] if name == "fid" and limits else []
    yield head
    for row in found.rows:
        cells = [row.name, row.solver, str(row.nfe)]
        for name in names:
            cells += _cells(row.metrics.get(name), name == "fid" and limits)
        yield cells


def _cells(estimate: Estimate | None, limit: bool) -> list[str]:
    """Value and interval; with `limit` also bias and value at infinity."""
    if estimate is None:
        return [""] * (4 if limit else 2)
    digits = _digits(estimate.value)
    cells = [f"{estimate.value:{digits}}", f"{estimate.low:{digits}} to {estimate.high:{digits}}"]
    for value in (estimate.bias, estimate.infinity) if limit else ():
        cells.append("" if value is None else f"{value:{digits}}")
    return cells


def _digits(value: float) -> str:
    """How a number of this size is written, and all that stands beside it: three digits or more."""
    if abs(value) >= 1e5:
        return ".4g"
    if abs(value) >= 0.1 or value == 0:
        return ".2f" if abs(value) >= 10 else ".3f"
    return f".{max(5, 2 - math.floor(math.log10(abs(value))))}f"


def _notes(found: Evaluation) -> Iterator[str]:
    for row in found.rows:
        if row.failed:
            yield f"{row.name}, {row.solver}, NFE {row.nfe}: {row.failed}"
        if row.kept:
            yield f"samples  {row.kept}"


def _bytes(count: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.3g} TB"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} seconds"
    return f"{seconds / 3600:.2g} hours" if seconds >= 360 else f"{seconds / 60:.2g} minutes"
