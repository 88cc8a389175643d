"""What models of docking have in common."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ld3.models import Model
from ld3.zoo.docking.ligand import Ligand


class DockingModel(Model, Protocol):
    """A model of one complex; samples are coordinates of the ligand's atoms, (B, n, 3)."""

    @property
    def ligand(self) -> Ligand: ...
    @property
    def crystal(self) -> Tensor | None: ...  # (n, 3) the true pose, if it is known
    @property
    def confidence(self) -> Callable[[Tensor], Tensor] | None: ...  # states -> (B,), ranks them


def is_docking(model: object) -> bool:
    """Whether samples of a model are poses of a ligand."""
    return isinstance(getattr(model, "ligand", None), Ligand)
