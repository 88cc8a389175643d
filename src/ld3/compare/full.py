"""What many samples look like to a judge: the columns of `--full`.

Fréchet distance to real pictures and to an accurate run from the same noise; kernel distances
(KID's polynomial kernel on all samples, CMMD's Gaussian one), precision and recall against an
accurate run from *other* noise, since these compare sets and not pairs; and how often a classifier
sees the class that was asked for. Each is also computed with one tenth of the samples left out, ten
times, for its interval; a tenth is a run of seeds, in which classes that are asked for in turn have
their share.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ld3 import zoo
from ld3.compare.cells import Cell, Ground
from ld3.compare.summary import Values
from ld3.comparison import Metric
from ld3.errors import SpecError, StoreError
from ld3.grids import knots
from ld3.learner.presets import Teacher
from ld3.metrics import (
    Moments,
    cmmd,
    frechet_distance,
    polynomial_mmd,
    precision_recall,
)
from ld3.models import prior
from ld3.pictures import is_image
from ld3.scores import ACCURATE, BATCH, JUDGED, Tell, sampler, silent
from ld3.searches import make_grid
from ld3.solvers import make_solver
from ld3.store import digest, read_json, read_tensors, write_json, write_tensors
from ld3.table import Table, Tuned, compile_table
from ld3.zoo.features import FeatureNet, load_features

BLOCKS = 10
OTHER = JUDGED + 500_000_000  # where the seeds of the reference set begin


def full_metrics(ground: Ground) -> list[Metric]:
    """The columns, in order."""
    real = ground.loaded.name in zoo.SHIPPED and ground.spec.features is None
    columns = [
        Metric(key="frechet_accurate", label="Fréchet distance to an accurate run"),
        Metric(key="kid", label="KID: kernel distance to an accurate run"),
        Metric(key="cmmd", label="CMMD: Gaussian kernel distance to an accurate run"),
        Metric(key="precision", label="Precision", better="higher"),
        Metric(key="recall", label="Recall", better="higher"),
    ]
    if real:
        to_real = Metric(key="frechet", label="Fréchet distance to real pictures")
        agree = Metric(key="agreement", label="Class as asked for, by the judge", better="higher")
        columns = [to_real, *columns, agree]
    return columns


@dataclass(frozen=True)
class Bench:
    """The judge, and what it says of accurate runs."""

    ground: Ground
    net: FeatureNet
    tell: Tell = silent

    @classmethod
    def of(cls, ground: Ground, tell: Tell = silent) -> "Bench":
        spec = ground.spec
        if not is_image(ground.held.target[:1]):
            raise SpecError(f"full: got {ground.loaded.name}, wanted a model of pictures")
        if spec.features is None and ground.loaded.name not in zoo.SHIPPED:
            raise SpecError(
                f"full: got {ground.loaded.name}, for which there is no judge in the package; name "
                "a feature network with --features FILE"
            )
        return cls(ground, load_features(spec.features, spec.device), tell)

    @cached_property
    def same(self) -> Tensor:
        """Features of an accurate run from the noise the cells are judged on."""
        return self._accurate(JUDGED)

    @cached_property
    def other(self) -> Tensor:
        """And from other noise."""
        return self._accurate(OTHER)

    @cached_property
    def real(self) -> Moments | None:
        shipped = self.ground.loaded.name in zoo.SHIPPED and self.ground.spec.features is None
        return zoo.judge_moments() if shipped else None

    def _accurate(self, first: int) -> Tensor:
        ground, model = self.ground, self.ground.loaded.model
        fine = Teacher(steps=ACCURATE)
        grid = make_grid(fine.grid, model.schedule, fine.steps)
        solver = make_solver(fine.solver, fine.order, fine.variant)
        table = compile_table(solver, knots(model.schedule, grid), model.prediction)
        file = ground.spec.out / "features" / f"{digest(self.key(table, first))}.safetensors"
        if file.exists():
            with suppress(StoreError, KeyError):
                return read_tensors(file)["features"]
        parts = []
        for features, _ in self.seen(table, first):
            parts.append(features)
            self.tell("judge: accurate samples", BATCH * len(parts), ground.spec.judged)
        write_tensors(file, {"features": torch.cat(parts)})
        return torch.cat(parts)

    def key(self, table: Table, first: int = JUDGED) -> dict[str, Any]:
        """What features of samples depend on."""
        return self.ground.identity | {
            "table": [table.weights.tolist(), table.net_times.tolist()],
            "judged": [self.ground.spec.judged, first],
            "judge": self.net.digest,
        }

    @torch.no_grad()
    def seen(self, table: Table, first: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Features (B, D), and whether the class is the one asked for (B,), in batches."""
        ground, model = self.ground, self.ground.loaded.model
        draw = sampler(model, table, ground.spec.guidance)
        for begin in range(0, ground.spec.judged, BATCH):
            seeds = range(first + begin, first + min(begin + BATCH, ground.spec.judged))
            cond = model.conditions(seeds)
            sample = draw(prior(model, seeds, ground.spec.device), cond).float().clamp(-1, 1)
            right = None
            if self.real is not None and isinstance(cond, Tensor) and self.net.logits is not None:
                right = (self.net.logits(sample).argmax(1) == cond).double().cpu()
            yield self.net(sample).double().cpu(), right


