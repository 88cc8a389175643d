"""A session: one model with its distance, teacher, pairs, held-out seeds and reference solution.

Every walk starts from one. What a session makes, it makes at most once: it looks in memory, then in
the cache, and only then runs the network. Ranks share that: each makes some of the chunks of seeds.

The *reference* approximates the exact solution. It is the same for everything that is compared, and
has twice as many steps as the teacher unless a number is given.
"""

import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ld3 import __version__
from ld3.distances import Distance
from ld3.metrics.fidelity import per_sample, rmse
from ld3.models import Model
from ld3.problem import Problem
from ld3.runs.cache import Cache
from ld3.runs.progress import Report, counted, silent, uncounted
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.spec import BATCH, Settings
from ld3.seeds import noise, seeds_for
from ld3.share import Tensors
from ld3.solvers import Solver
from ld3.store import digest
from ld3.table import Table, TunedSolver
from ld3.teacher import Pairs, Teacher, TeacherCheck, make_pairs, sample_table
from ld3.zoo.loading import Loaded, Measure, load_model, make_measure, of_model, with_batch

KEYS = ("distance", "distance_accurate", "rmse", "rmse_accurate")
OWN = "own"  # the name of a model that was given as an object
Made = TypeVar("Made")


@dataclass(frozen=True)
class Session:
    """Everything that runs on one model share."""

    loaded: Loaded
    measure: Measure
    teacher: Teacher
    reference: Teacher
    guidance: float = 1.0
    device: str = "cpu"
    batch: int = BATCH
    cache: Cache = field(default_factory=lambda: Cache(None))
    report: Report = silent
    check: TeacherCheck | None = None  # of the teacher, if it was made
    _memory: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def model(self) -> Model:
        return self.loaded.model

    @property
    def distance(self) -> Distance:
        return self.measure.distance

    @property
    def ranks(self) -> Ranks:
        return self.cache.ranks

    def alone(self) -> "Session":
        """The same for work that one rank does by itself."""
        return replace(self, cache=replace(self.cache, ranks=ALONE))

    def without_folder(self) -> "Session":
        """The same, which neither reads nor stores anything."""
        return replace(self, cache=Cache(None), _memory={})

    def at_guidance(self, scale: float) -> "Session":
        return self if scale == self.guidance else replace(self, guidance=scale)

    def reporting(self, report: Report) -> "Session":
        return replace(self, report=report)

    def with_teacher(self, teacher: Teacher, reference: Teacher) -> "Session":
        same = teacher == self.teacher and reference == self.reference
        return self if same else replace(self, teacher=teacher, reference=reference)

    @property
    def source(self) -> dict[str, Any]:
        """What samples depend on besides noise and table."""
        return {"model": self.loaded.identity, "guidance": self.guidance}

    @property
    def identity(self) -> dict[str, Any]:
        """What distances to the teacher depend on besides noise and table."""
        teacher = asdict(self.teacher)
        return {**self.source, "distance": self.measure.identity, "teacher": teacher}

    def problem(
        self, solver: Solver, steps: int, train: int, valid: int, seed: int | None
    ) -> Problem:
        """With the pairs of a seed; without a seed there are none."""
        empty = torch.empty(0, *self.model.shape, device=self.device)
        pairs = (Pairs((), empty, None, empty),) * 2
        if seed is not None:
            pairs = self.training(train, seed), self.validation(valid, seed)
        return Problem(
            self.model, solver, steps, self.distance, *pairs, self.guidance, batch=self.batch,
            share=self.ranks.share,
        )  # fmt: skip

    def training(self, count: int, run: int) -> Pairs:
        return self.pairs(seeds_for("training", count, run), "training pairs")

    def validation(self, count: int, run: int) -> Pairs:
        return self.pairs(seeds_for("validation", count, run), "validation pairs")

    def held_out(self, count: int) -> Pairs:
        return self.pairs(seeds_for("held-out", count), "held-out pairs")

    def exact(self, count: int) -> Tensor:
        """Samples of the reference from held-out seeds."""
        seeds = seeds_for("held-out", count)
        return self.pairs(seeds, "reference samples", self.reference).target

    def pairs(self, seeds: Sequence[int], what: str, teacher: Teacher | None = None) -> Pairs:
        """Of the session's teacher, or of another."""
        teacher = teacher or self.teacher
        key = {**self.source, "teacher": asdict(teacher)}
        model = self.model

        def make() -> Pairs:
            more = counted(self.report, what, len(seeds))
            each, chunk = (more, uncounted) if self.ranks.world == 1 else (uncounted, more)

            def targets(missing: Sequence[int]) -> Tensor:
                each(0)
                made = make_pairs(
                    model, missing, teacher, guidance=self.guidance, batch=self.batch,
                    device=self.device, progress=each,
                )  # fmt: skip
                return made.target

            rows = self.cache.rows("pairs", key, seeds, targets, chunk).to(self.device)
            z = noise(seeds, model.shape, device=self.device)
            return Pairs(tuple(seeds), z, model.conditions(seeds), rows)

        return self._once(f"pairs {key} {seeds!r}", make)

    def table(self, solver: TunedSolver | Teacher) -> Table:
        """A solver with its grid, compiled for the schedule and the prediction of the model."""
        return solver.table(self.model.schedule, self.model.prediction)

    def samples(self, table: Table, seeds: Sequence[int]) -> Tensor:
        """Decoded samples, a batch at a time."""
        parts = self.ranks.share(partial(self._sampled, table), batches(seeds, self.batch))
        return torch.cat([part["samples"] for part in parts])

    def _sampled(self, table: Table, seeds: Sequence[int]) -> Tensors:
        sample = sample_table(self.model, table, seeds, guidance=self.guidance, device=self.device)
        return {"samples": sample}

    def score(self, table: Table, count: int) -> dict[str, list[float]]:
        """Errors on held-out seeds, one per seed, by :data:`KEYS`: the session's distance and the
        root mean square error, to the teacher and to the reference. Empty if a sample or
        an error is not finite.
        """
        return next(self.scores([table], count))

    def scores(self, tables: Sequence[Table], count: int) -> Iterator[dict[str, list[float]]]:
        """:meth:`score` of several tables, in order."""
        common = {**self.identity, "reference": asdict(self.reference), "held_out": count}
        keys = [{**common, "table": table_key(table)} for table in tables]

        def make(missing: Sequence[int]) -> Iterator[dict[str, list[float]]]:
            return self._errors([tables[n] for n in missing], count)

        return self.cache.each_json("scores", keys, make)

    def _errors(self, tables: Sequence[Table], count: int) -> Iterator[dict[str, list[float]]]:
        """What :meth:`score` gives; ranks share tables and batches."""
        seeds, parts = seeds_for("held-out", count), slices(count, self.batch)
        ends = {"": self.held_out(count).target, "_accurate": self.exact(count)}

        def make(item: tuple[Table, slice]) -> Tensors:
            table, part = item
            samples = self._sampled(table, seeds[part])["samples"]
            if not bool(torch.isfinite(samples).all()):
                return {}
            found = {
                name + end: per_sample(measure, samples, target[part], self.batch).double()
                for name, measure in (("distance", self.distance), ("rmse", rmse))
                for end, target in ends.items()
            }
            finite = all(bool(torch.isfinite(each).all()) for each in found.values())
            return found if finite else {}  # samples of 1e25 are finite, their distance is not

        made = self.ranks.share(make, [(table, part) for table in tables for part in parts])
        for _ in tables:
            found = [next(made) for _ in parts]
            finite = all(found)
            yield {key: [v for f in found for v in f[key].tolist()] for key in KEYS if finite}

    def stored(
        self, kind: str, key: Mapping[str, Any], make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Tensors from the cache; from memory where there is no folder."""
        if self.cache.folder is not None:
            return self.cache.tensors(kind, key, make)
        return self._once(f"{kind} {digest(key)}", make)

    def _once(self, name: str, make: Callable[[], Made]) -> Made:
        if name not in self._memory:
            self._memory[name] = make()
        found: Made = self._memory[name]
        return found


def open_session(
    spec: Settings,
    teacher: Teacher,
    cache: Cache,
    report: Report = silent,
    *,
    model: Model | None = None,
    distance: Distance | None = None,
    gradients: bool = True,
) -> Session:
    """The session of a spec; `model` and `distance` are objects to use instead of the names in the
    spec. `gradients`: whether the model must have them."""
    if model is None:
        options = with_batch(spec.pipeline, spec.batch, spec.model)
        loaded = load_model(spec.model, spec.device, spec.dtype, gradients, options)
    else:
        name = spec.model if ":" in spec.model else OWN
        loaded = of_model(model, name, spec.device, gradients)
    measure = make_measure(distance or spec.distance, loaded, spec.device)
    cache.make()  # not for a model that is refused
    return Session(
        loaded, measure, teacher, reference_for(teacher, spec.reference_steps),
        spec.guidances[0], spec.device, spec.batch or BATCH, cache, report,
    )  # fmt: skip


def reference_for(teacher: Teacher, steps: int | None = None) -> Teacher:
    """UniPC-3, even in lam, with twice the teacher's steps."""
    return Teacher(steps=steps or 2 * teacher.steps)


def table_key(table: Table) -> list[Any]:
    numbers = [table.weights.tolist(), table.net_times.tolist()]
    return numbers if table.guided is None else [*numbers, list(table.guided)]


def slices(count: int, size: int) -> list[slice]:
    """Of at most `size` items, `count` in all."""
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def batches(items: Sequence[int], size: int) -> list[Any]:
    """Slices of at most `size`; of a range they are ranges."""
    return [items[part] for part in slices(len(items), size)]


def versions() -> dict[str, str]:
    """Of what results depend on besides options."""
    python = platform.python_version()
    return {"ld3": __version__, "torch": str(torch.__version__), "python": python}


def mean(values: Sequence[float]) -> float:
    """In order, in float64, without rounding on the way."""
    return math.fsum(values) / len(values)


def means(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {key: mean(values) for key, values in scores.items()}
