"""Draw the image of the README from a plan that `ld3 learn` made.

    make demo
    python tools/readme_image.py demo/fashion-*/plan.json

writes docs/images/learned.png: one row per seed, one column per schedule, all on one grey scale.
"""

import argparse
from pathlib import Path

from ld3 import Plan
from ld3.images import rescaled, shown_range
from ld3.report.figures import plots, save
from ld3.runs.pictures import image_rows

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "learned.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 3], help="of those 0 to 7")
    parser.add_argument("--out", type=Path, default=IMAGE)
    args = parser.parse_args()
    columns = image_rows(Plan.load(args.plan))
    span = shown_range(columns[0][1])
    plt = plots()
    cell, head = 1.55, 0.52  # inches
    size = (cell * len(columns), cell * len(args.seeds) + head)
    figure, axes = plt.subplots(len(args.seeds), len(columns), figsize=size, squeeze=False)
    for column, (label, images) in enumerate(columns):
        kind, _, nfe = label.removesuffix(" evaluations").rpartition(", ")
        title = kind.replace(": ", "\n") + f"\n{nfe} evaluations"
        axes[0, column].set_title(title, fontsize=8, pad=3)
        for row, seed in enumerate(args.seeds):
            shown = (rescaled(images, span)[seed].clamp(-1, 1) + 1) / 2
            axes[row, column].imshow(shown.permute(1, 2, 0).numpy(), cmap="gray", vmin=0, vmax=1)
            axes[row, column].set_axis_off()
    figure.subplots_adjust(0.005, 0.005, 0.995, 1 - head / size[1], wspace=0.02, hspace=0.02)
    save(plt, figure, args.out)
    print(args.out)


if __name__ == "__main__":
    main()
