"""Experiments and their results: lines for the terminal, and Markdown for a page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ld3.experiment import Experiment, ExperimentResult, ResultRow, ResultTable
from ld3.report.tables import table_lines

NOT_RUN = {
    "Table 1": "properties of methods in words: nothing to run",
}
"""What of the paper has no experiment here, and why."""


def list_rows(experiments: Iterable[Experiment]) -> Iterator[tuple[str, str, str, str]]:
    """Name, place in the paper, title and models of each; then what has no experiment."""
    for experiment in experiments:
        place, models = experiment.place or "our own", ", ".join(experiment.models)
        yield experiment.name, place, experiment.title, models
    for place, why in NOT_RUN.items():
        yield "-", place, why, "-"


def about_lines(experiment: Experiment) -> Iterator[str]:
    """What the paper shows, and the options for its own models."""
    yield experiment.title + (f" ({experiment.place})" if experiment.place else "")
    if experiment.paper is None:
        yield from ("", *experiment.here.strip().splitlines())
        return
    yield from ("", *experiment.claim.strip().splitlines(), "")
    yield from (f"- {numbers}" for numbers in experiment.reported)
    yield from ("", *experiment.here.strip().splitlines(), "")
    yield f"# run it with: ld3 reproduce {experiment.name} --model {experiment.paper.models[0]}"
    yield from experiment.paper_text.splitlines()
    for numbers in experiment.paper.numbers:
        yield from ("", f"{numbers.table}, {numbers.data}:")
        rows = ([*row.label, *(v.shown(2) for v in row.cells if v)] for row in numbers.result_rows)
        yield from table_lines([list(numbers.head), *rows])


def result_lines(result: ExperimentResult) -> Iterator[str]:
    """All tables, and what they say."""
    place = f" ({result.place})" if result.place else ""
    yield f"{result.title}{place}, {result.model}"
    for table in result.tables:
        cells = (
            [*row.label, *("-" if v is None else v.shown(table.places) for v in row.cells)]
            for row in table.rows
        )
        yield from ("", table.title)
        yield from table_lines([list(table.head), *cells])
    yield from ("", *result.notes)
    if result.reference:
        yield f"Reference solution: {result.reference}."


def markdown(result: ExperimentResult) -> str:
    """A piece of a page: how it was made, tables, what they say."""
    lines = [f"Made by `{result.command}`: {', '.join(_sizes(result.options))}."]
    if result.reference:
        lines[0] += f" Reference solution: {result.reference}."
    if result.quick:
        lines += ["", "**Smallest sizes (`--quick`): only to see that it runs.**"]
    for table in result.tables:
        lines += ["", f"{table.title}:", "", *_rows(table)]
    if result.notes:
        lines += ["", *(f"- {note}" for note in result.notes)]
    return "\n".join(lines) + "\n"


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
    yield f"| {' | '.join(table.head)} |"
    yield "|---" * len(table.head) + "|"
    for row in table.rows:
        among = [r for r in table.rows if not table.groups or r.label[0] == row.label[0]]
        cells = [_cell(row, number, among, table) for number in range(len(row.cells))]
        yield f"| {' | '.join((*row.label, *cells))} |"


def _cell(row: ResultRow, number: int, among: Sequence[ResultRow], table: ResultTable) -> str:
    value = row.cells[number]
    if value is None:
        return row.note or "–"
    known = [cell.value for r in among if (cell := r.cells[number]) is not None]
    best, text = table.best, value.shown(table.places)
    first = best and value.value == (min(known) if best == "lower" else max(known))
    return f"**{text}**" if first and len(known) > 1 else text
