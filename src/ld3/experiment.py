"""An experiment as data: its spec file, and its result.

An experiment is run by :mod:`ld3.runs.experiments`; :mod:`ld3.report` prints and draws it. The
result is the content of `result.json` and holds everything a page shows.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ld3.errors import StoreError, unknown, wrong_part
from ld3.metrics.bootstrap import Interval
from ld3.scores import Number
from ld3.store import read_json

Text = Annotated[str, Field(max_length=4000)]
Options = dict[str, Any]
FILES = (".pkl", ".pt", ".pth", ".ckpt", ".safetensors")  # names of checkpoints end in these


class Frozen(BaseModel):
    """Data that cannot be changed, without fields of other names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Cell = str | float | tuple[float, float]
"""A label, a value, or a value with its standard deviation."""


class PaperNumbers(Frozen):
    """A table of the paper: labels as in the tables of an experiment's result, then values."""

    table: str  # "Table 18"
    data: str  # what the numbers are of
    match: tuple[str, ...] = ()  # parts of the names of models with which they can be compared
    metric: str = ""  # of :data:`ld3.runs.experiments.scoring.LABELS`; none: several
    teacher: float | None = None  # the metric of the teacher
    costs: bool = False  # training costs: shown for every model, with those of the run
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @model_validator(mode="after")
    def _rows_fit(self) -> "PaperNumbers":
        widths = {len(row) for row in self.rows}
        labels = {sum(isinstance(cell, str) for cell in row) for row in self.rows}
        if widths != {len(self.head)} or len(labels) != 1:
            raise ValueError(f"{self.table}: expected rows of {len(self.head)} cells, labels first")
        return self

    def matches(self, model: str) -> bool:
        return any(part in model.lower() for part in self.match)

    @property
    def result_rows(self) -> "tuple[ResultRow, ...]":
        found = []
        for row in self.rows:
            label = tuple(cell for cell in row if isinstance(cell, str))
            pairs = (
                cell if isinstance(cell, tuple) else (cell, None) for cell in row[len(label) :]
            )
            values = tuple(Value(value=float(value), spread=spread) for value, spread in pairs)
            found.append(ResultRow(label=label, cells=values))
        return tuple(found)


class Paper(Frozen):
    """The paper's own setting."""

    models: Annotated[tuple[str, ...], Field(min_length=1)]  # examples of names for --model
    about: str  # what they are
    options: Options
    variants: dict[str, Options] = {}  # part of a model's name -> what the paper changes for it
    numbers: tuple[PaperNumbers, ...] = ()

    def options_of(self, model: str) -> Options:
        options = self.options
        for part, changes in self.variants.items():
            options = merged(options, changes) if part in model.lower() else options
        return options


class Experiment(Frozen):
    """A spec file: one table or figure of the paper, or of these docs."""

    name: str
    kind: str  # of :data:`ld3.runs.experiments.run.KINDS`
    title: str
    place: str = ""  # tables and figures of the paper; none: an experiment of our own
    claim: str = ""  # of the paper, in our words
    reported: tuple[str, ...] = ()  # numbers in the paper
    here: str  # what is measured here
    paper: Paper | None = None
    paper_text: str = ""  # that section of the file
    models: Annotated[dict[str, Options], Field(min_length=1)]  # the first is the default
    quick: Options = {}  # what else is changed for the smallest sizes

    @property
    def default(self) -> str:
        return next(iter(self.models))

    def options(self, model: str, quick: bool = False) -> Options:
        """Those of a model of the file; for a model of your own the paper's, if there are any."""
        if model in self.models:
            options = self.models[model]
        elif ":" in model or Path(model).suffix in FILES:
            own = self.models[self.default]
            options = own if self.paper is None else self.paper.options_of(model)
        else:
            raise unknown(
                f"model for {self.name}", model, [*self.models, "package.module:function", "FILE"]
            )
        options = merged(smallest(options), self.quick) if quick else options
        return {name: value for name, value in options.items() if name != "model"}

    def model_of(self, model: str) -> str:
        """The model behind the name of a section."""
        return str(self.models.get(model, {}).get("model", model))


SMALLEST = {"seeds": 1, "pairs": 4, "valid": 2, "held_out": 4, "judged": 40}


def smallest(options: Mapping[str, Any]) -> Options:
    """The smallest sizes, and the first of several numbers of evaluations; table by table."""

    def small(name: str, value: Any) -> Any:
        if name == "nfe" and isinstance(value, list):
            return value[:1]
        return min(value, SMALLEST[name]) if name in SMALLEST else value

    return _changed(options, small)


def replaced(options: Mapping[str, Any], name: str, value: Any, in_place_of: str = "") -> Options:
    """Each option of that name has the new value, table by table; with `in_place_of` only where
    the old one starts with it. A list of one number may take the place of a number."""

    def new(key: str, old: Any) -> Any:
        if key != name or not str(old).startswith(in_place_of):
            return old
        one = isinstance(old, int) and isinstance(value, list) and len(value) == 1
        return value[0] if one else value

    return _changed(options, new)


def _changed(options: Mapping[str, Any], change: Callable[[str, Any], Any]) -> Options:
    """Each option, also those in tables inside, as `change` makes it from name and value."""
    return {
        name: _changed(value, change) if isinstance(value, Mapping) else change(name, value)
        for name, value in options.items()
    }


