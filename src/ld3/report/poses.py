"""Poses of a molecule in three dimensions, drawn over each other. Needs the extra `report`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ld3.report.figures import plots, save

COLOURS = ("tab:green", "tab:blue", "tab:red", "tab:orange", "tab:purple")


def draw_poses(
    path: Path, panels: Sequence[tuple[str, Mapping[str, Tensor]]], edges: Sequence[Sequence[int]]
) -> None:
    """One panel for each (title, poses by name): atoms (n, 3) as points, `edges` as lines.

    All panels share colours and a scale; each is seen along the direction in which the first pose
    is thinnest.
    """
    plt = plots()
    figure = plt.figure(figsize=(4.4 * len(panels), 4.6), layout="constrained")
    handles: dict[str, Any] = {}
    for number, (title, poses) in enumerate(panels):
        axis = figure.add_subplot(1, len(panels), number + 1, projection="3d")
        atoms = {name: pose.detach().cpu().double().numpy() for name, pose in poses.items()}
        first = next(iter(atoms.values()))
        centre = first.mean(0)
        _, _, frame = np.linalg.svd(first - centre)
        for (name, pose), colour in zip(atoms.items(), COLOURS, strict=False):
            seen = (pose - centre) @ frame.T
            for u, v in edges:
                line = seen[[u, v]].T
                (handle,) = axis.plot(*line, color=colour, lw=2.2, alpha=0.85)
                handles.setdefault(name, handle)
            axis.scatter(*seen.T, color=colour, s=14, depthshade=False)
        reach = max(float(np.abs((pose - centre) @ frame.T).max()) for pose in atoms.values())
        axis.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach, reach))
        axis.set_box_aspect((1, 1, 1))
        axis.view_init(elev=70, azim=-90)
        axis.set_axis_off()
        axis.set_title(title, fontsize=9)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    save(plt, figure, path)
