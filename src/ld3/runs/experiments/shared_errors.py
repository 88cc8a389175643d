"""What the errors of a method have in common, which metrics of sets measure.

With features f of samples and f* of the reference from the same noise: the error of a sample,
mean |f - f*|, beside the shift of the set, |mean f - mean f*|. A slightly brighter background is
a small error that all samples share, so the shift is also measured with dark pixels set to black.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.experiment import Findings, Frozen, ResultTable, Value
from ld3.images import is_image
from ld3.runs.compare.cells import found_cells
from ld3.runs.compare.run import compare_session
from ld3.runs.experiments.context import Context
from ld3.runs.session import table_key
from ld3.runs.spec import solver_title
from ld3.seeds import seeds_for
from ld3.table import Table
from ld3.zoo.features import FeatureNet, load_features

DARK = -0.95  # of a range from -1 to 1
COLUMNS = (
    "error", "shift", "background", "shift without background", "roughness",
    "classifier confidence",
)  # fmt: skip


class SharedErrorOptions(Frozen):
    """`compare` are options of `ld3 compare`."""

    compare: dict[str, Any]

    def checked(self, context: Context) -> None:
        context.compare_spec(self.compare)


def run_shared_errors(options: SharedErrorOptions, context: Context) -> Findings:
    """One row per solver, number of evaluations and method; means over seeds."""
    spec = context.compare_spec(options.compare)
    context.compared(spec)
    session = compare_session(spec, context.report, ranks=context.ranks)
    net = load_features(None, session.device)
    exact = session.exact(spec.held_out)
    if not is_image(exact) or exact.shape[1:] != (1, 28, 28):
        name = session.loaded.name
        raise SpecError(f"shared errors: got {name}, expected a model of 1x28x28 images")

    def measure(table: Table) -> list[float]:
        samples = session.samples(table, seeds_for("held-out", spec.held_out))
        return feature_errors(net, samples, exact)

    found: dict[tuple[str, str, str], list[list[float]]] = {}
    for cell, result in found_cells(session, spec):
        if result.tuned is None:
            continue
        table = session.table(result.tuned)
        key = {
            **session.source, "reference": session.reference.title, "features": net.digest,
            "held_out": spec.held_out, "what": "shared errors", "table": table_key(table),
        }  # fmt: skip
        values = session.cache.json("sets", key, partial(measure, table))
        label = (solver_title(cell.solver), str(cell.nfe), cell.method)
        found.setdefault(label, []).append(values)
    rows = {("", "", "reference"): [feature_errors(net, exact, exact)]} | found
    shown = ResultTable.of(
        "Errors in features to the reference solution from the same noise",
        ("solver", "NFE", "method", *COLUMNS),
        {label: map(Value.over, zip(*several, strict=True)) for label, several in rows.items()},
    )
    notes = (
        "Error: mean distance of a sample. Shift: distance of the mean of all samples. Background: "
        "mean excess of background pixels, of a range of 2. Without background: pixels below "
        f"{DARK} set to -1. Roughness: differences of neighbouring pixels, relative to the "
        "reference.",
    )
    return Findings(tables=(shown,), notes=notes, reference=session.reference.title)


@torch.no_grad()
def feature_errors(net: FeatureNet, samples: Tensor, exact: Tensor) -> list[float]:
    """The numbers of :data:`COLUMNS` for samples and reference (B, 1, H, W)."""
    assert net.logits is not None
    x, y = (images.float().clamp(-1, 1) for images in (samples, exact))
    gap = net(x).double() - net(y).double()  # (B, D)
    clear = net(_darkened(x)).double() - net(_darkened(y)).double()
    numbers = (
        gap.norm(dim=1).mean(),
        gap.mean(0).norm(),
        (x - y)[y < DARK].double().sum() / (y < DARK).sum().clamp_min(1),
        clear.mean(0).norm(),
        (_roughness(x) / _roughness(y).clamp_min(1e-12)).mean(),
        net.logits(x).softmax(1).amax(1).mean(),
    )
    return [float(number) for number in numbers]


def _darkened(x: Tensor) -> Tensor:
    return torch.where(x < DARK, -1.0, x)


def _roughness(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, (B, C, H, W) -> (B,)."""
    return x.diff(dim=-1).abs().flatten(1).mean(1) + x.diff(dim=-2).abs().flatten(1).mean(1)