def full_of(bench: Bench, cell: Cell, tuned: Tuned, fresh: bool = False) -> Values:
    """All columns of a cell, from disk if they were computed before; empty if not finite."""
    table = bench.ground.table(cell, tuned)
    key = bench.key(table) | {"left out": "tenths in order"}
    file = bench.ground.spec.out / "cells" / f"full-{digest(key)}.json"
    if file.exists() and not fresh:
        with suppress(StoreError, KeyError, TypeError, ValueError, AttributeError):
            content = read_json(file)["values"]
            return {k: (float(v[0]), [float(x) for x in v[1]]) for k, v in content.items()}
    features, rights = zip(*bench.seen(table, JUDGED), strict=True)
    values: Values = {}
    own = torch.cat(features)
    if bool(torch.isfinite(own).all()):
        right = None if rights[0] is None else torch.cat([r for r in rights if r is not None])
        values = _values(bench, own, right)
    write_json(file, {"cell": key, "values": values})
    return values


def without_tenths(count: int) -> list[Tensor]:
    """What is kept (count,) when one tenth after the other is left out."""
    tenth = torch.arange(count, device="cpu") * BLOCKS // count
    return [tenth != g for g in range(BLOCKS)]


def _values(bench: Bench, own: Tensor, right: Tensor | None) -> Values:
    subsets = [torch.ones(len(own), dtype=torch.bool, device="cpu"), *without_tenths(len(own))]
    values: Values = {}

    def note(name: str, of: Callable[[Tensor], float]) -> None:
        numbers = [of(keep) for keep in subsets]
        values[name] = (numbers[0], numbers[1:])

    moments = [Moments.of([own[keep]]) for keep in subsets]
    same = [Moments.of([bench.same[keep]]) for keep in subsets]
    for name, references in (("frechet", [bench.real] * len(subsets)), ("frechet_accurate", same)):
        numbers = [
            frechet_distance(a, b)
            for a, b in zip(moments, references, strict=True)
            if b is not None
        ]
        if numbers:
            values[name] = (numbers[0], numbers[1:])
    note("kid", lambda keep: polynomial_mmd(own[keep], bench.other))
    note("cmmd", lambda keep: cmmd(own[keep], bench.other))
    near = [precision_recall(bench.other, own[keep]) for keep in subsets]
    values["precision"] = (near[0].precision, [n.precision for n in near[1:]])
    values["recall"] = (near[0].recall, [n.recall for n in near[1:]])
    if right is not None:
        note("agreement", lambda keep: float(right[keep].mean()))
    return values
