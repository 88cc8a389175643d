"""The walk of `ld3 compare`: pairs, cells, statistics, images; then the files."""

import json
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path

from ld3.comparison import Comparison, Method
from ld3.images import is_cloud
from ld3.metrics.fidelity import per_sample
from ld3.models import Model
from ld3.report.time_left import Part
from ld3.runs.cache import Cache
from ld3.runs.cloud_metrics import CloudMetrics
from ld3.runs.compare.cells import Cell, Scored, cells_of, score_cell
from ld3.runs.compare.images import images_of
from ld3.runs.compare.methods import LEARNED
from ld3.runs.compare.spec import LISTS, CompareSpec, kind_of, needs_of, source_of
from ld3.runs.compare.statistics import block_of, featured, metrics_of
from ld3.runs.engines import check_alone, make_engine
from ld3.runs.expected import learning_cost
from ld3.runs.progress import Report, expect, resumable, silent
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.session import Session, open_session, versions
from ld3.runs.set_metrics import SetMetrics
from ld3.schedule_json import schedule_to_json
from ld3.seeds import seeds_for

Item = tuple[CompareSpec, float, Cell]  # what a worker gets


def run_compare(
    spec: CompareSpec,
    report: Report = silent,
    fresh: bool = False,
    model: Model | None = None,
    ranks: Ranks = ALONE,
) -> Comparison:
    """Compare all methods on one model; what was finished before is read, not run.

    `model` is an object to use instead of the one that `spec.model` names; `fresh` makes everything
    again, pairs and scores too. `ranks` share the work inside each cell.
    """
    cells, since = cells_of(spec), time.time() if fresh else 0.0
    with resumable(f"finished cells are in {spec.out}"):
        ahead = make_engine(spec.engine, spec.jobs, spec.gpus_per_cell)
        check_alone(ahead, ranks)
        session = compare_session(spec, report, since, model, ranks)
        session.cache.sweep()
        several = ahead is not None and model is None  # cells run in other processes
        expect(report, expected_parts(session, spec, cells, several))
        sets = prepare(session, spec)
        if ahead is not None and several:
            items: list[Item] = [(spec, since, cell) for cell in cells]
            ahead(_work, items, lambda item: f"cells: {item[2].name}", report)
        results = []
        for number, cell in enumerate(cells):
            inside = partial(_report_share, report, f"{_title(number, cells)}, {cell.name}")
            inside(0, 1)
            results.append(score_cell(session, spec, cell, sets, inside))
        report("all cells", len(cells), len(cells))
        network = sets.net.name if isinstance(sets, SetMetrics) else ""
        return _comparison(session, spec, results, network, report)


def expected_parts(
    session: Session, spec: CompareSpec, cells: Sequence[Cell], several: bool
) -> Iterator[Part]:
    """What is to come: pairs, references, and each cell, or all of them at once."""
    teacher, reference = session.teacher.nfe, session.reference.nfe
    for _ in range(spec.seeds if any(needs_of(method) for method in spec.names) else 0):
        yield Part("training pairs", spec.pairs * teacher)
        yield Part("validation pairs", spec.valid * teacher)
    yield Part("held-out pairs", spec.held_out * teacher)
    yield Part("reference samples", spec.held_out * reference)
    for _ in range(2 if spec.full else 0):
        yield Part("samples of the reference solution", spec.judged * reference)
    costs = []
    for cell in cells:
        cost = (spec.held_out + spec.judged * spec.full) * float(cell.nfe)
        if cell.method in LEARNED:
            preset = LEARNED[cell.method].preset(spec, session, cell.nfe)
            cost += learning_cost(preset, cell.nfe, starts=preset.starts)
        elif "model" in needs_of(cell.method):
            cost += spec.pairs * teacher
        costs.append(cost)
    if several:
        yield Part("cells:", sum(costs) / spec.jobs)
    else:
        yield from (Part(_title(n, cells) + ",", cost) for n, cost in enumerate(costs))


