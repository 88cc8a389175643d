"""Where an experiment takes place: its model, folders, device and number of processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ld3 import zoo
from ld3.comparison import Comparison
from ld3.runs.compare.run import run_compare, write_files
from ld3.runs.compare.spec import CompareSpec
from ld3.runs.engines import Engine, EngineName, make_engine
from ld3.runs.progress import Report
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.spec import RunSpec


@dataclass(frozen=True)
class Context:
    """Everything is stored in the cache of `out`, so that experiments share pairs and plans."""

    model: str
    folder: Path  # of the result
    out: Path
    report: Report
    jobs: int = 1
    features: Path | None = None  # feature network for models that are not shipped
    data: Path | None = None  # what samples are compared with: see `ld3 evaluate`
    resize: str | None = None  # rule of the FID Inception
    device: str = "cpu"
    network: Mapping[str, Any] = field(default_factory=dict)  # pipeline, dtype, batch, where given
    ranks: Ranks = ALONE
    engine_name: EngineName = "local"
    gpus_per_cell: float = 0.0

    @property
    def own_folder(self) -> Path | None:
        """Where this rank writes; only the first does."""
        return self.folder if self.ranks.is_first else None

    @property
    def engine(self) -> Engine | None:
        """What makes runs ahead."""
        return make_engine(self.engine_name, self.jobs, self.gpus_per_cell)

    def compared(self, spec: CompareSpec) -> Comparison:
        """A comparison, whose files go to the folder of the result."""
        comparison = run_compare(spec, self.report, ranks=self.ranks)
        if self.ranks.is_first:
            write_files(comparison, self.folder)
        return comparison

    def compare_spec(self, options: Mapping[str, Any]) -> CompareSpec:
        """Options of `ld3 compare` on this model."""
        fixed: dict[str, Any] = {
            "model": self.model, "out": self.out, "jobs": self.jobs, "device": self.device,
            "engine": self.engine_name, "gpus_per_cell": self.gpus_per_cell, **self.network,
        }  # fmt: skip
        if self.model not in zoo.SHIPPED or zoo.SHIPPED[self.model].distance is None:
            known = self.features is not None or self.data is not None
            fixed |= {"features": self.features, "full": bool(options.get("full")) and known}
        if self.data is not None:
            fixed |= {"features": self.features, "data": self.data, "resize": self.resize}
        return CompareSpec.read({**options, **fixed})

    def run_spec(self, options: Mapping[str, Any]) -> RunSpec:
        """Options of `ld3 learn` on this model, or on the one they name."""
        own = {"out": self.out, "device": self.device, **self.network}
        return RunSpec.read({"model": self.model, **options, **own})
