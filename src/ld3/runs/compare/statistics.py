"""Statistics of a comparison: means, intervals, the best baseline and a plain verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from ld3 import zoo
from ld3.comparison import Block, Gain, Metric, Range, Row
from ld3.images import is_cloud
from ld3.metrics.bootstrap import Interval, Weights, jackknife, mean, ratio, wins
from ld3.report.tables import ratio_text
from ld3.runs.compare.cells import Scored
from ld3.runs.compare.spec import CompareSpec, kind_of, needs_of
from ld3.runs.session import KEYS, Session
from ld3.runs.set_metrics import Values
from ld3.runs.spec import solver_title
from ld3.solvers import Solver

CURVE = 200  # points of a learning curve, at most

LARGEST = {  # values of metrics that are 0 or more
    **dict.fromkeys(("frechet", "frechet_accurate", "cmmd", "mmd"), np.inf),
    **dict.fromkeys(("precision", "recall", "agreement"), 1.0),
    **dict.fromkeys(("coverage", "nna"), 100.0),
    **dict.fromkeys(("jsd", "jsd_half"), 1000.0),
}
CLOUD_METRICS = [
    Metric(key="mmd", label="MMD-CD to real clouds", unit="times 1000"),
    Metric(key="coverage", label="COV-CD of real clouds", unit="%", better="higher"),
    Metric(key="nna", label="1-NNA-CD", unit="%, best at 50"),
    Metric(key="jsd", label="JSD to real clouds", unit="times 1000"),
    Metric(key="jsd_half", label="JSD on the halved grid", unit="times 1000"),
]


def metrics_of(session: Session, spec: CompareSpec, network: str = "") -> list[Metric]:
    """The columns: errors sample by sample, and the metrics of sets in features of a network."""
    unit, fine = session.measure.name, session.reference.title
    columns = [
        Metric(key="distance", label="Distance to the teacher", unit=unit),
        Metric(key="distance_accurate", label=f"Distance to the reference ({fine})", unit=unit),
        Metric(key="rmse", label="RMSE to the teacher", unit="root mean square"),
        Metric(key="rmse_accurate", label="RMSE to the reference", unit="root mean square"),
    ]
    if not spec.full:
        return columns
    if is_cloud(session.held_out(2).target):
        return columns + CLOUD_METRICS
    by = f"features of {network}"
    sets = [
        Metric(key="frechet_accurate", label="Fréchet distance to the reference solution", unit=by),
        Metric(key="kid", label="KID to the reference", unit=by),
        Metric(key="cmmd", label="CMMD to the reference", unit=by),
        Metric(key="precision", label="Precision", unit=by, better="higher"),
        Metric(key="recall", label="Recall", unit=by, better="higher"),
    ]
    shipped = zoo.has_features(session.loaded.name) and spec.features is None
    if shipped or spec.data is not None:
        sets = [Metric(key="frechet", label="Fréchet distance to real images", unit=by), *sets]
    if shipped:
        sets.append(Metric(key="agreement", label="Class as requested", better="higher"))
    return columns + [metric for metric in sets if metric.key in spec.metrics]


def featured(spec: CompareSpec) -> str | None:
    """The learned method to show: `ld3`, else the first of the options. Not by its result."""
    learned = [name for name in spec.names if kind_of(name) == "learned"]
    return "ld3" if "ld3" in learned else next(iter(learned), None)


def block_of(
    session: Session,
    spec: CompareSpec,
    solver: Solver,
    nfe: int,
    results: Sequence[Scored],
    main: str | None,
) -> Block:
    """The rows of one solver and number of evaluations, best first."""
    by_method: dict[str, list[Scored]] = {}
    for result in results:
        by_method.setdefault(result.cell.method, []).append(result)
    distances = {
        method: np.array([result.held["distance"] for result in several], dtype=np.float64)
        for method, several in by_method.items()
        if all(result.held for result in several)
    }  # (S, n) each
    means = {method: float(values.mean()) for method, values in distances.items()}
    known = [method for method in means if kind_of(method) != "learned"]
    best = min(known, key=lambda method: means[method]) if known else None
    weights = Weights.drawn(spec.held_out, spec.seeds)
    rows = [
        _row(session, spec, method, several, weights, None if best is None else distances[best])
        for method, several in by_method.items()
    ]
    rows.sort(key=lambda row: (bool(row.failed), means.get(row.method, 0.0)))
    shown = main if main in means else None
    verdict, gain = _verdict({row.method: row for row in rows}, shown, best)
    return Block(
        solver=solver_title(solver), nfe=nfe, baseline=best, featured=shown, verdict=verdict,
        gain=gain, rows=rows,
    )  # fmt: skip


def _row(
    session: Session,
    spec: CompareSpec,
    method: str,
    several: Sequence[Scored],
    weights: Weights,
    baseline: np.ndarray | None,
) -> Row:
    first = several[0].found
    failed = next((r.found.failed for r in several if r.found.failed), "")
    if not all(r.held for r in several):
        failed = failed or "its samples are not finite"
    row = Row(
        method=method,
        kind=kind_of(method),
        seeds=len(several),
        failed=failed[:1000],
        evaluations=round(float(np.mean([r.found.evaluations for r in several]))),
        seconds=float(np.mean([r.found.seconds for r in several])),
        teacher_evaluations=session.teacher.nfe
        * (spec.pairs + spec.valid)
        * ("pairs" in needs_of(method)),
    )
    if failed or first.tuned is None:
        return row
    found = intervals([r.held for r in several], [r.sets for r in several], weights)
    own = np.array([r.held["distance"] for r in several], dtype=np.float64)
    schedule, grid = session.model.schedule, first.tuned.grid
    against = {}
    if baseline is not None:
        against = {"ratio": _range(ratio(own, baseline, weights)), "wins": wins(own, baseline)}
    return row.model_copy(
        update=against
        | {
            "scores": {key: _range(interval) for key, interval in found.items()},
            "median": float(np.median(own)),
            "worst": float(own.max()),
            "lam": schedule.lam(grid.times).tolist(),
            "net_lam": schedule.lam(grid.net_times).tolist(),
            "corrected": first.tuned.corrections is not None,
            "start": first.start,
            "slope": ("secant" if first.secant > 0 else "exact") if first.start else "",
            "curve": list(first.curve[:: -(-len(first.curve) // CURVE) or 1]),
            "distances": [float(f"{value:.5g}") for value in own.mean(0)],
        }
    )


def intervals(
    held: Sequence[Mapping[str, Sequence[float]]], sets: Sequence[Values], weights: Weights
) -> dict[str, Interval]:
    """Every metric with its 95 % interval: `held` errors and `sets` metrics, one per seed."""
    found = {
        key: mean(np.array([own[key] for own in held], dtype=np.float64), weights) for key in KEYS
    }
    for key in sets[0]:
        if all(key in own for own in sets):
            interval = jackknife([own[key][0] for own in sets], [own[key][1] for own in sets])
            found[key] = within(interval, key)
    return found


def _verdict(rows: Mapping[str, Row], shown: str | None, best: str | None) -> tuple[str, Gain]:
    """In one sentence, whether learning was worth it."""
    if best is None or shown is None:
        lacking = "baseline" if best is None else "learned method"
        return f"There is no {lacking} to compare with.", ""
    interval = rows[shown].ratio
    assert interval is not None
    ends = f"95 %: {ratio_text(interval.low)} to {ratio_text(interval.high)}"
    at, base = ratio_text(interval.value), f"the distance of the best baseline, {best}"
    if interval.high < 1:
        return f"{shown} is at {at} of {base} ({ends}).", "gain"
    if interval.low > 1:
        return f"{shown} is worse: {at} times {base} ({ends}). Use {best}.", "worse"
    return f"No gain: {shown} is at {at} of {base}, and the interval includes 1 ({ends}).", "none"


def within(interval: Interval, key: str) -> Interval:
    """With ends cut at the limits of a metric, but not below or above the value itself."""
    value, high = interval.value, LARGEST.get(key.removesuffix("_data"))
    if high is None:
        return interval
    return Interval(value, min(value, max(0.0, interval.low)), max(value, min(high, interval.high)))


def _range(interval: Interval) -> Range:
    return Range(**asdict(interval))
