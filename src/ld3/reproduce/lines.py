"""Experiments and results on the terminal."""

from collections.abc import Iterator

from ld3.reproduce.result import Result, Row, Value
from ld3.reproduce.spec import ELSEWHERE, Experiment, experiments, load_experiment, paper_text


def list_rows() -> Iterator[tuple[str, str, str, str]]:
    """Name, place in the paper, title and small models of each; then what has no experiment."""
    for name in experiments():
        experiment = load_experiment(name)
        yield name, experiment.place, experiment.title, ", ".join(experiment.models)
    for place, why in ELSEWHERE.items():
        yield "-", place, why, "-"


def about_lines(experiment: Experiment) -> Iterator[str]:
    """What the paper shows, and the words for its own models."""
    yield f"{experiment.title} ({experiment.place})"
    yield from ("", *experiment.claim.strip().splitlines(), "")
    yield from (f"- {figures}" for figures in experiment.reported)
    yield from ("", *experiment.here.strip().splitlines(), "")
    yield f"# run it with: ld3 reproduce {experiment.name} --model {experiment.paper.models[0]}"
    yield from paper_text(experiment).splitlines()


def result_lines(result: Result) -> Iterator[str]:
    """Tables, and what they say."""
    yield f"{result.title} ({result.place}), {result.model}"
    for table in result.tables:
        body = [[*row.label, *(_plain(cell, row) for cell in row.cells)] for row in table.rows]
        grid = [list(table.head), *body]
        widths = [max(len(line[c]) for line in grid) for c in range(len(table.head))]
        yield ""
        yield table.title
        for line in grid:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            yield "  ".join(cells).rstrip()
    yield ""
    yield from result.notes


def _plain(value: Value | None, row: Row) -> str:
    return (row.note or "-") if value is None else value.text
