"""What an experiment came to: tables and curves with their spread. The content of `result.json`.

Kinds of experiment make it; the page and the picture are made from it and compute nothing.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ld3.errors import StoreError
from ld3.metrics.bootstrap import Interval
from ld3.store import read_json

Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=4000)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Value(_Part):
    """A number; how it varies over learning seeds, and its 95 % interval over noise and seeds."""

    value: Number
    spread: Number | None = None  # standard deviation over seeds
    low: Number | None = None
    high: Number | None = None
    seeds: Annotated[int, Field(ge=1)] = 1

    @classmethod
    def over(cls, values: Sequence[float], interval: Interval | None = None) -> "Value":
        """From one number a seed."""
        spread = statistics.stdev(values) if len(values) > 1 else None
        ends = {} if interval is None else {"low": interval.low, "high": interval.high}
        return cls(value=statistics.fmean(values), spread=spread, seeds=len(values), **ends)

    @property
    def text(self) -> str:
        """Three digits that count, of the spread as many places."""
        if self.value == 0:
            return "0"
        places = int(np.clip(2 - np.floor(np.log10(abs(self.value))), 0, 6))
        shown = f"{self.value:,.{places}f}"
        return shown if self.spread is None else f"{shown} ± {self.spread:,.{places}f}"


class Row(_Part):
    label: tuple[Text, ...]
    cells: tuple[Value | None, ...]  # None: there is nothing
    note: Text = ""  # why not


class Table(_Part):
    """Columns of values, after as many columns of labels as the rows have."""

    title: Text
    head: tuple[Text, ...]
    rows: tuple[Row, ...]
    best: Literal["lower", "higher", ""] = ""  # which value of a column is set in bold
    groups: bool = False  # within rows of the same first label


class Line(_Part):
    """A curve; lines of one name share a colour and their place in the legend."""

    name: Text
    x: tuple[Number, ...]
    y: tuple[Number, ...]
    low: tuple[Number, ...] = ()
    high: tuple[Number, ...] = ()
    style: Literal["line", "thin", "dashed", "points"] = "line"


class Panel(_Part):
    title: Text
    x: Text
    y: Text
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False


class Made(_Part):
    """What a kind of experiment makes."""

    tables: tuple[Table, ...] = ()
    panels: tuple[Panel, ...] = ()
    pictures: tuple[Text, ...] = ()  # files beside the result
    notes: tuple[Text, ...] = ()  # what the numbers say, in sentences


class Result(Made):
    """With what was asked for, so that it can be made again."""

    format: Literal["ld3-reproduce-1"] = "ld3-reproduce-1"
    name: Text
    folder: Text  # below that of all results
    title: Text
    place: Text  # in the paper
    model: Text
    quick: bool
    command: Text
    words: dict[str, Any]
    versions: dict[str, Text]

    @classmethod
    def load(cls, path: Path) -> "Result":
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole file"
            raise StoreError(
                f"{path}: {where}: {first['msg']}; make it anew with `ld3 reproduce`"
            ) from None


def markdown(result: Result) -> str:
    """A piece of a page: how it was made, tables, what they say."""
    lines = [f"Made by `{result.command}`: {', '.join(_sizes(result.words))}."]
    if result.quick:
        lines += ["", "**Smallest sizes (`--quick`): only to see that it runs.**"]
    for table in result.tables:
        lines += ["", f"{table.title}:", "", *_rows(table)]
    if result.notes:
        lines += ["", *(f"- {note}" for note in result.notes)]
    return "\n".join(lines) + "\n"


SIZES = {
    "seeds": "learning seeds", "pairs": "learning pairs", "valid": "validation pairs",
    "held_out": "held-out noises", "judged": "samples for Fréchet distances",
    "teacher_steps": "steps of the teacher", "samples": "noises", "preset": "preset",
}  # fmt: skip


def _sizes(words: Mapping[str, Any]) -> list[str]:
    """How much went into it, from the words at any depth but those of single changes."""
    found: dict[str, Any] = {}
    for word, value in words.items():
        if isinstance(value, Mapping) and word not in ("changes", "goal"):
            found |= dict.fromkeys(_sizes(value))
        elif word in SIZES:
            name = SIZES[word].removesuffix("s") if value == 1 else SIZES[word]
            found[f"preset `{value}`" if word == "preset" else f"{value} {name}"] = None
    return list(found)


def _rows(table: Table) -> Iterator[str]:
    yield f"| {' | '.join(table.head)} |"
    yield "|---" * len(table.head) + "|"
    for row in table.rows:
        among = [r for r in table.rows if not table.groups or r.label[0] == row.label[0]]
        cells = [_cell(row, number, among, table.best) for number in range(len(row.cells))]
        yield f"| {' | '.join((*row.label, *cells))} |"


def _cell(row: Row, number: int, among: Sequence[Row], best: str) -> str:
    value = row.cells[number]
    if value is None:
        return row.note or "–"
    known = [cell.value for r in among if (cell := r.cells[number]) is not None]
    first = best and value.value == (min(known) if best == "lower" else max(known))
    return f"**{value.text}**" if first and len(known) > 1 else value.text
