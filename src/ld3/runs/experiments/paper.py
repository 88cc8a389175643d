"""The paper's own numbers beside those of a run."""

from collections.abc import Iterator, Sequence

from ld3.experiment import (
    Experiment,
    PaperNumbers,
    ResultRow,
    ResultTable,
    Value,
)
from ld3.runs.experiments.scoring import title_of

SECONDS, FRECHET = title_of("seconds"), title_of("frechet")


def paper_tables(
    experiment: Experiment, model: str, tables: Sequence[ResultTable]
) -> Iterator[ResultTable]:
    """Tables of the paper for a model that is not one of the experiment's own small ones.

    Where the model is the paper's, by its name, and the run has the same metric, each row of the
    paper is followed by that of the run and by the difference, cell by cell. Else the paper's
    numbers stand alone. Training costs are shown for every model.
    """
    numbers = experiment.paper.numbers if experiment.paper else ()
    own = model not in experiment.models
    known = any(one.matches(model) for one in numbers)
    for one in numbers:
        if one.costs:
            yield cost_table(one, model, tables)
        elif own and (one.matches(model) or not known):
            ours = next((t for t in tables if one.metric and t.title == title_of(one.metric)), None)
            yield paper_table(one, ours if one.matches(model) else None)


def paper_table(numbers: PaperNumbers, ours: ResultTable | None = None) -> ResultTable:
    """A table of the paper, with rows `here` and `difference` (here minus paper) if there are."""
    rows: list[ResultRow] = []
    labels = len(numbers.result_rows[0].label)
    for row in numbers.result_rows:
        rows.append(_marked(row, "paper" if ours else ""))
        here = None if ours is None else _here(numbers.head[labels:], row, ours)
        if here is not None:
            rows += [_marked(here, "here"), _marked(_difference(here, row), "difference")]
    head = list(numbers.head)
    if ours is not None:
        head.insert(labels, "")
    return ResultTable(title=_title(numbers), head=tuple(head), rows=tuple(rows), places=2)


def cost_table(numbers: PaperNumbers, model: str, tables: Sequence[ResultTable]) -> ResultTable:
    """Quoted training costs, then what finding each plan cost in this run, in minutes."""
    by_title = {table.title: table for table in tables}
    rows = list(numbers.result_rows)
    seconds, scores = by_title.get(SECONDS), by_title.get(FRECHET)
    for row in seconds.rows if seconds else ():
        head = seconds.head[len(row.label) :] if seconds else ()
        for column, spent in zip(head, row.cells, strict=True):
            if spent is not None:
                score = None if scores is None else _cell(scores, row.label, column)
                nfe = Value(value=float(column.removeprefix("NFE ")))
                cells = (nfe, score, Value(value=spent.value / 60))
                label = (f"{row.label[-1]}, here", model, "this run")
                rows.append(ResultRow(label=label, cells=cells))
    return ResultTable(title=_title(numbers), head=numbers.head, rows=tuple(rows), places=2)


def _title(numbers: PaperNumbers) -> str:
    metric = f", {title_of(numbers.metric)}" if numbers.metric else ""
    teacher = "" if numbers.teacher is None else f" (teacher: {numbers.teacher})"
    return f"The paper's {numbers.table}, {numbers.data}{metric}{teacher}"


def _marked(row: ResultRow, mark: str) -> ResultRow:
    return row.model_copy(update={"label": (*row.label, mark)}) if mark else row


def _here(head: Sequence[str], row: ResultRow, ours: ResultTable) -> ResultRow | None:
    """The run's row of the same labels, in the paper's columns; None if it has none."""
    cells = tuple(_cell(ours, row.label, column) for column in head)
    return ResultRow(label=row.label, cells=cells) if any(cells) else None


def _cell(table: ResultTable, label: tuple[str, ...], column: str) -> Value | None:
    row = next((row for row in table.rows if row.label == label), None)
    if row is None or column not in table.head:
        return None
    return row.cells[table.head.index(column) - len(row.label)]


def _difference(here: ResultRow, paper: ResultRow) -> ResultRow:
    cells = tuple(
        None if a is None or b is None else Value(value=a.value - b.value)
        for a, b in zip(here.cells, paper.cells, strict=True)
    )
    return ResultRow(label=paper.label, cells=cells)
