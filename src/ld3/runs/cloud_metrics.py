"""Metrics of whole sets of point clouds, against real ones: :mod:`ld3.metrics.points`.

In the units of published tables: MMD and JSD times 1000, coverage and 1-NNA in percent. Each is
also computed with one tenth of the samples left out, ten times, for its interval.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ld3 import zoo
from ld3.errors import SpecError
from ld3.metrics.points import (
    chamfer_matrix,
    chamfer_within,
    check_clouds,
    check_pair,
    divergence,
    matching,
    neighbour_accuracy,
    occupancy,
    to_box,
)
from ld3.runs.evaluation.chunks import GROUPS
from ld3.runs.session import Session, table_key
from ld3.runs.set_metrics import Values, as_values
from ld3.seeds import seeds_for
from ld3.store import read_tensors, tensor_checksum
from ld3.table import Table

NAMES = ("mmd", "coverage", "nna", "jsd", "jsd_half")


@dataclass(frozen=True)
class CloudMetrics:
    """Real clouds (m, P, 3), each in its box, and how many samples are compared with them."""

    session: Session
    real: Tensor
    count: int

    @classmethod
    def of(cls, session: Session, count: int, file: Path | None = None) -> "CloudMetrics":
        """With test clouds of a shipped model, or the tensor `clouds` of a safetensors file: the
        first `count` of them, since metrics depend on the size of both sets."""
        name = session.loaded.name
        if file is None and name not in zoo.SHIPPED:
            raise SpecError(
                f"full: got {name}, for which the package has no real clouds; name a .safetensors "
                "file with a tensor `clouds` (n, points, 3): --features FILE"
            )
        real = zoo.real_clouds() if file is None else _read(file)
        check_pair(torch.zeros(1, *session.model.shape), real)
        return cls(session, to_box(real[:count]), count)

    def prepare(self) -> None:
        """What all tables share."""
        _ = self._inside

    def values(self, table: Table) -> Values:
        """All metrics of a table; empty if a sample is not finite."""
        session = self.session
        clouds = tensor_checksum({"": self.real})
        own = {"samples": self.count, "clouds": clouds, "table": table_key(table)}
        key = {**session.source, **own}

        def make() -> Values:
            found = session.samples(table, seeds_for("evaluation", self.count)).cpu()
            return self._values(to_box(found)) if bool(torch.isfinite(found).all()) else {}

        return as_values(session.cache.json("sets", key, make))

    @cached_property
    def _inside(self) -> Tensor:
        """Distances between the real clouds, (m, m)."""
        key = {"clouds": tensor_checksum({"": self.real}), "what": "chamfer"}
        found = self.session.cache.tensors(
            "features", key, lambda: {"distances": chamfer_within(self.real)}
        )
        return found["distances"]

    @cached_property
    def _cells(self) -> dict[int, Tensor]:
        """Where the real points are, by how much the grid is enlarged."""
        return {shrink: occupancy(self.real, shrink).sum(0) for shrink in (1, 2)}

    def _values(self, own: Tensor) -> Values:
        across, within = chamfer_matrix(own, self.real), chamfer_within(own)
        cells = {shrink: occupancy(own, shrink) for shrink in self._cells}
        rows = []
        tenth = torch.arange(len(own), device="cpu") * GROUPS // len(own)
        for left_out in range(-1, GROUPS):  # at first none
            keep = tenth != left_out
            mmd, coverage = matching(across[keep])
            nna = neighbour_accuracy(within[keep][:, keep], self._inside, across[keep])
            whole, half = (
                divergence(counts[keep].sum(0), self._cells[shrink])
                for shrink, counts in cells.items()
            )
            rows.append((1000 * mmd, 100 * coverage, 100 * nna, 1000 * whole, 1000 * half))
        columns = dict(zip(NAMES, zip(*rows, strict=True), strict=True))
        return {name: (numbers[0], list(numbers[1:])) for name, numbers in columns.items()}


def _read(file: Path) -> Tensor:
    tensors = read_tensors(file.expanduser())
    if "clouds" not in tensors:
        raise SpecError(
            f"features: got {file} with {', '.join(sorted(tensors)[:3]) or 'nothing'}, expected "
            "real point clouds as a tensor `clouds` (n, points, 3)"
        )
    return check_clouds(tensors["clouds"], f"features: {file}")
