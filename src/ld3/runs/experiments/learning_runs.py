"""Learning runs of an experiment, one after the other or several in processes.

Every run is :func:`ld3.runs.run.learn_run`, stored in the cache beside those of `ld3 compare`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from ld3 import zoo
from ld3.errors import SpecError
from ld3.experiment import Value, Values
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


@dataclass(frozen=True)
class RunRequest:
    """One learning run for one number of evaluations."""

    name: str
    spec: RunSpec
    classes: tuple[int, ...] = ()  # conditions of a shipped model; none: all ten


@dataclass(frozen=True)
class Sessions:
    """One session per model and distance; runs share its pairs."""

    opened: dict[str, Session] = field(default_factory=dict)
    ranks: Ranks = ALONE

    def make_run(self, request: RunRequest, report: Report = silent) -> Run:
        spec = request.spec
        (nfe,) = spec.nfe
        teacher = spec.make_preset(nfe).teacher
        reference = reference_for(teacher, spec.reference_steps)
        session = self._session(request).with_teacher(teacher, reference).reporting(report)
        run = make_run(spec, session, nfe)
        return run.stored(spec.out / "cache" / "learned" / digest(run.key))

    def _session(self, request: RunRequest) -> Session:
        spec, classes = request.spec, request.classes
        key = digest([spec.model_dump(mode="json", include=SESSION), classes])
        if key not in self.opened:
            model = class_subset(spec.model, classes, spec.device) if classes else None
            (nfe, *_) = spec.nfe
            session = open_session(
                spec, spec.make_preset(nfe).teacher,
                Cache.open(spec.out / "cache", ranks=self.ranks), model=model,
                gradients=not spec.gradient_free,
            )  # fmt: skip
            self.opened[key] = session.at_guidance(spec.guidances[0])
        return self.opened[key]


_SESSIONS = Sessions()  # of a worker process


def learn_all(requests: Sequence[RunRequest], context: Context) -> list[tuple[Run, Learned]]:
    """All runs, in order; finished ones are read."""
    report, ahead = context.report, context.engine
    unique = list({(r.spec.model_dump_json(), r.classes): r for r in requests}.values())
    if ahead is not None and len(unique) > 1:
        check_alone(ahead, context.ranks)
        ahead(_work, unique, lambda request: f"runs: {request.name}", report)
    sessions, results, total = Sessions(ranks=context.ranks), [], len(requests)
    for done, request in enumerate(requests):

        def inside(
            what: str, part: int, of: int, name: str = request.name, done: int = done
        ) -> None:
            report(f"runs: {name}, {what}, {100 * part // max(of, 1)} %", done, total)

        run = sessions.make_run(request, inside)
        results.append((run, learn_run(run)))
    report(f"runs: all {total} done", total, total)
    return results


def _work(request: RunRequest) -> None:
    learn_run(_SESSIONS.make_run(request))


def learning_values(results: Sequence[tuple[Run, Learned]]) -> Values:
    """Metrics of the runs themselves, over seeds."""
    spent = [
        learned.evaluations
        + len(run.scales) * run.preset.teacher.nfe * (run.preset.train + run.preset.valid)
        for run, learned in results
    ]
    values = {
        "evaluations": Value.over([float(count) for count in spent]),
        "seconds": Value.over([learned.seconds for _, learned in results]),
    }
    losses = [learned.validation for _, learned in results]
    if all(math.isfinite(loss) for loss in losses):
        values["validation"] = Value.over(losses)
    return values


def training_distance(run: Run, learned: Learned) -> float:
    """Mean distance to the teacher on the pairs that a run learned from."""
    session = run.session
    table = learned.tuned.table(session.model.schedule, session.model.prediction)
    pairs = session.training(run.preset.train, run.seed)
    key = {**session.identity, "training": [len(pairs), run.seed], "table": table_key(table)}

    def make() -> float:
        samples = session.samples(table, pairs.seeds)
        found = per_sample(session.distance, samples, pairs.target, session.batch)
        return mean(found.double().tolist())

    return float(session.cache.json("scores", key, make))


@dataclass(frozen=True)
class ClassSubset(ClassModel):
    """A shipped model whose seeds ask for some of its classes only, in turn."""

    classes: tuple[int, ...] = ()

    def conditions(self, seeds: Sequence[int]) -> Tensor:
        wanted = [self.classes[seed % len(self.classes)] for seed in seeds]
        return torch.tensor(wanted, device=self.device)


def class_subset(name: str, classes: Sequence[int], device: str = "cpu") -> ClassSubset:
    """A shipped model by name, for these classes."""
    if name not in zoo.SHIPPED:
        raise SpecError(f"classes: got the model {name}, expected one of {', '.join(zoo.SHIPPED)}")
    if not classes or not all(0 <= c < len(CLASSES) for c in classes):
        raise SpecError(
            f"classes: got {list(classes)}, expected numbers from 0 to {len(CLASSES) - 1}"
        )
    model = zoo.load(name, device)
    if not isinstance(model, ClassModel):
        raise SpecError(f"classes: got the model {name}, which has none, expected one with classes")
    parts = {part.name: getattr(model, part.name) for part in fields(ClassModel)}
    parts["digest"] = digest([zoo.SHIPPED[name].digest, list(classes)])
    return ClassSubset(**parts, classes=tuple(classes))
