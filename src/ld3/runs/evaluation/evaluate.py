"""The walk of `ld3 evaluate`: samples of each plan or grid in chunks, metrics, files.

for each item:   fill the cache, chunk by chunk   (read_chunk: the part that can be shared out)
                 metrics from the cache           (sums in the order of the samples)
"""

import shlex
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ld3.evaluation import Estimate, EvaluatedRow, Evaluation
from ld3.metrics.bootstrap import jackknife
from ld3.models import Model
from ld3.plan import Plan
from ld3.report.time_left import Part
from ld3.runs.cache import Cache
from ld3.runs.compare.statistics import within
from ld3.runs.evaluation.chunks import PIXELS, NotFinite, Samples, View, fill, read_all
from ld3.runs.evaluation.clip_score import clip_view
from ld3.runs.evaluation.image_sets import write_pngs
from ld3.runs.evaluation.npz import write_rows
from ld3.runs.evaluation.spec import KEYS, EvaluateSpec, Item, items_of
from ld3.runs.progress import Report, expect, resumable, silent
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.sample import named_model
from ld3.runs.session import Session, open_session, versions
from ld3.runs.set_metrics import SetMetrics
from ld3.seeds import seeds_for
from ld3.store import replacing
from ld3.teacher import Teacher


@dataclass(frozen=True)
class Task:
    """An evaluation that was checked and can begin."""

    spec: EvaluateSpec
    sets: SetMetrics
    items: tuple[Item, ...]
    clip: View | None

    @property
    def session(self) -> Session:
        return self.sets.session

    @property
    def views(self) -> list[View]:
        """All that is computed from the samples of an item, in one run of the sampler."""
        found = [self.sets.view]
        found += [self.sets.agreement] if "agreement" in self.spec.metrics else []
        found += [self.clip] if self.clip is not None else []
        return [*found, *([PIXELS] if self.spec.keep else [])]

    def samples(self, item: Item) -> Samples:
        return self.sets.samples(item.table, f"samples: {item.name}, {item.solver}, NFE {item.nfe}")

    @property
    def sets_of_samples(self) -> list[tuple[Samples, list[View]]]:
        """Everything that must be in the cache before metrics can be computed."""
        found = [(self.samples(item), self.views) for item in self.items]
        if "fid-accurate" in self.spec.metrics:
            found.append((self.sets.reference(), [self.sets.view]))
        return found


def open_task(
    spec: EvaluateSpec, report: Report = silent, model: Model | None = None, ranks: Ranks = ALONE
) -> Task:
    """Load model, feature network and data, and check that all of them fit, before any work."""
    if model is None and not spec.model and spec.plans:
        named_model(Plan.load(spec.plans[0]))  # says why the plan's may not be opened
    cache = Cache.open(spec.out / "cache", ranks=ranks)
    session = open_session(spec, Teacher(), cache, report, model=model, gradients=False)
    cache.sweep()
    sets = SetMetrics.of(session, spec.samples, spec.features, spec.data, spec.resize)
    items = tuple(items_of(spec, session))
    clip = None
    if spec.clip is not None and "clip" in spec.metrics:
        options = session.loaded.options
        clip = clip_view(spec.clip, options.prompts if options else (), session.device)
    for name in spec.metrics:
        sets.check(KEYS[name])
    return Task(spec, sets, items, clip)


def run_evaluate(
    spec: EvaluateSpec, report: Report = silent, model: Model | None = None, ranks: Ranks = ALONE
) -> Evaluation:
    """Evaluate everything that a spec names; chunks that are there are read, not made.

    Ranks share the chunks; rank 0 computes the metrics from them.
    """
    with resumable(f"finished chunks are in {spec.out / 'cache'}"):
        task = open_task(spec, report, model, ranks)
        every = (samples for samples, _ in task.sets_of_samples)
        expect(report, [Part(s.name, s.count * len(s.table.net_times)) for s in every])
        for samples, views in task.sets_of_samples if ranks.world > 1 else ():
            fill(task.session, samples, views)
        own = replace(task, sets=task.sets.alone)

        def evaluated() -> dict[str, Any]:
            rows = [evaluate_item(own, item) for item in own.items]
            return evaluation_of(own, rows).model_dump(mode="json")

        return Evaluation(**ranks.first(evaluated))


