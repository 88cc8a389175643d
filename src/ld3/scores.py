"""How good a solver is on held-out noise, as data."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Scores(_Part):
    """One solver on held-out noise, means over samples."""

    distance: Number  # to the teacher, in the distance that was learned with
    to_teacher: Number  # root mean square error to the teacher
    to_accurate: Number  # root mean square error to the reference solution
    frechet: Number | None = None  # Fréchet distance to real images
    # Fréchet distance to the reference solution from the same noise
    frechet_accurate: Number | None = None


class FamilyScores(_Part):
    """One number of evaluations of a family, by the distance to the teacher."""

    nfe: int  # network evaluations
    best_grid: Annotated[str, Field(max_length=500)]  # the best known grid, on the same noise
    known: Number  # its distance
    family: Number  # distance of the family
    refined: Number | None = None  # distance after --refine


@dataclass(frozen=True)
class GuidanceScores:
    """A plan and all known grids at one guidance scale."""

    guidance: float
    plan: Scores
    grids: dict[str, Scores]
    best_grid: str  # picked on the very noise it is compared on, in its favour

    @property
    def ratio(self) -> float:
        """The plan's distance over that of the best known grid."""
        return self.plan.distance / self.grids[self.best_grid].distance


def best_of(scores: Mapping[str, Scores], among: Collection[str]) -> str:
    """The solver with the smallest distance."""
    return min((n for n in scores if n in among), key=lambda name: scores[name].distance)
