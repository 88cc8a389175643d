"""Metrics of whole sets of samples, by the features of a network that learning never uses.

Fréchet distance to real images, and to the reference solution from the same noise; KID and CMMD,
precision and recall against the reference from *other* noise, since these compare sets and not
pairs; and how often a classifier sees the class that was asked for. Each is also computed with one
tenth of the samples left out, ten times, for its interval. A tenth is a run of seeds, in which
classes that are asked for in turn have their share.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3 import zoo
from ld3.errors import SpecError
from ld3.images import is_image
from ld3.metrics import Moments, cmmd, frechet_distance, polynomial_mmd, precision_recall
from ld3.models import Cond
from ld3.runs.session import Session, batches, table_key
from ld3.seeds import Purpose, seeds_for
from ld3.table import Table
from ld3.teacher import sample_table
from ld3.zoo.features import FeatureNet, load_features

BLOCKS = 10
Values = dict[str, tuple[float, list[float]]]
"""By metric: on all samples, and without each tenth of them in turn."""


@dataclass(frozen=True)
class SetMetrics:
    """A feature network, and its features of the reference solution."""

    session: Session
    net: FeatureNet
    count: int  # samples
    real: Moments | None  # of real images, for shipped models

    @classmethod
    def of(cls, session: Session, count: int, features: Path | None = None) -> "SetMetrics":
        """With the shipped feature network, or one from a file."""
        name = session.loaded.name
        if not is_image(session.held_out(2).target):
            raise SpecError(f"full: got {name}, expected a model of images")
        if features is None and name not in zoo.SHIPPED:
            raise SpecError(
                f"full: got {name}, for which the package has no feature network; name one with "
                "--features FILE"
            )
        real = zoo.judge_moments() if features is None else None
        return cls(session, load_features(features, session.device), count, real)

    def prepare(self) -> None:
        """Make what all tables share."""
        _ = self.same, self.other

    @cached_property
    def same(self) -> Tensor:
        """Features (n, D) of the reference from the noise that is evaluated."""
        return self._reference("evaluation")

    @cached_property
    def other(self) -> Tensor:
        """Features (n, D) of the reference from other noise."""
        return self._reference("reference")

    def frechet(self, table: Table | None) -> dict[str, float]:
        """Fréchet distances only; those of the reference itself without a table."""
        key = {**self._key, "what": "frechet", "table": None if table is None else table_key(table)}

        def make() -> dict[str, float]:
            own = self.same if table is None else self._seen(table, "evaluation", "")[0]
            moments = Moments.of([own])
            found = {"frechet_accurate": frechet_distance(moments, Moments.of([self.same]))}
            if self.real is not None:
                found["frechet"] = frechet_distance(moments, self.real)
            return found

        found: dict[str, float] = self.session.cache.json("sets", key, make)
        return found

    def values(self, table: Table) -> Values:
        """All metrics of a table; empty if a sample is not finite."""
        key = {**self._key, "what": "all", "table": table_key(table)}

        def make() -> Values:
            own, right = self._seen(table, "evaluation", "")
            return self._values(own, right) if bool(torch.isfinite(own).all()) else {}

        content = self.session.cache.json("sets", key, make)
        return {name: (float(v[0]), [float(x) for x in v[1]]) for name, v in content.items()}

    @property
    def _key(self) -> dict[str, Any]:
        return {
            **self.session.source,
            "reference": asdict(self.session.reference),
            "samples": self.count,
            "features": self.net.digest,
        }

    def _reference(self, purpose: Purpose) -> Tensor:
        session = self.session
        table = session.reference.table(session.model.schedule, session.model.prediction)

        def make() -> dict[str, Tensor]:
            return {"features": self._seen(table, purpose, "features of the reference")[0]}

        key = {**self._key, "seeds": purpose}
        return session.cache.tensors("features", key, make)["features"]

    def _seen(self, table: Table, purpose: Purpose, what: str) -> tuple[Tensor, Tensor | None]:
        """Features (n, D), and whether the class is the one asked for (n,)."""
        features, right, done = [], [], 0
        for found, as_asked in self._batches(table, purpose):
            features.append(found)
            right.append(as_asked)
            done += len(found)
            if what:
                self.session.report(what, done, self.count)
        known = [part for part in right if part is not None]
        return torch.cat(features), torch.cat(known) if known else None

    @torch.no_grad()
    def _batches(self, table: Table, purpose: Purpose) -> Iterator[tuple[Tensor, Tensor | None]]:
        session = self.session
        for seeds in batches(seeds_for(purpose, self.count), session.batch):
            sample = sample_table(
                session.model, table, seeds, guidance=session.guidance, device=session.device
            )
            sample = sample.float().clamp(-1, 1)
            yield self.net(sample).double().cpu(), self._as_asked(sample, seeds)

    def _as_asked(self, sample: Tensor, seeds: range) -> Tensor | None:
        cond: Cond = self.session.model.conditions(seeds)
        if self.real is None or self.net.logits is None or not isinstance(cond, Tensor):
            return None
        return (self.net.logits(sample).argmax(1) == cond).double().cpu()

    def _values(self, own: Tensor, right: Tensor | None) -> Values:
        subsets = [torch.ones(len(own), dtype=torch.bool, device="cpu"), *without_tenths(len(own))]
        numbers: dict[str, list[float]] = {}
        moments = [Moments.of([own[keep]]) for keep in subsets]
        if self.real is not None:
            numbers["frechet"] = [frechet_distance(found, self.real) for found in moments]
        same = [Moments.of([self.same[keep]]) for keep in subsets]
        numbers["frechet_accurate"] = list(map(frechet_distance, moments, same))
        numbers["kid"] = [polynomial_mmd(own[keep], self.other) for keep in subsets]
        numbers["cmmd"] = [cmmd(own[keep], self.other) for keep in subsets]
        near = [precision_recall(self.other, own[keep]) for keep in subsets]
        numbers["precision"] = [found.precision for found in near]
        numbers["recall"] = [found.recall for found in near]
        if right is not None:
            numbers["agreement"] = [float(right[keep].mean()) for keep in subsets]
        return {name: (first, others) for name, (first, *others) in numbers.items()}


def without_tenths(count: int) -> list[Tensor]:
    """What is kept (count,) when one tenth after the other is left out."""
    tenth = torch.arange(count, device="cpu") * BLOCKS // count
    return [tenth != g for g in range(BLOCKS)]
