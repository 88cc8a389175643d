"""Experiments and their results: lines for the terminal, and Markdown for a page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ld3.experiment import Experiment, ExperimentResult, ResultRow, ResultTable
from ld3.report.tables import GAP, markdown_row, table_lines, wrapped

NOT_RUN = {
    "Table 1": "a list of properties of methods: nothing to run",
}
"""What of the paper has no experiment here, and why."""
QUICK = "Smallest sizes (`--quick`): only to see that it runs."


def list_rows(experiments: Iterable[Experiment]) -> Iterator[tuple[str, str, str]]:
    """Name, place in the paper and title of each, with its models unless it is `fashion` alone;
    then what has no experiment."""
    for experiment in experiments:
        models = ", ".join(experiment.models)
        own = "" if models == "fashion" else f" ({models})"
        yield experiment.name, experiment.place or "our own", experiment.title + own
    for place, why in NOT_RUN.items():
        yield "-", place, why


def about_lines(experiment: Experiment) -> Iterator[str]:
    """What the paper shows, and the options for its own models."""
    yield from wrapped(experiment.title + (f" ({experiment.place})" if experiment.place else ""))
    if experiment.paper is None:
        yield from ("", *_paragraphs(experiment.here))
        return
    yield from ("", *_paragraphs(experiment.claim), "")
    for reported in experiment.reported:
        yield from wrapped(f"- {reported}", GAP)
    yield from ("", *_paragraphs(experiment.here), "")
    yield f"# run it with: ld3 reproduce {experiment.name} --model {experiment.paper.models[0]}"
    yield from experiment.paper_text.splitlines()  # to copy, so not wrapped
    for numbers in experiment.paper.numbers:
        yield from ("", *wrapped(f"{numbers.table}, {numbers.data}:"))
        rows = ([*row.label, *(v.shown(2) for v in row.cells if v)] for row in numbers.result_rows)
        labels = len(numbers.result_rows[0].label)
        yield from table_lines([list(numbers.head), *rows], labels=labels)


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        yield from ("",) * (number > 0)
        yield from wrapped(" ".join(paragraph.split()))


def result_lines(result: ExperimentResult) -> Iterator[str]:
    """All tables, and what they say."""
    place = f" ({result.place})" if result.place else ""
    yield f"{result.title}{place}, {result.model}"
    if result.quick:
        yield QUICK
    for table in result.tables:
        cells = (
            [*row.label, *("-" if v is None else v.shown(table.places) for v in row.cells)]
            for row in table.rows
        )
        yield from ("", *wrapped(table.title))
        labels = max((len(row.label) for row in table.rows), default=1)
        yield from table_lines([list(table.head), *cells], labels=labels)
    yield ""
    for note in result.notes:
        yield from wrapped(note)
    if result.reference:
        yield f"Reference solution: {result.reference}."


def markdown(result: ExperimentResult) -> str:
    """A piece of a page: how it was made, tables, long ones folded, what they say."""
    lines = [f"Made by `{result.command}`: {', '.join(_sizes(result.options))}."]
    if result.reference:
        lines[0] += f" Reference solution: {result.reference}."
    if result.weights:
        lines[0] += f" Weights: {result.weights}."
    if result.quick:
        lines += ["", f"**{QUICK}**"]
    for table in result.tables:
        lines += ["", *_folded(table.title, list(_rows(table)))]
    if result.notes:
        lines += ["", *(f"- {note}" for note in result.notes)]
    return "\n".join(lines) + "\n"


LONG = 6  # rows above which a table is folded away


def _folded(title: str, lines: Sequence[str]) -> Iterator[str]:
    """A table below its title; a long one opens when the title is clicked."""
    rows = len(lines) - 2  # without the head
    if rows <= LONG:
        yield from (f"{title}:", "", *lines)
        return
    yield f"<details><summary>{title}: {rows} rows</summary>"
    yield from ("", *lines, "", "</details>")


SIZES = {
    "seeds": "learning seeds", "pairs": "training pairs", "valid": "validation pairs",
    "held_out": "held-out seeds", "judged": "samples for set metrics",
    "teacher_steps": "steps of the teacher", "samples": "noise samples", "preset": "preset",
}  # fmt: skip


def _sizes(options: Mapping[str, Any]) -> list[str]:
    """How much went into it, from options at any depth but those of single changes."""
    found: dict[str, None] = {}
    for name, value in options.items():
        if isinstance(value, Mapping) and name not in ("changes", "goal", "runs"):
            found |= dict.fromkeys(_sizes(value))
        elif name in SIZES:
            noun = SIZES[name].removesuffix("s") if value == 1 else SIZES[name]
            found[f"preset `{value}`" if name == "preset" else f"{value} {noun}"] = None
    return list(found)


def _rows(table: ResultTable) -> Iterator[str]:
    yield markdown_row(table.head)
    yield "|---" * len(table.head) + "|"
    for row in table.rows:
        among = [r for r in table.rows if not table.groups or r.label[0] == row.label[0]]
        cells = [_cell(row, number, among, table) for number in range(len(row.cells))]
        yield markdown_row((*row.label, *cells))


def _cell(row: ResultRow, number: int, among: Sequence[ResultRow], table: ResultTable) -> str:
    value = row.cells[number]
    if value is None:
        return row.note or "–"
    known = [cell.value for r in among if (cell := r.cells[number]) is not None]
    best, text = table.best, value.shown(table.places)
    first = best and value.value == (min(known) if best == "lower" else max(known))
    return f"**{text}**" if first and len(known) > 1 else text