def evaluate_item(task: Task, item: Item) -> EvaluatedRow:
    """One row of the table."""
    spec, sets, samples = task.spec, task.sets, task.samples(item)
    row = EvaluatedRow(name=item.name, solver=item.solver, nfe=item.nfe, metrics={})
    try:
        for _ in read_all(task.session, samples, task.views):
            pass
    except NotFinite:
        return row.model_copy(update={"failed": "its samples are not finite"})
    silent_samples = sets.samples(item.table)
    found = sets.chosen(silent_samples, [KEYS[n] for n in spec.metrics if n != "clip"])
    if task.clip is not None:
        first, *rest = sets.means(silent_samples, task.clip)
        found["clip"] = (first, rest)
    metrics = {}
    for name in spec.metrics:
        value, without = found[KEYS[name]]
        interval = within(jackknife([value], [without]), KEYS[name])
        metrics[name] = Estimate(**asdict(interval))
    if spec.infinity:
        limit = sets.at_infinity(silent_samples)
        metrics["fid"] = metrics["fid"].model_copy(update={"infinity": limit})
    kept = str(_keep(task, item, silent_samples)) if spec.keep else ""
    return row.model_copy(update={"metrics": metrics, "kept": kept})


def evaluation_of(task: Task, rows: list[EvaluatedRow]) -> Evaluation:
    spec, sets, loaded = task.spec, task.sets, task.session.loaded
    seeds, data = seeds_for("evaluation", spec.samples), sets.data
    return Evaluation(
        command=command_of(spec), model=loaded.name, model_digest=loaded.digest,
        guidance=task.session.guidance, samples=spec.samples,
        seeds=f"evaluation 0 to {spec.samples - 1} (noise {seeds[0]} to {seeds[-1]})",
        network=sets.net.name, network_digest=sets.net.digest, resize=sets.net.resize,
        data="" if data is None else data.title, data_digest="" if data is None else data.digest,
        reference=task.session.reference.title, metrics=spec.metrics, rows=tuple(rows),
        versions=versions(),
    )  # fmt: skip


def command_of(spec: EvaluateSpec) -> str:
    """The command that makes the same evaluation again."""
    parts = ["ld3 evaluate", *map(shlex.quote, spec.what), f"--model {shlex.quote(spec.model)}"]
    if spec.grids:
        parts += [f"--solvers {','.join(spec.solvers)}", f"--nfe {','.join(map(str, spec.nfe))}"]
    parts.append(f"--samples {spec.samples} --metrics {','.join(spec.metrics)}")
    for name in ("data", "features", "resize", "clip", "keep", "guidance", "reference_steps"):
        value = getattr(spec, name)
        if value is not None and value != EvaluateSpec.model_fields[name].default:
            parts.append(f"--{name.replace('_', '-')} {shlex.quote(str(value))}")
    return " ".join([*parts, *["--infinity"] * spec.infinity])


def _keep(task: Task, item: Item, samples: Samples) -> Path:
    """The samples as PNGs, or as one `.npz` in ADM's layout: arr_0 uint8 (N, H, W, 3), and the
    classes in arr_1 where there are any."""
    slug = f"{Path(item.name).with_suffix('')}-{item.solver}-nfe{item.nfe}".replace("/", "-")
    folder = task.spec.out / "samples" / slug.replace(" ", "-").replace(":", "-")

    def pixels() -> Iterator[Tensor]:
        return (rows for _, (rows,) in read_all(task.session, samples, [PIXELS]))

    if task.spec.keep == "png":
        write_pngs(folder, pixels())
        return folder
    first = next(pixels())
    path, shape = folder.with_suffix(".npz"), (samples.count, *first.shape[2:], 3)
    labels = _labels(task.session.model, samples)
    with replacing(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        parts = (rows.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy() for rows in pixels())
        write_rows(archive, "arr_0", shape, np.dtype(np.uint8), parts)
        if labels is not None:
            write_rows(archive, "arr_1", labels.shape, labels.dtype, [labels])
    return path


def _labels(model: Model, samples: Samples) -> NDArray[np.int64] | None:
    """The class of each sample; None for conditions that are not one number."""
    found = []
    for numbers in samples.chunks:
        labels = model.conditions(numbers)
        if not isinstance(labels, Tensor) or labels.ndim != 1:
            return None
        found.append(labels.cpu().numpy().astype(np.int64))
    return np.concatenate(found)
