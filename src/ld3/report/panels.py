"""The curves of a result as one figure. Needs the extra `report`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ld3.experiment import Curve, Panel
from ld3.report.figures import plots, save

STYLES: dict[str, dict[str, Any]] = {
    "line": {"lw": 1.6, "marker": "o", "ms": 3},
    "thin": {"lw": 0.7, "alpha": 0.7},
    "dashed": {"lw": 1.2, "ls": "--"},
    "points": {"ls": "none", "marker": "o", "ms": 4},
}
ACROSS = 3  # panels side by side
WIDE = 8.0  # ratio of values from which an axis is logarithmic


def draw_panels(path: Path, panels: Sequence[Panel]) -> None:
    """All panels in rows of three, with one legend."""
    plt = plots()
    across = 2 if len(panels) == 4 else min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    size = (4.3 * across + 1.2, 3.4 * down)
    figure, axes = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    palette = plt.get_cmap("tab10" if len(names) <= 10 else "tab20").colors
    colours = {name: palette[n % len(palette)] for n, name in enumerate(names)}
    handles: dict[str, Any] = {}
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, panel in zip(axes.flat, panels, strict=False):
        for curve in panel.curves:
            handles.setdefault(curve.name, _drawn(axis, curve, colours[curve.name]))
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(panel.x, fontsize=9)
        axis.set_ylabel(panel.y, fontsize=9)
        if panel.log_x:
            _set_log_x(axis, panel)
        elif all(float(x).is_integer() for curve in panel.curves for x in curve.x):
            axis.locator_params(axis="x", integer=True)
        if panel.log_y and _is_wide(panel):
            axis.set_yscale("log")
        axis.grid(alpha=0.3)
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=8)
    save(plt, figure, path)


def _drawn(axis: Any, curve: Curve, colour: Any) -> Any:
    (handle,) = axis.plot(curve.x, curve.y, color=colour, **STYLES[curve.style])
    if curve.low:
        axis.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, lw=0)
    return handle


def _is_wide(panel: Panel) -> bool:
    """Whether a logarithmic axis would have more than one number on it, and hide none below 0."""
    values = [y for curve in panel.curves for y in curve.y if y != 0]
    return bool(values) and min(values) > 0 and max(values) > WIDE * min(values)


def _set_log_x(axis: Any, panel: Panel) -> None:
    """A logarithmic axis; with a place for 0 if need be: linear below the smallest number."""
    values = [x for curve in panel.curves for x in curve.x]
    if min(values) > 0:
        axis.set_xscale("log")
    else:
        axis.set_xscale("symlog", linthresh=min(abs(x) for x in values if x != 0))
