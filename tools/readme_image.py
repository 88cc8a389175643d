"""Draw the image of the README from a plan that `ld3 learn` made.

    make demo
    python tools/readme_image.py demo/fashion-*/plan.json

writes docs/images/learned.png: one row per seed, one column per schedule, all on one grey scale.
The labels are large, so that they can be read on a phone, where the image is 360 pixels wide.
"""

import argparse
from pathlib import Path

from ld3 import Plan
from ld3.images import rescaled, shown_range
from ld3.report.figures import plots, save
from ld3.runs.pictures import image_rows

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "learned.png"
COUNT = 32  # seeds to choose from
NAMES = {"default grid": "default", "best known grid": "best known"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[18, 23], help=f"below {COUNT}")
    parser.add_argument("--out", type=Path, default=IMAGE)
    args = parser.parse_args()
    plan = Plan.load(args.plan)
    columns = image_rows(plan, count=COUNT)
    span = shown_range(columns[0][1])
    plt = plots()
    cell, head, gap = 1.55, 0.68, 0.03  # inches
    wide, high = cell * len(columns), cell * len(args.seeds) + head
    figure = plt.figure(figsize=(wide, high))
    for column, (label, images) in enumerate(columns):
        kind, _, nfe = label.removesuffix(" evaluations").rpartition(", ")
        kind = kind.partition(":")[0]
        place, name = (column + 0.5) / len(columns), NAMES.get(kind, kind)
        weight = "bold" if name == "learned" else "normal"
        figure.text(place, 1 - 0.29 / high, name, size=15, weight=weight, ha="center")
        figure.text(place, 1 - 0.58 / high, f"{nfe} evaluations", size=13, ha="center")
        for row, seed in enumerate(args.seeds):
            left, bottom = column * cell + gap, (len(args.seeds) - 1 - row) * cell + gap
            side = cell - 2 * gap
            axis = figure.add_axes((left / wide, bottom / high, side / wide, side / high))
            shown = (rescaled(images, span)[seed].clamp(-1, 1) + 1) / 2
            axis.imshow(shown.permute(1, 2, 0).numpy(), cmap="gray", vmin=0, vmax=1)
            axis.set_axis_off()
    save(plt, figure, args.out)
    print(args.out)


if __name__ == "__main__":
    main()
