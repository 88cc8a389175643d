"""The paper's own numbers beside those of a run."""

from collections.abc import Iterable, Iterator, Sequence

from ld3.experiment import (
    Experiment,
    Options,
    PaperNumbers,
    ResultRow,
    ResultTable,
    Value,
    values_of,
)
from ld3.runs.experiments.scoring import LABELS, title_of

SECONDS, FRECHET = title_of("seconds"), title_of("frechet")


def paper_tables(
    experiment: Experiment, model: str, tables: Sequence[ResultTable]
) -> Iterator[ResultTable]:
    """Tables of the paper for a model that is not one of the experiment's own small ones.

    Where the model is the paper's, by its name, and the run has the same metric, each row of the
    paper is followed by that of the run and by the difference, cell by cell. Else the paper's
    numbers stand alone, and so do those of models that are not published. Training costs are shown
    for every model.
    """
    numbers = experiment.paper.numbers if experiment.paper else ()
    own = model not in experiment.models
    known = any(one.matches(model) for one in numbers)
    for one in numbers:
        if one.costs:
            yield cost_table(one, model, tables)
        elif own and (one.matches(model) or not known or not one.match):
            ours = next((t for t in tables if one.metric and t.title == title_of(one.metric)), None)
            yield paper_table(one, ours if one.matches(model) else None)


def paper_notes(
    experiment: Experiment, model: str, tables: Sequence[ResultTable], given: Options
) -> Iterator[str]:
    """Why the paper's numbers stand alone, if they do, or cannot be compared with ours; `given` are
    the options of the run."""
    numbers = experiment.paper.numbers if experiment.paper else ()
    numbers = tuple(one for one in numbers if one.match and one.metric)
    if model in experiment.models or not numbers:
        return
    fit = [one for one in numbers if one.matches(model)]
    titles = {table.title for table in tables}
    if not fit:
        parts = ", ".join(dict.fromkeys(part for one in numbers for part in one.match))
        yield (
            f"The paper's numbers stand alone: the name {model} has none of {parts} in it, which "
            "says whose numbers to compare with."
        )
    elif not any(title_of(one.metric) in titles for one in fit):
        yield (
            f"The paper's numbers stand alone: this run has no {LABELS[fit[0].metric]}; "
            "--data REFERENCE gives it."
        )
    elif experiment.paper is not None and "frechet" in (one.metric for one in fit):
        here, there = (
            max(values_of(options, "judged"), default=0)
            for options in (given, experiment.paper.options_of(model))
        )
        if here < there:
            yield (
                f"Fréchet distances here are from {here:,} samples, the paper's from {there:,}. "
                "They fall with the number of samples, so the differences say little."
            )


def paper_table(numbers: PaperNumbers, ours: ResultTable | None = None) -> ResultTable:
    """A table of the paper, with rows `here` and `difference` (here minus paper) if there are."""
    rows: list[ResultRow] = []
    labels = len(numbers.result_rows[0].label)
    for row in numbers.result_rows:
        if ours is None:
            rows.append(row)
            continue
        rows.append(_marked(row, "paper"))
        here = [_cell(ours, row.label, column) for column in numbers.head[labels:]]
        if any(here):
            both = zip(here, row.cells, strict=True)
            change = [Value(value=a.value - b.value) if a and b else None for a, b in both]
            rows += [_marked(row, "here", here), _marked(row, "difference", change)]
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
                cells = (score, Value(value=spent.value / 60))
                nfe = column.removeprefix("NFE ")
                label = (f"{row.label[-1]}, here", model, "this run", nfe)
                rows.append(ResultRow(label=label, cells=cells))
    return ResultTable(title=_title(numbers), head=numbers.head, rows=tuple(rows), places=2)


def _title(numbers: PaperNumbers) -> str:
    metric = f", {title_of(numbers.metric)}" if numbers.metric else ""
    teacher = "" if numbers.teacher is None else f" (teacher: {numbers.teacher})"
    return f"The paper's {numbers.table}, {numbers.data}{metric}{teacher}"


def _marked(row: ResultRow, mark: str, cells: Iterable[Value | None] = ()) -> ResultRow:
    """A row with one label more, and with other cells if there are any."""
    return ResultRow(label=(*row.label, mark), cells=tuple(cells) or row.cells)


def _cell(table: ResultTable, label: tuple[str, ...], column: str) -> Value | None:
    row = next((row for row in table.rows if row.label == label), None)
    if row is None or column not in table.head:
        return None
    return row.cells[table.head.index(column) - len(row.label)]
