"""Spaces: states that are not vectors.

A sampler moves a state by a tangent. For vectors that is addition, and no space is needed:

    x_+ = x + v

A space says what replaces the plus, for rotations or angles for example. Tangents are vectors
(B, D) and are added and scaled as such; their coordinates belong to parts, each with a noise
schedule of its own (:class:`ld3.schedules.Parts`).
"""

from typing import Protocol

from torch import Tensor


class Space(Protocol):
    """Where states live: tensors (B, ...) that are moved by tangents (B, D)."""

    @property
    def parts(self) -> Tensor:
        """Which part of the schedule each coordinate of a tangent belongs to, (D,)."""
        ...

    def start(self, z: Tensor) -> Tensor:
        """The state at t_max that unit-variance noise z (B, *S) stands for."""
        ...

    def move(self, x: Tensor, tangent: Tensor) -> Tensor:
        """The state (B, ...) that a tangent (B, D) leads to from x."""
        ...


def space_of(model: object) -> Space | None:
    """The space of a model's states; None for vectors."""
    space: Space | None = getattr(model, "space", None)
    return space
