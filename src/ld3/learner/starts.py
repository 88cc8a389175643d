"""Where learning begins: the best of the known grids, by forward passes on the validation pairs."""

import math
from collections.abc import Callable, Mapping

from ld3.searches import BUMPS, METHODS

GRIDS = tuple(name for name in METHODS if not name.startswith("paper-"))
TRIED = (*GRIDS, *BUMPS)
SCREEN, FINALISTS = 6, 6  # pairs on which all are compared; how many are on all pairs


def finalists(
    loss: Callable[[str, int], float], tell: Callable[[int, int], None]
) -> dict[str, float]:
    """The losses on all pairs of those that are best on a few; `loss(name, pairs)`, 0: all."""
    losses: dict[str, float] = {}
    for pairs, names in ((SCREEN, TRIED), (0, ())):
        names = names or tuple(ranked(losses)[:FINALISTS])
        losses = {}
        for done, name in enumerate(names):
            losses[name] = loss(name, pairs)
            tell(done + 1, len(names))
    return losses


def ranked(losses: Mapping[str, float]) -> list[str]:
    """Best first; those that are not finite only if there are no others."""
    finite = [name for name in losses if math.isfinite(losses[name])] or list(losses)
    return sorted(finite, key=lambda name: losses[name])
