"""The result of a comparison: the content of `compare.json`, checked when it is read.

It holds everything a table or a page shows, so that neither computes anything.
"""

import csv
import io
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ld3.errors import StoreError, wrong_part
from ld3.scores import Number
from ld3.store import read_json, write_bytes, write_json

Text = Annotated[str, Field(max_length=2000)]
Count = Annotated[int, Field(ge=0)]
Png = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$", max_length=4_000_000)]  # base64
Kind = Literal["handmade", "published", "searched", "learned"]
Gain = Literal["gain", "none", "worse", ""]


def _with_shape(model: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(model.get("shape", []), list):
        raise ValueError("shape should be a list")
    return model


def _with_accurate(teacher: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(teacher.get("accurate", {}), dict):
        raise ValueError("accurate should be an object")
    return teacher


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Range(_Part):
    """A number with its 95 % interval."""

    value: Number
    low: Number
    high: Number


class Metric(_Part):
    """A column, and what it is."""

    key: Text  # name in the scores
    label: Text  # title of the column
    unit: Text = ""  # of the values
    better: Literal["lower", "higher"] = "lower"


class Method(_Part):
    """A way to choose the times."""

    name: Text
    kind: Kind  # handmade, published, searched or learned
    source: Text  # paper or code it comes from
    needs: list[Text] = []  # what it looks at: model, pairs


class Row(_Part):
    """One method with one solver and number of evaluations."""

    method: Text
    kind: Kind  # handmade, published, searched or learned
    seeds: Count  # random seeds
    failed: Text = ""  # why there is nothing else
    scores: dict[Text, Range] = {}  # by the key of the metric
    ratio: Range | None = None  # of its distance to that of the best baseline
    wins: Number | None = None  # share of held-out seeds where it is nearer than the best baseline
    median: Number | None = None  # median distance over held-out seeds
    worst: Number | None = None  # largest distance over held-out seeds
    evaluations: Count = 0  # of the network on one sample, a backward pass as two
    teacher_evaluations: Count = 0  # for the pairs, if the method needs them
    seconds: Number = 0.0  # seconds to find the times
    lam: list[Number] = []  # log(alpha/sigma) of the times, first seed
    net_lam: list[Number] = []  # the same of the network times
    corrected: bool = False  # whether the solver's coefficients were changed, too
    start: Text = ""  # where a learned method began, first seed
    slope: Literal["exact", "secant", ""] = ""  # how it took slopes in time
    curve: list[Number] = []  # what the method minimised, of the first seed
    distances: list[Number] = []  # per held-out seed, mean over runs


class Block(_Part):
    """One solver and one number of evaluations."""

    solver: Text
    nfe: Count  # network evaluations
    baseline: Text | None  # the best of the methods that are not learned
    featured: Text | None  # the learned method that is shown; fixed before any result
    verdict: Text  # one sentence: what wins, by how much
    gain: Gain  # gain, none or worse
    rows: list[Row]  # methods, best first


class Sheet(_Part):
    """Images of one block from the same noise, by the number of the held-out seed."""

    solver: Text
    nfe: Count  # network evaluations
    before: Text  # method
    after: Text  # method, or "teacher"
    first: list[Count]  # the first held-out seeds
    worst_after: list[Count]  # where `after` is farthest from the teacher
    worst_before: list[Count]  # where `before` is farthest from the teacher
    least_gain: list[Count]  # where `after` gains least, or loses most
    before_png: dict[Text, Png]  # by held-out seed, in base64
    after_png: dict[Text, Png]


class Pictures(_Part):
    """Images as PNG, perhaps made smaller."""

    height: Count  # in pixels
    width: Count  # in pixels
    teacher: dict[Text, Png]  # by held-out seed
    sheets: list[Sheet]


class Comparison(_Part):
    """A comparison of methods."""

    format: Literal["ld3-compare-1"] = "ld3-compare-1"
    command: Text  # command line that made it
    spec: dict[Text, Any]  # its options
    model: Annotated[dict[Text, Any], AfterValidator(_with_shape)]
    teacher: Annotated[dict[Text, Any], AfterValidator(_with_accurate)]
    seeds: dict[Text, Text]  # what each range of seeds was used for
    versions: dict[Text, Text]  # versions of Python and packages
    metrics: list[Metric]
    methods: list[Method]
    blocks: list[Block]
    pictures: Pictures | None = None  # images, for models of images

    @classmethod
    def load(cls, path: Path) -> "Comparison":
        """Read and check a file."""
        return cls.checked(read_json(path), str(path))

    @classmethod
    def checked(cls, content: object, name: str = "comparison") -> "Comparison":
        """From parsed JSON, or a :class:`StoreError` that says what is wrong with it."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            reason = f"{name}: {wrong_part(error)}; make it anew with `ld3 compare`"
            raise StoreError(reason) from None

    def save(self, path: Path) -> None:
        """Whole or not at all."""
        write_json(path, self.model_dump(mode="json"))

    def write_csv(self, path: Path) -> None:
        """One line a method, solver and number of evaluations."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        keys = [metric.key for metric in self.metrics]
        ends = ("value", "low", "high")
        ranges = [f"{k}_{end}".removesuffix("_value") for k in [*keys, "ratio"] for end in ends]
        costs = ["evaluations", "teacher_evaluations", "seconds"]
        spread = ["wins", "median", "worst"]
        place = ("model", "solver", "nfe", "best_baseline", "method", "kind", "seeds")
        writer.writerow([*place, *ranges, *spread, *costs, "failed"])
        for block in self.blocks:
            where = [_cell(self.model["name"]), block.solver, block.nfe, block.baseline]
            for row in block.rows:
                several = [*(row.scores.get(key) for key in keys), row.ratio]
                numbers = [getattr(r, end, "") for r in several for end in ends]
                rest = [*(getattr(row, name) for name in (*spread, *costs)), _cell(row.failed)]
                writer.writerow([*where, row.method, row.kind, row.seeds, *numbers, *rest])
        write_bytes(path, text.getvalue().encode())


def _cell(text: object) -> str:
    """Text that no spreadsheet takes for a formula."""
    word = str(text)
    return f"'{word}" if word[:1] in "=+-@" else word
