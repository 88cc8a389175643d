"""The walk of `ld3 compare`: pairs, cells, statistics, pictures; then the files."""

import platform
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from ld3 import __version__
from ld3.compare.cells import Cell, Ground, cells_of, found_of, held_of, needs_of
from ld3.compare.sheets import pictures_of
from ld3.compare.spec import LISTS, CompareSpec, kind_of
from ld3.compare.summary import Result, Values, block_of, distance_metrics, featured
from ld3.compare.workers import work_ahead
from ld3.comparison import Comparison, Method
from ld3.models import Model
from ld3.runs import HELD, VALID, Interrupted
from ld3.schedules import schedule_to_json
from ld3.scores import JUDGED, Tell, silent
from ld3.searches import make_method
from ld3.searches.registry import SEARCHES
from ld3.store import sweep
from ld3.table import Tuned


def run_compare(
    spec: CompareSpec, tell: Tell = silent, fresh: bool = False, model: Model | None = None
) -> Comparison:
    """Compare all methods on one model; what was finished before is read, not run.

    `model` is one of one's own, to be used instead of the one that `spec.model` names.
    """
    todo = cells_of(spec)
    sweep(spec.out / "cells")
    try:
        ground = Ground.of(spec, model)
        _prepare(ground, tell)
        if spec.jobs > 1 and model is None:
            work_ahead(spec, fresh, tell)
            fresh = False  # they are, now
        run = _runner(ground, fresh, tell)
        results = [run(cell, number, len(todo)) for number, cell in enumerate(todo)]
        tell(f"cells: all {len(todo)} done", len(todo), len(todo))
        return _comparison(ground, results, tell)
    except KeyboardInterrupt:
        raise Interrupted(
            f"finished cells are in {spec.out / 'cells'}; the same command goes on from there"
        ) from None


def write_files(comparison: Comparison, out: Path) -> list[Path]:
    """`compare.json` and `compare.csv`."""
    comparison.save(out / "compare.json")
    comparison.write_csv(out / "compare.csv")
    return [out / "compare.json", out / "compare.csv"]


def _prepare(ground: Ground, tell: Tell) -> None:
    """Everything the teacher and the judge are asked for, before any method begins."""
    if any(needs_of(method) for method in ground.spec.names):
        for seed in range(ground.spec.seeds):
            ground.pairs(seed, tell)
    for teacher in (ground.spec.teacher, ground.accurate):
        ground.held_by(teacher, tell)
    if ground.spec.full:
        from ld3.compare.full import Bench  # needs the judge

        bench = Bench.of(ground, tell)
        _ = bench.same, bench.other


def _runner(ground: Ground, fresh: bool, tell: Tell) -> Callable[[Cell, int, int], Result]:
    """How a cell becomes a result."""
    judge = _judge(ground, fresh, tell)

    def run(cell: Cell, number: int, total: int) -> Result:
        tell(f"cells: {cell.name}", number, total)

        def inside(done: int, of: int) -> None:
            tell(f"cells: {cell.name}, {100 * done // max(of, 1)} %", number, total)

        found = found_of(ground, cell, inside, fresh)
        if found.tuned is None:
            return Result(cell, found, {}, {})
        held = held_of(ground, cell, found.tuned, fresh)
        return Result(cell, found, held, judge(cell, found.tuned) if held else {})

    return run


def _judge(ground: Ground, fresh: bool, tell: Tell) -> Callable[[Cell, Tuned], Values]:
    """What `--full` adds to a cell."""
    if not ground.spec.full:
        return lambda cell, tuned: {}
    from ld3.compare.full import Bench, full_of

    bench = Bench.of(ground, tell)
    return lambda cell, tuned: full_of(bench, cell, tuned, fresh)


def _comparison(ground: Ground, results: list[Result], tell: Tell) -> Comparison:
    spec, loaded = ground.spec, ground.loaded
    main = featured(spec)
    blocks = []
    for solver in spec.made_solvers:
        for nfe in spec.nfe:
            own = [r for r in results if r.cell.solver == solver and r.cell.nfe == nfe]
            first = {r.cell.method: r for r in own if not r.cell.seed}
            blocks.append((block_of(ground, solver, nfe, own, main), first))
    metrics = distance_metrics(ground)
    if spec.full:
        from ld3.compare.full import full_metrics

        metrics += full_metrics(ground)
    names = spec.names
    return Comparison(
        command=command_of(spec),
        spec=spec.model_dump(mode="json"),
        model={
            "name": loaded.name,
            "digest": loaded.digest,
            "shape": list(loaded.model.shape),
            "prediction": loaded.model.prediction,
            "conditions": loaded.conditions,
            "dtype": str(loaded.model.dtype),
            "schedule": schedule_to_json(loaded.model.schedule),
        },
        teacher=asdict(spec.teacher) | {"accurate": asdict(ground.accurate)},
        seeds=_seeds(spec),
        versions={
            "ld3": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "platform": f"{sys.platform} {platform.machine()}",
        },
        metrics=metrics,
        methods=[
            Method(name=name, kind=kind_of(name), source=_source(name), needs=needs_of(name))
            for name in names
        ],
        blocks=[block for block, _ in blocks],
        pictures=pictures_of(ground, blocks, lambda done, total: tell("pictures", done, total)),
    )


def _source(name: str) -> str:
    return SEARCHES[name].source if name in SEARCHES else make_method(name).source


def _seeds(spec: CompareSpec) -> dict[str, str]:
    """What each range of seeds was used for."""
    parts = {"held-out noise": f"{HELD} to {HELD + spec.held_out - 1}"}
    for seed in range(spec.seeds):
        first = 10_000 * seed
        parts[f"learning pairs, seed {seed}"] = f"{first} to {first + spec.pairs - 1}"
        check = VALID + first
        parts[f"validation pairs, seed {seed}"] = f"{check} to {check + spec.valid - 1}"
    if spec.full:
        parts["judged samples"] = f"{JUDGED} to {JUDGED + spec.judged - 1}"
    return parts


SAID = (*LISTS, "model", "seeds", "pairs", "valid", "held_out")  # even if they are the defaults


def command_of(spec: CompareSpec) -> str:
    """The words that make the same comparison again."""
    plain = CompareSpec()
    words = ["ld3 compare"]
    for name in CompareSpec.model_fields:
        value = getattr(spec, name)
        if name in ("out", "jobs") or (value == getattr(plain, name) and name not in SAID):
            continue
        flag = f"--{name.replace('_', '-')}"
        text = ",".join(map(str, value)) if name in LISTS else str(value)
        words.append(flag if value is True else f"{flag} {shlex.quote(text)}")
    return " ".join(words)
