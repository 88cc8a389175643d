"""Metrics of whole sets of samples, by the features of a network that learning never uses.

Fréchet distance to data, and to the reference solution from the same noise; KID and CMMD, precision
and recall against the reference from *other* noise, since these compare sets and not pairs, or
against the data; and how often a classifier sees the class of the condition. Each is also
computed with one tenth of the samples left out, ten times, for its interval.

Samples come in chunks from the cache (:mod:`ld3.runs.evaluation.chunks`): memory does not grow with
their number. Sums are taken in the order of the samples, in float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ld3 import zoo
from ld3.errors import SpecError
from ld3.images import is_image
from ld3.metrics.coverage import precisions_recalls
from ld3.metrics.frechet import Gaussian, Moments, frechet_at_infinity, frechet_distance
from ld3.metrics.inception import Resize
from ld3.metrics.kernel import FeatureSet, cmmds, kids
from ld3.runs.evaluation.chunks import (
    GROUPS,
    NotFinite,
    Samples,
    View,
    feature_set,
    fill,
    make_all,
    read_all,
)
from ld3.runs.evaluation.references import Reference, load_reference
from ld3.runs.progress import silent
from ld3.runs.session import Session, table_key
from ld3.seeds import Purpose
from ld3.store import digest
from ld3.table import Table
from ld3.zoo.features import PACKAGE, FeatureNet, feature_net

Found = TypeVar("Found")
Values = dict[str, tuple[float, list[float]]]
"""By metric: on all samples, and without each tenth of them in turn."""


@dataclass(frozen=True)
class SetMetrics:
    """A feature network with what samples are compared to: data, and the reference solution."""

    session: Session
    net: FeatureNet
    count: int  # samples
    data: Reference | None
    names: tuple[str, ...] = ()  # of metrics that :meth:`values` gives; none: all

    @classmethod
    def of(
        cls,
        session: Session,
        count: int,
        features: Path | None = None,
        data: Path | None = None,
        resize: Resize | None = None,
    ) -> "SetMetrics":
        """With the network from a file, or the package's own for its own models, or the FID
        Inception where it is found; and with the data at a path, or the package's own."""
        sample = session.reporting(silent).held_out(2).target
        if not is_image(sample):
            raise SpecError(f"set metrics: got {session.loaded.name}, expected a model of images")
        shipped = zoo.has_features(session.loaded.name)
        net = feature_net(features, shipped, session.device, resize)
        size = (int(sample.shape[-2]), int(sample.shape[-1]))
        reference = None
        if data is not None:
            dimension = net(torch.zeros(1, *sample.shape[1:])).shape[1]
            found = load_reference(data, net, session.cache, session.report, size)
            reference = found.checked(net, dimension, size)
        elif shipped and net.name == PACKAGE:
            reference = own_reference(net)
        return cls(session, net, count, reference)

    def prepare(self) -> None:
        """Fill the cache with all samples of the reference solution that metrics need."""
        needed: dict[Purpose, set[str]] = {
            "evaluation": {"frechet_accurate"},
            "reference": {"kid", "cmmd", "precision", "recall"},
        }
        for purpose, metrics in needed.items():
            if metrics & set(self._wanted):
                make_all(self.session, self.reference(purpose), [self.view])

    @cached_property
    def alone(self) -> "SetMetrics":
        """The same on one rank."""
        return replace(self, session=self.session.alone())

    def _by_first(self, samples: Sequence[Samples], make: Callable[["SetMetrics"], Found]) -> Found:
        """What `make` gives on rank 0, once all ranks have made the samples."""
        if self.session.ranks.world == 1:
            return make(self)
        for one in samples:
            fill(self.session, one, self._views)
        found: Found = self.session.ranks.first(lambda: make(self.alone))
        return found

    @property
    def _views(self) -> list[View]:
        return [self.view, *([self.agreement] if self.has_classes else [])]

    def frechet(self, table: Table | None) -> dict[str, float]:
        """Fréchet distances only; those of the reference solution itself without a table. Empty if
        a sample is not finite."""
        key = {**self._key, "what": "frechet", "table": None if table is None else table_key(table)}
        own = self.reference() if table is None else self.samples(table)

        def make(sets: SetMetrics) -> dict[str, float]:
            try:
                moments = sets._whole(own)
            except NotFinite:
                return {}
            found = {"frechet_accurate": frechet_distance(moments, sets._whole(sets.reference()))}
            if sets.data is not None:
                found["frechet"] = frechet_distance(moments, sets.data.gaussian)
            return found

        samples = [own, self.reference()]
        return dict(self.session.cache.json("sets", key, lambda: self._by_first(samples, make)))

    def values(self, table: Table) -> Values:
        """All metrics of a table; empty if a sample is not finite."""
        return self.chosen(self.samples(table), self._wanted)

    @property
    def _wanted(self) -> list[str]:
        names = ["frechet"] if self.data is not None else []
        names += ["frechet_accurate", "kid", "cmmd", "precision", "recall"]
        names += ["agreement"] if self.has_classes else []
        return [name for name in names if not self.names or name in self.names]

    def chosen(self, samples: Samples, names: Sequence[str]) -> Values:
        """Metrics by name: `frechet`, and those of :data:`PAIRED` with and without `_data`; empty
        if a sample is not finite."""
        key = {**self._key, "table": table_key(samples.table), "what": list(names)}

        def make(sets: SetMetrics) -> Values:
            try:
                return sets._values(samples, names)
            except NotFinite:
                return {}

        return as_values(
            self.session.cache.json("sets", key, lambda: self._by_first([samples], make))
        )

    def check(self, name: str) -> None:
        """What a metric lacks is a :class:`SpecError` before any work."""
        if name == "agreement":
            _ = self.agreement
        elif name == "frechet":
            _ = self._target
        elif name.endswith("_data"):
            self._others("_data", name.removesuffix("_data"))

    def at_infinity(self, samples: Samples) -> float:
        """The Fréchet distance to the data that unboundedly many samples would have."""
        key = {**self._key, "table": table_key(samples.table), "what": "infinity"}

        def make() -> float:
            return frechet_at_infinity(self._moments(samples), self._target)

        return float(self.session.cache.json("sets", key, make))

    def samples(self, table: Table, name: str = "") -> Samples:
        return Samples(table, self.count, name=name)

    def reference(self, purpose: Purpose = "evaluation") -> Samples:
        """The reference solution, from the noise that is evaluated or from other noise."""
        table = self.session.table(self.session.reference)
        return Samples(table, self.count, purpose, "samples of the reference solution")

    @property
    def view(self) -> View:
        return View(self.net.digest, lambda images, numbers: self.net(images))

    @property
    def has_classes(self) -> bool:
        """Whether the network's class scores are for the classes of the model."""
        return zoo.has_features(self.session.loaded.name) and self.net.logits is not None

    @property
    def _key(self) -> dict[str, Any]:
        return {
            **self.session.source,
            "reference": asdict(self.session.reference),
            "samples": self.count,
            "features": self.net.digest,
            "data": None if self.data is None else self.data.digest,
        }

    @property
    def _target(self) -> Gaussian:
        if self.data is None:
            raise SpecError(
                "data: got none, expected --data REFERENCE: an .npz or .pkl of statistics, a "
                "folder or a zip of images"
            )
        return self.data.gaussian

    def _values(self, samples: Samples, names: Sequence[str]) -> Values:
        found: dict[str, list[float]] = {}
        if {"frechet", "frechet_accurate"} & set(names):
            parts = self._moments(samples)
            if "frechet" in names:
                found["frechet"] = [frechet_distance(m, self._target) for m in left_out(parts)]
            if "frechet_accurate" in names:
                pairs = zip(left_out(parts), self._accurate, strict=True)
                found["frechet_accurate"] = [frechet_distance(a, b) for a, b in pairs]
        own = feature_set(self.session, samples, self.view)
        for end in ("", "_data"):
            if f"kid{end}" in names:
                found[f"kid{end}"] = kids(own, self._others(end, "kid"))
            if f"cmmd{end}" in names:
                found[f"cmmd{end}"] = cmmds(own, self._others(end, "cmmd"))
            if {f"precision{end}", f"recall{end}"} & set(names):
                near = precisions_recalls(self._others(end, "precision"), own)
                found[f"precision{end}"] = [n.precision for n in near]
                found[f"recall{end}"] = [n.recall for n in near]
        if "agreement" in names:
            found["agreement"] = self.means(samples, self.agreement)
        return {name: (found[name][0], found[name][1:]) for name in names}

    def means(self, samples: Samples, view: View) -> list[float]:
        """The mean of a view with one number a sample, and without each tenth."""
        totals = torch.zeros(GROUPS, dtype=torch.float64, device="cpu")
        for g, rows in feature_set(self.session, samples, view).blocks():
            totals[g] += rows.double().sum()
        sizes = torch.tensor(samples.sizes, dtype=torch.float64, device="cpu")
        all_but = (totals.sum() - totals) / (sizes.sum() - sizes)
        return [float(totals.sum() / sizes.sum()), *all_but.tolist()]

    @property
    def agreement(self) -> View:
        """Whether the class of an image is that of its condition, 0 or 1."""
        logits, conditions = self.net.logits, self.session.model.conditions
        if logits is None or not self.has_classes:
            raise SpecError(
                f"agreement: got {self.net.name}, which has no labels for the classes of "
                f"{self.session.loaded.name}; leave agreement out of --metrics"
            )

        def seen(images: Tensor, numbers: Sequence[int]) -> Tensor:
            labels = conditions(numbers)
            assert isinstance(labels, Tensor)
            return (logits(images).argmax(1) == labels).float()[:, None]

        return View(digest([self.net.digest, "agreement"]), seen)

    def _moments(self, samples: Samples) -> list[Moments]:
        """Of each tenth."""
        parts: dict[int, Moments] = {}
        for g, rows in feature_set(self.session, samples, self.view).blocks():
            more = Moments.sums(rows)
            parts[g] = parts[g] + more if g in parts else more
        return [parts[g] for g in sorted(parts)]

    def _whole(self, samples: Samples) -> Moments:
        every = read_all(self.session, samples, [self.view])
        return Moments.of(rows for _, (rows,) in every)

    @cached_property
    def _accurate(self) -> list[Gaussian]:
        """The reference solution: all, and without each tenth; their roots are found once."""
        return [moments.gaussian for moments in left_out(self._moments(self.reference()))]

    def _others(self, end: str, metric: str) -> FeatureSet:
        """Independent samples: the data, or the reference solution from other noise."""
        if not end:
            found = feature_set(self.session, self.reference("reference"), self.view)
            return FeatureSet((self.count,), lambda: ((0, rows) for _, rows in found.blocks()))
        _ = self._target
        assert self.data is not None
        return self.data.needed(metric)


def as_values(content: Mapping[str, Any]) -> Values:
    """From JSON."""
    return {name: (float(v[0]), [float(x) for x in v[1]]) for name, v in content.items()}


def left_out(parts: Sequence[Moments]) -> list[Moments]:
    """The sum of all parts; then of all but one, in turn."""
    each = [[p for h, p in enumerate(parts) if h != g] for g in range(len(parts))]
    return [reduce(add, some) for some in (parts, *each)]


def own_reference(net: FeatureNet) -> Reference:
    """The 10,000 test images of Fashion-MNIST, in the features of the package's own network."""
    moments = zoo.judge_moments()
    return Reference(
        "Fashion-MNIST test set", digest([net.digest, "test"]), moments.gaussian, moments.count,
        (28, 28), net.digest, net.name, net.resize,
    )  # fmt: skip
