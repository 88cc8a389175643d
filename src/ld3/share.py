"""Pieces of work that do not depend on each other: made in any place, taken in order.

    for made in share(make, items): ...        made = make(item), in the order of the items

Alone, one process makes all of them. Several processes may each make some (:mod:`ld3.runs.ranks`).
What a piece is never depends on their number, and sums over pieces are taken in the order of the
items, so that results do not depend on it either.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

Tensors = dict[str, Tensor]
Item = TypeVar("Item")


class Share(Protocol):
    """Makes pieces; each rank gets all of them."""

    def __call__(
        self, make: Callable[[Item], Tensors], items: Sequence[Item], /
    ) -> Iterator[Tensors]: ...


def alone(make: Callable[[Item], Tensors], items: Iterable[Item], /) -> Iterator[Tensors]:
    """One after the other, in this process."""
    return map(make, items)
