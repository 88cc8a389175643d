"""Learning runs of an experiment, one after the other or several in processes.

Every run is :func:`ld3.runs.run.learn_run`, stored in the cache beside those of `ld3 compare`.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from ld3 import zoo
from ld3.errors import SpecError
from ld3.experiment import Frozen, Value, Values, merged
from ld3.metrics.fidelity import per_sample
from ld3.runs.cache import Cache
from ld3.runs.engines import check_alone
from ld3.runs.experiments.context import Context
from ld3.runs.learn import make_run
from ld3.runs.progress import Report, silent
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.run import Learned, Run, learn_run
from ld3.runs.session import Session, mean, open_session, reference_for, table_key
from ld3.runs.spec import RunSpec
from ld3.store import digest
from ld3.zoo.shipped import CLASSES, ClassModel

SESSION = {
    "model", "distance", "guidance", "guidance_to", "device", "dtype", "batch", "pipeline", "out",
    "gradient_free",
}  # fmt: skip
"""The options that a session depends on; its teacher is set for each run."""
Result = tuple[Run, Learned]


@dataclass(frozen=True)
class RunRequest:
    """One learning run for one number of evaluations."""

    name: str
    spec: RunSpec
    classes: tuple[int, ...] = ()  # conditions of a shipped model; none: all ten


class LearningOptions(Frozen):
    """`learn` are options of `ld3 learn`, `scoring` of `ld3 compare`; each run is learned with
    `seeds` random seeds."""

    learn: dict[str, Any]
    scoring: dict[str, Any] = Field({})
    seeds: Annotated[int, Field(ge=1, le=20)] = 1

    @abstractmethod
    def wanted(self, context: Context) -> dict[Any, tuple[str, dict[str, Any]]]:
        """By key: the name of a run, and the options that it changes in `learn`."""

    def requests(self, context: Context) -> dict[Any, list[RunRequest]]:
        """One per seed, by the keys of :meth:`wanted`."""
        requests: dict[Any, list[RunRequest]] = {}
        for key, (name, changes) in self.wanted(context).items():
            options = merged(self.learn, changes)
            classes = tuple(options.pop("classes", ()))
            requests[key] = [
                RunRequest(f"{name}, seed {s}", context.run_spec({**options, "seed": s}), classes)
                for s in range(self.seeds)
            ]
        return requests

    def checked(self, context: Context) -> None:
        """Wrong options are a :class:`SpecError` before any work."""
        context.compare_spec(self.scoring)
        self.requests(context)


@dataclass(frozen=True)
class Sessions:
    """One session per model and distance; runs share its pairs."""

    opened: dict[str, Session] = field(default_factory=dict)
    ranks: Ranks = ALONE

    def make_run(self, request: RunRequest, report: Report = silent) -> Run:
        """A run with its folder in the cache."""
        spec, classes = request.spec, request.classes
        nfe = max(spec.nfe)  # of several, a number of passes chooses one
        teacher = spec.make_preset(nfe).teacher
        key = digest([spec.model_dump(mode="json", include=SESSION), classes])
        if key not in self.opened:
            model = class_subset(spec.model, classes, spec.device) if classes else None
            self.opened[key] = open_session(
                spec, teacher, Cache.open(spec.out / "cache", ranks=self.ranks), model=model,
                gradients=not spec.gradient_free,
            )  # fmt: skip
        reference = reference_for(teacher, spec.reference_steps)
        session = self.opened[key].with_teacher(teacher, reference).reporting(report)
        return in_cache(make_run(spec, session, nfe), spec)


def in_cache(run: Run, spec: RunSpec) -> Run:
    """A run with its folder beside those of `ld3 compare`."""
    return run.stored(spec.out / "cache" / "learned" / digest(run.key))


_SESSIONS = Sessions()  # of a worker process


def learn_all(
    requests: Mapping[Any, Iterable[RunRequest]], context: Context
) -> dict[Any, list[Result]]:
    """All runs by key; finished ones are read."""
    every = [(key, request) for key, several in requests.items() for request in several]
    report, ahead, total = context.report, context.engine, len(every)
    unique = list({(r.spec.model_dump_json(), r.classes): r for _, r in every}.values())
    if ahead is not None and len(unique) > 1:
        check_alone(ahead, context.ranks)
        ahead(_work, unique, lambda request: f"runs: {request.name}", report)
    sessions, results = Sessions(ranks=context.ranks), dict[Any, list[Result]]()
    for done, (key, request) in enumerate(every):

        def inside(
            what: str, part: int, of: int, name: str = request.name, done: int = done
        ) -> None:
            report(f"runs: {name}, {what}, {100 * part // max(of, 1)} %", done, total)

        run = sessions.make_run(request, inside)
        results.setdefault(key, []).append((run, learn_run(run)))
    report(f"runs: all {total} done", total, total)
    return results


def _work(request: RunRequest) -> None:
    learn_run(_SESSIONS.make_run(request))


def learning_values(results: Sequence[Result]) -> Values:
    """Metrics of the runs themselves, over seeds."""
    spent = [float(learned.evaluations + run.teacher_evaluations) for run, learned in results]
    seconds = [learned.seconds for _, learned in results]
    values = {"evaluations": Value.over(spent), "seconds": Value.over(seconds)}
    losses = [learned.validation for _, learned in results]
    if all(math.isfinite(loss) for loss in losses):
        values["validation"] = Value.over(losses)
    return values


def training_distance(run: Run, learned: Learned) -> float:
    """Mean distance to the teacher on the pairs that a run learned from."""
    session, table = run.session, run.session.table(learned.tuned)
    pairs = session.training(run.preset.train, run.seed)
    key = {**session.identity, "training": [len(pairs), run.seed], "table": table_key(table)}

    def make() -> float:
        samples = session.samples(table, pairs.seeds)
        found = per_sample(session.distance, samples, pairs.target, session.batch)
        return mean(found.double().tolist())

    return float(session.cache.json("scores", key, make))


@dataclass(frozen=True)
class ClassSubset(ClassModel):
    """A shipped model whose seeds have some of its classes only, in turn."""

    classes: tuple[int, ...] = ()

    def conditions(self, seeds: Sequence[int]) -> Tensor:
        wanted = [self.classes[seed % len(self.classes)] for seed in seeds]
        return torch.tensor(wanted, device=self.device)


def class_subset(name: str, classes: Sequence[int], device: str = "cpu") -> ClassSubset:
    """A shipped model by name, for these classes."""
    known = [model for model in zoo.SHIPPED if zoo.has_features(model)]  # of clothes
    if name not in known:
        raise SpecError(f"classes: got the model {name}, expected one of {', '.join(known)}")
    if not classes or not all(0 <= c < len(CLASSES) for c in classes):
        raise SpecError(
            f"classes: got {list(classes)}, expected numbers from 0 to {len(CLASSES) - 1}"
        )
    model = zoo.load(name, device)
    assert isinstance(model, ClassModel)
    own = digest([zoo.SHIPPED[name].digest, list(classes)])
    return ClassSubset(**vars(replace(model, digest=own)), classes=tuple(classes))
