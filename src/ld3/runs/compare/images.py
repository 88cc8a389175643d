"""Images of a comparison: the same noise by teacher, best baseline and learned plan.

The seeds are the first ones, whatever they show, and the worst ones: where the learned plan is
farthest from the teacher, where the baseline is, and where learning gains least.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from math import isqrt

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ld3.comparison import Block, Pictures, Sheet
from ld3.images import as_images, png, rescaled, shown_range
from ld3.runs.compare.cells import Scored
from ld3.runs.session import Session
from ld3.seeds import seeds_for

FIRST, WORST = 8, 4
BYTES = 2_400_000  # of all pixels together, so that a page stays small

Blocks = Sequence[tuple[Block, Mapping[str, Scored]]]


def images_of(
    session: Session, held_out: int, blocks: Blocks, report: Callable[[int, int], None]
) -> Pictures | None:
    """For each block, with its results of the first seed by method; None if there is nothing."""
    target = as_images(session.held_out(held_out).target)
    if target is None:
        return None
    chosen = [(results, sheet) for block, results in blocks if (sheet := _sheet(block))]
    if not chosen:
        return None
    every = sorted({number for _, sheet in chosen for number in _numbers(sheet)})
    count = len(every) + sum(2 * len(_numbers(sheet)) for _, sheet in chosen)
    shrink = _shrink(target.shape[1:], count, shown_range(target))
    height, width = shrink(target[:1]).shape[2:]
    sheets = []
    for done, (results, sheet) in enumerate(chosen):
        report(done, len(chosen))
        drawn = {}
        for role, method in (("before", sheet.before), ("after", sheet.after)):
            if method in results:
                drawn[f"{role}_png"] = _drawn(session, results[method], _numbers(sheet), shrink)
        sheets.append(sheet.model_copy(update=drawn))
    teacher = _encoded(shrink(target[every]), every)
    return Pictures(height=height, width=width, teacher=teacher, sheets=sheets)


def _sheet(block: Block) -> Sheet | None:
    """Which methods on which seeds; images come later."""
    rows = {row.method: row for row in block.rows}
    if block.baseline is not None:
        before, after = block.baseline, block.featured or "teacher"
    elif block.featured is not None:
        before, after = block.featured, "teacher"
    else:
        return None
    base = rows[before].distances
    own = rows[after].distances if after in rows else base
    loss = [a - b for a, b in zip(own, base, strict=True)]
    return Sheet(
        solver=block.solver,
        nfe=block.nfe,
        before=before,
        after=after,
        first=list(range(min(FIRST, len(base)))),
        worst_after=_largest(own) if after in rows else [],
        worst_before=_largest(base),
        least_gain=_largest(loss) if after in rows else [],
        before_png={},
        after_png={},
    )


def _numbers(sheet: Sheet) -> list[int]:
    parts = (sheet.first, sheet.worst_after, sheet.worst_before, sheet.least_gain)
    return sorted({number for part in parts for number in part})


def _largest(values: Sequence[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda i: -values[i])[:WORST]


def _drawn(
    session: Session, result: Scored, numbers: list[int], shrink: Callable[[Tensor], Tensor]
) -> dict[str, str]:
    assert result.found.tuned is not None
    table, first = session.table(result.found.tuned), seeds_for("held-out", 1)[0]
    images = as_images(session.samples(table, [first + number for number in numbers]))
    assert images is not None
    return _encoded(shrink(images), numbers)


def _encoded(images: Tensor, numbers: Sequence[int]) -> dict[str, str]:
    return {
        str(number): b64encode(png(image)).decode()
        for number, image in zip(numbers, images, strict=True)
    }


def _shrink(
    shape: torch.Size, count: int, span: tuple[float, float] = (-1.0, 1.0)
) -> Callable[[Tensor], Tensor]:
    """Makes images small enough for `count` of them to fit on a page, their values in [-1, 1]."""
    channels, height, width = shape
    side = max(16, isqrt(BYTES // (count * channels)))
    factor = min(1.0, side / max(height, width))
    size = (max(1, round(height * factor)), max(1, round(width * factor)))

    def shrink(images: Tensor) -> Tensor:
        scaled = rescaled(images, span)
        return scaled if factor == 1 else interpolate(scaled.float(), size, mode="area")

    return shrink
