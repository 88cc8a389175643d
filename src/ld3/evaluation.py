"""What an evaluation came to: the content of `evaluate.json`, checked when it is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ld3.errors import StoreError
from ld3.store import read_json, write_json

LABELS = {  # by name of --metrics
    "fid": "FID to the data",
    "fid-accurate": "FID to the accurate run",
    "kid": "KID to the data",
    "cmmd": "CMMD to the data",
    "precision": "precision",
    "recall": "recall",
    "agreement": "class as requested",
    "clip": "CLIP score",
}
Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=4000)]


@dataclass(frozen=True)
class Cost:
    """What an evaluation takes, over all plans and grids, if nothing of it is in the cache."""

    samples: int
    calls: int  # network evaluations on one sample
    passes: int  # with guidance, an evaluation is two
    seconds: float
    memory: int  # bytes, of the GPU if there is one, else of the process
    disk: int  # bytes
    batch: int  # that was timed
    per_call: float  # seconds of one evaluation on one sample
    per_features: float  # seconds of the features of one sample


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Estimate(_Part):
    """A metric with its 95 % interval; the interval is for other samples of the same number."""

    value: Number
    low: Number  # lower end of the interval
    high: Number  # upper end
    infinity: Number | None = None  # what unboundedly many samples would have

    @property
    def bias(self) -> float | None:
        """What is due to the number of samples."""
        return None if self.infinity is None else self.value - self.infinity


class EvaluatedRow(_Part):
    """One plan, or one grid with its solver."""

    name: Text
    solver: Text
    nfe: int  # network evaluations
    metrics: dict[str, Estimate]  # by name of --metrics
    failed: Text = ""  # why there are no metrics
    kept: Text = ""  # where its samples are


class Evaluation(_Part):
    """An evaluation of plans and grids by set metrics."""

    format: Literal["ld3-evaluate-1"] = "ld3-evaluate-1"
    command: Text  # command line that made it
    model: Text
    model_digest: Text  # hash of the model
    guidance: Number  # scale of classifier-free guidance
    samples: int  # number of samples
    seeds: Text  # seeds of the noise
    network: Text  # feature network
    network_digest: Text  # hash of its weights
    resize: Text  # resize rule
    data: Text  # reference data; empty: none
    data_digest: Text  # hash of them
    reference: Text  # the accurate run
    metrics: tuple[Text, ...]  # names of `--metrics`
    rows: tuple[EvaluatedRow, ...]
    versions: dict[str, Text]  # versions of Python and packages

    def save(self, path: Path) -> None:
        write_json(path, self.model_dump(mode="json"))

    @classmethod
    def load(cls, path: Path) -> "Evaluation":
        """Read and check a file."""
        content: Any = read_json(path)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole file"
            raise StoreError(
                f"{path}: {where}: {first['msg']}; make it anew with `ld3 evaluate`"
            ) from None