def _report_share(report: Report, what: str, done: int, total: int) -> None:
    """In percent: cells count their work in units of their own."""
    report(what, 100 * done // max(total, 1), 100)


def _title(number: int, cells: Sequence[Cell]) -> str:
    return f"cell {number + 1} of {len(cells)}"


def compare_session(
    spec: CompareSpec,
    report: Report = silent,
    since: float = 0.0,
    model: Model | None = None,
    ranks: Ranks = ALONE,
) -> Session:
    """What all cells share."""
    cache = Cache.open(spec.out / "cache", since, ranks)
    return open_session(spec, spec.teacher, cache, report, model=model)


def prepare(session: Session, spec: CompareSpec) -> SetMetrics | CloudMetrics | None:
    """All pairs and references, before any method begins; and the set metrics, with --full."""
    sets = set_metrics_of(session, spec) if spec.full else None
    if any(needs_of(method) for method in spec.names):
        for seed in range(spec.seeds):
            session.training(spec.pairs, seed)
            session.validation(spec.valid, seed)
    session.held_out(spec.held_out)
    session.exact(spec.held_out)
    if sets is not None:
        sets.prepare()
    return sets


def set_metrics_of(session: Session, spec: CompareSpec) -> SetMetrics | CloudMetrics:
    """The set metrics of a spec: of images, or of point clouds."""
    if is_cloud(session.reporting(silent).held_out(2).target):
        return CloudMetrics.of(session, spec.judged, spec.data or spec.features)
    sets = SetMetrics.of(session, spec.judged, spec.features, spec.data, spec.resize)
    return replace(sets, names=spec.metrics)


def write_files(comparison: Comparison, out: Path) -> list[Path]:
    """`compare.json` and `compare.csv`."""
    comparison.save(out / "compare.json")
    comparison.write_csv(out / "compare.csv")
    return [out / "compare.json", out / "compare.csv"]


def _work(item: Item) -> None:
    """One cell, in a process of its own."""
    spec, since, cell = item
    session, sets = _opened(spec.model_dump_json(), since)
    score_cell(session, spec, cell, sets)


@lru_cache(maxsize=1)
def _opened(options: str, since: float) -> tuple[Session, SetMetrics | CloudMetrics | None]:
    """The session of a worker, opened once; everything it needs is in the cache by now."""
    spec = CompareSpec(**json.loads(options))
    session = compare_session(spec, since=since)
    return session, set_metrics_of(session, spec) if spec.full else None


def _comparison(
    session: Session, spec: CompareSpec, results: list[Scored], network: str, report: Report
) -> Comparison:
    loaded, main = session.loaded, featured(spec)
    blocks = []
    for solver in spec.made_solvers:
        for nfe in spec.nfe:
            own = [r for r in results if r.cell.solver == solver and r.cell.nfe == nfe]
            first = {r.cell.method: r for r in own if not r.cell.seed}
            blocks.append((block_of(session, spec, solver, nfe, own, main), first))

    return Comparison(
        command=command_of(spec),
        spec=spec.model_dump(mode="json", exclude=set(WHERE)),
        model={
            "name": loaded.name,
            "digest": loaded.digest,
            "shape": list(loaded.model.shape),
            "prediction": loaded.model.prediction,
            "conditions": loaded.conditions,
            "dtype": str(loaded.model.dtype),
            "schedule": schedule_to_json(loaded.model.schedule),
        },
        teacher=asdict(session.teacher)
        | {"accurate": asdict(session.reference), "error": _teacher_error(session, spec)},
        seeds=_seeds(spec),
        versions=versions() | {"platform": f"{sys.platform} {platform.machine()}"},
        metrics=metrics_of(session, spec, network),
        methods=[
            Method(name=name, kind=kind_of(name), source=source_of(name), needs=needs_of(name))
            for name in spec.names
        ],
        blocks=[block for block, _ in blocks],
        pictures=images_of(session, spec.held_out, blocks, partial(report, "images")),
    )


def _teacher_error(session: Session, spec: CompareSpec) -> float | None:
    """The mean distance of the teacher to the reference on the held-out noise."""
    target, exact = session.held_out(spec.held_out).target, session.exact(spec.held_out)
    error = float(per_sample(session.distance, target, exact, session.batch).double().mean())
    return error if error < float("inf") else None


def _seeds(spec: CompareSpec) -> dict[str, str]:
    """What each range of seeds was used for."""

    def ends(seeds: range) -> str:
        return f"{seeds[0]} to {seeds[-1]}"

    parts = {"held-out noise": ends(seeds_for("held-out", spec.held_out))}
    for seed in range(spec.seeds):
        parts[f"training pairs, seed {seed}"] = ends(seeds_for("training", spec.pairs, seed))
        parts[f"validation pairs, seed {seed}"] = ends(seeds_for("validation", spec.valid, seed))
    if spec.full:
        parts["samples for set metrics"] = ends(seeds_for("evaluation", spec.judged))
        parts["samples of the reference"] = ends(seeds_for("reference", spec.judged))
    return parts


WHERE = ("engine", "gpus_per_cell")  # results do not depend on where cells run
SAID = (*LISTS, "model", "seeds", "pairs", "valid", "held_out")  # even if they are the defaults


def command_of(spec: CompareSpec) -> str:
    """The command that makes the same comparison again."""
    plain = CompareSpec()
    given: list[tuple[str, object]] = [
        (name, getattr(spec, name))
        for name in CompareSpec.model_fields
        if name not in ("out", "jobs", "recipe", "pipeline", *WHERE)
        and (name in SAID or getattr(spec, name) != getattr(plain, name))
    ]
    for name, setting in spec.recipe.items():
        text = str(setting).lower() if isinstance(setting, bool) else str(setting)  # as in TOML
        given.append(("recipe", f"{name}={text}"))
    options = {} if spec.pipeline is None else spec.pipeline.said()
    given += [("prompt", prompt) for prompt in options.pop("prompts", ())]
    height, width = options.pop("height", None), options.pop("width", None)
    if height is not None:
        given.append(("resolution", f"{height}x{width or height}"))
    given += [("label" if name == "classes" else name, value) for name, value in options.items()]
    command = ["ld3 compare"]
    for name, value in given:
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        flag = f"--{'samples' if name == 'judged' else name.replace('_', '-')}"
        command.append(flag if value is True else f"{flag} {shlex.quote(text)}")
    return " ".join(command)
