"""One run to do: its model, solver, number of evaluations and preset, and its teacher's pairs.

Seeds never overlap: learning pairs, validation pairs and held-out noise come from ranges of their
own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ld3 import __version__, zoo
from ld3.distances import Distance
from ld3.errors import SpecError
from ld3.learner.presets import Preset, Teacher, make_preset, without_gradients
from ld3.models import Model
from ld3.scores import Tell
from ld3.searches import make_grid
from ld3.solvers import Solver, make_solver
from ld3.spec import RunSpec
from ld3.store import digest
from ld3.teacher import Pairs, teach
from ld3.zoo.loading import Loaded, load_model, make_distance, of_model

VALID, HELD = 1_000_000_000, 2_000_000_000  # where seeds begin


@dataclass(frozen=True)
class Job:
    """One run: one model, one solver, one number of evaluations."""

    spec: RunSpec
    loaded: Loaded
    distance: Distance
    solver: Solver
    nfe: int
    preset: Preset

    @property
    def each(self) -> int:
        """Evaluations a step."""
        return self.solver.nfe(1)

    @property
    def steps(self) -> int:
        each = self.each
        if self.nfe < each or self.nfe % each:
            raise SpecError(
                f"nfe: got {self.nfe}, wanted a multiple of {each}: {self.solver.name} takes "
                f"{each} evaluations a step"
            )
        return self.nfe // each

    @property
    def seeds(self) -> tuple[range, range]:
        """Of learning and of validation."""
        first = 10_000 * self.spec.seed
        return range(first, first + self.preset.train), range(VALID, VALID + self.preset.valid)

    @property
    def guidances(self) -> tuple[float, ...]:
        """The scale to learn for; of a range the middle, and both ends."""
        low, high = self.spec.guidance, self.spec.guidance_to
        return (low,) if high is None else ((low + high) / 2, low, high)

    def at_guidance(self, scale: float) -> "Job":
        """The same at one guidance scale."""
        words = {"guidance": scale, "guidance_to": None}
        return replace(self, spec=self.spec.model_copy(update=words))

    @property
    def identity(self) -> dict[str, Any]:
        """All that determines the result."""
        said = self.spec.model_dump(mode="json", exclude={"out", "nfe", "tensorboard", "refine"})
        asked = {  # words that were left out say nothing, so that new ones change no old name
            word: value
            for word, value in said.items()
            if not (value is None or value is False or value == {})
        }
        weights = {"weights": self.loaded.identity, "version": __version__}
        if self.loaded.name in zoo.SHIPPED:
            weights |= {name: zoo.checksum(name) for name in ("perceptual", "judge")}
        return asked | {"nfe": self.nfe} | weights

    @property
    def folder(self) -> Path:
        slug = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.loaded.name)[-80:]
        nfe = f"{self.nfe}" if self.spec.family is None else "{}-{}".format(*self.spec.family)
        name = f"{slug}-{self.solver.name}{self.solver.order}-nfe{nfe}"
        return self.spec.out / f"{name}-{digest(self.identity)}"


def jobs(spec: RunSpec, counts: Sequence[int], model: Model | None = None) -> Iterator[Job]:
    """What a spec asks for, for each number of evaluations."""
    learn = not spec.gradient_free
    if model is None:
        loaded = load_model(spec.model, spec.device, spec.dtype, learn, spec.pipeline)
    else:
        loaded = of_model(model, spec.model if ":" in spec.model else "own", spec.device, learn)
    distance = make_distance(spec.distance, loaded, spec.device)
    solver = make_solver(spec.solver, spec.order, spec.variant)
    for nfe in counts:
        preset = make_preset(spec.preset, nfe, spec.pairs)
        if spec.gradient_free:
            preset = without_gradients(preset)
        recipe = replace(preset.recipe, **spec.recipe)  # type: ignore[arg-type]
        if spec.learn is not None:
            recipe = replace(recipe, learn=spec.learn)
        teacher = replace(preset.teacher, **spec.teacher)
        preset = replace(preset, recipe=recipe, teacher=teacher)
        yield Job(spec, loaded, distance, solver, nfe, preset)


def pairs_for(
    job: Job,
    seeds: Sequence[int],
    what: str,
    tell: Tell,
    teacher: Teacher | None = None,
) -> Pairs:
    """Of the job's teacher, or of another."""
    teacher, loaded, ready = teacher or job.preset.teacher, job.loaded, 0

    def progress(done: int) -> None:
        nonlocal ready
        ready += done
        tell(what, ready, len(seeds))

    return teach(
        loaded.model,
        loaded.identity,
        make_solver(teacher.solver, teacher.order or None, teacher.variant or None),
        make_grid(teacher.grid, loaded.model.schedule, teacher.steps),
        seeds,
        guidance=job.guidances[0],
        folder=job.spec.out / "pairs",
        device=job.spec.device,
        progress=progress,
    )