def values_of(options: Mapping[str, Any], name: str) -> list[Any]:
    """All values of an option of that name, in all tables."""
    found = [options[name]] if name in options else []
    for value in options.values():
        found += values_of(value, name) if isinstance(value, Mapping) else []
    return found


def merged(options: Mapping[str, Any], over: Mapping[str, Any]) -> Options:
    """Options of `over` win, table by table."""
    both = dict(options)
    for name, value in over.items():
        own = both.get(name)
        if isinstance(own, Mapping) and isinstance(value, Mapping):
            value = merged(own, value)
        both[name] = value
    return both


class Value(Frozen):
    """A number, its standard deviation over seeds, and its 95 % interval over noise and seeds."""

    value: Number
    spread: Number | None = None
    low: Number | None = None
    high: Number | None = None
    seeds: Annotated[int, Field(ge=1)] = 1
    name: Text = ""  # of what has this value, where it was picked among several

    @classmethod
    def over(cls, values: Sequence[float], interval: Interval | None = None) -> "Value":
        """The mean of one number per seed."""
        spread = statistics.stdev(values) if len(values) > 1 else None
        low, high = (None, None) if interval is None else (interval.low, interval.high)
        middle = statistics.fmean(values)
        return cls(value=middle, spread=spread, low=low, high=high, seeds=len(values))

    @property
    def text(self) -> str:
        return self.shown()

    def shown(self, places: int | None = None) -> str:
        """To three significant digits, or to that many decimals; the spread to as many."""
        if places is None:
            places = 0
            if self.value != 0:
                places = int(np.clip(2 - np.floor(np.log10(abs(self.value))), 0, 6))
        shown = f"{self.value:,.{places}f}"
        if self.spread is not None:
            shown += f" ± {self.spread:,.{places}f}"
        return f"{shown} ({self.name})" if self.name else shown


Values = dict[str, Value]
"""By metric, see :data:`ld3.runs.experiments.scoring.LABELS`."""


class ResultRow(Frozen):
    label: tuple[Text, ...]
    cells: tuple[Value | None, ...]  # None: not measured
    note: Text = ""  # why not


class ResultTable(Frozen):
    """Columns of values, after as many columns of labels as the rows have."""

    title: Text
    head: tuple[Text, ...]
    rows: tuple[ResultRow, ...]
    best: Literal["lower", "higher", ""] = ""  # which value of a column is set in bold
    groups: bool = False  # within rows of the same first label
    places: int | None = None  # decimals; None: three significant digits

    @classmethod
    def of(
        cls,
        title: str,
        head: Iterable[str],
        rows: Mapping[Any, Iterable[Value | None]],
        best: Literal["lower", "higher", ""] = "",
        groups: bool = False,
        note: str = "",
    ) -> "ResultTable":
        """With rows by label, a text or a tuple of texts; `note` is for missing values."""
        made = [
            ResultRow(label=k if isinstance(k, tuple) else (k,), cells=tuple(cells), note=note)
            for k, cells in rows.items()
        ]
        return cls(title=title, head=tuple(head), rows=tuple(made), best=best, groups=groups)


class Curve(Frozen):
    """Curves of one name share a colour and their place in the legend."""

    name: Text
    x: tuple[Number, ...]
    y: tuple[Number, ...]
    low: tuple[Number, ...] = ()
    high: tuple[Number, ...] = ()
    style: Literal["line", "thin", "dashed", "points"] = "line"

    @classmethod
    def of(cls, name: str, points: Mapping[float, Value | None]) -> "Curve":
        """Through values, with their intervals if all have one above 0."""
        there = {x: value for x, value in points.items() if value is not None}
        ends = [v for v in there.values() if v.low is not None and v.high is not None]
        band = len(ends) == len(there) and all((v.low or 0) > 0 for v in ends)
        return cls(
            name=name,
            x=tuple(float(x) for x in there),
            y=tuple(v.value for v in there.values()),
            low=tuple(v.low or 0.0 for v in ends) if band else (),
            high=tuple(v.high or 0.0 for v in ends) if band else (),
        )


class Panel(Frozen):
    """Curves in one pair of axes."""

    title: Text
    x: Text
    y: Text
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False


class Findings(Frozen):
    """What a kind of experiment gives."""

    tables: tuple[ResultTable, ...] = ()
    panels: tuple[Panel, ...] = ()
    images: tuple[Text, ...] = ()  # files beside the result
    notes: tuple[Text, ...] = ()  # sentences that the numbers give
    reference: Text = ""  # the reference solution that errors are taken to


class ExperimentResult(Findings):
    """Findings with their settings, so that they can be made again."""

    format: Literal["ld3-reproduce-2"] = "ld3-reproduce-2"
    name: Text
    folder: Text  # below that of all results
    title: Text
    place: Text
    model: Text
    quick: bool
    command: Text
    options: Options
    versions: dict[str, Text]
    weights: Text = ""  # of a model inside the package, and of its feature network

    @classmethod
    def load(cls, path: Path) -> "ExperimentResult":
        """Read and check a file."""
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            raise StoreError(
                f"{path}: {wrong_part(error)}; make it anew with `ld3 reproduce`"
            ) from None
