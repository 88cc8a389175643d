"""Figures: contact sheets of samples, times on a line, curves. Needs the extra `report`."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from torch import Tensor

from ld3.errors import MissingPackage
from ld3.grids import TimeGrid
from ld3.images import rescaled, shown_range
from ld3.schedules import Schedule
from ld3.store import write_bytes


def plots() -> Any:
    """matplotlib, drawing to files."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingPackage(
            "matplotlib is missing; pip install 'ld3[report]' adds plots and contact sheets"
        ) from None
    plt.switch_backend("agg")
    return plt


def save(plt: Any, figure: Any, path: Path) -> None:
    """As PNG, whole or not at all."""
    buffer = BytesIO()
    figure.savefig(buffer, dpi=130, format="png")
    plt.close(figure)
    write_bytes(path, buffer.getvalue())


def draw_rows(path: Path, rows: Sequence[tuple[str, Tensor]]) -> None:
    """Images, one labelled row each: the same noise from top to bottom, all on the grey scale of
    the first row."""
    plt = plots()
    span = shown_range(rows[0][1])
    count, _, height, width = rows[0][1].shape
    across = max(6.0, 0.9 * count)  # inches; a line of text above each row takes 0.24
    down = len(rows) * (across / count * height / width + 0.24)
    figure, axes = plt.subplots(len(rows), 1, figsize=(across, down), squeeze=False)
    for axis, (label, images) in zip(axes[:, 0], rows, strict=True):
        strip = (rescaled(images, span).clamp(-1, 1) + 1) / 2
        strip = strip.permute(2, 0, 3, 1).flatten(1, 2)  # (H, B W, C)
        axis.imshow(strip.cpu().numpy(), cmap="gray", vmin=0, vmax=1)
        axis.set_title(label, loc="left", fontsize=9, pad=3)
        axis.set_axis_off()
    figure.subplots_adjust(0.005, 0.01, 0.995, 1 - 0.22 / down, hspace=0.24 * len(rows) / down)
    save(plt, figure, path)


def draw_grids(path: Path, schedule: Schedule, grids: Mapping[str, TimeGrid]) -> None:
    """Each grid as points on the axis of lam; network times as open circles below, explained."""
    plt = plots()
    figure, axis = plt.subplots(figsize=(9, 0.4 * len(grids) + 1), layout="constrained")
    for row, grid in enumerate(grids.values()):
        axis.plot(schedule.lam(grid.times), [-row] * len(grid.times), "o-", ms=4, lw=0.6)
        moved = grid.net_times != grid.times
        net = schedule.lam(grid.net_times[moved])
        axis.plot(net, [-row - 0.25] * len(net), "o", ms=4, mfc="none", color="black")
    axis.set_yticks([-row for row in range(len(grids))], list(grids))
    axis.plot([], [], "o-", ms=4, lw=0.6, color="grey", label="times of the solver")
    if any(bool((grid.net_times != grid.times).any()) for grid in grids.values()):
        text = "times given to the network, where they differ"
        axis.plot([], [], "o", ms=4, mfc="none", color="black", label=text)
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize=8, frameon=False)
    axis.set_xlabel("lam = log(alpha/sigma): noise on the left, data on the right")
    axis.grid(alpha=0.3, axis="x")
    save(plt, figure, path)


def draw_curves(
    path: Path, x: Sequence[float], curves: Mapping[str, Sequence[float]], across: str, up: str
) -> None:
    """Positive numbers over x, on a logarithmic axis."""
    plt = plots()
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name, values in curves.items():
        axis.plot(x, values, "o-", ms=4, label=name)
    axis.set(yscale="log", xlabel=across, ylabel=up)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    save(plt, figure, path)
