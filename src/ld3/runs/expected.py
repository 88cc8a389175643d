"""What a run will do, part by part, in network evaluations on one sample: for the time left.

The counts are close, not exact: what a preconditioner or a test for ripples costs is left out, and
a search is taken for one pass of the teacher.
"""

import math
from collections.abc import Iterator

from ld3 import zoo
from ld3.known_grids import BUMPS, GRIDS
from ld3.learner.presets import Preset, for_family
from ld3.learner.recipes import GaussNewton, Recipe
from ld3.learner.starts import FINALISTS, SCREEN, TRIED
from ld3.report.time_left import Part
from ld3.runs.descent import race_length
from ld3.runs.session import reference_for
from ld3.runs.spec import RunSpec
from ld3.runs.teacher_check import CHECKING, SEEDS
from ld3.solvers import Solver
from ld3.teacher import Teacher

SHOWN = 3  # grids and plans that get a Fréchet distance


def learn_parts(spec: RunSpec, solver: Solver | None = None) -> Iterator[Part]:
    """Of `ld3 learn`, for all numbers of evaluations."""
    solver, scales = solver or spec.make_solver(), len(spec.guidances)
    if spec.family is not None:
        yield from _family_parts(spec, solver)
        return
    for nfe in spec.nfe if spec.passes is None else (max(spec.nfe),):
        preset = spec.make_preset(nfe)
        yield from check_parts(preset.teacher)
        for _ in range(scales):
            yield from pair_parts(preset)
        yield from _start_parts(spec, preset, nfe)
        starts = preset.starts if spec.start == "best" else 1
        for _ in range(1 if spec.passes is None else 2):
            yield Part("loss", learning_cost(preset, nfe, scales, starts))
        yield from score_parts(spec.held_out, preset.teacher, spec.reference_steps, nfe, scales)
        yield from _set_parts(spec, preset.teacher, nfe)


def check_parts(teacher: Teacher) -> Iterator[Part]:
    """The teacher, and three with twice its steps."""
    for factor in (1, 2, 2, 2):
        yield Part(CHECKING, SEEDS * factor * teacher.nfe)


def pair_parts(preset: Preset) -> Iterator[Part]:
    yield Part("training pairs", preset.train * preset.teacher.nfe)
    yield Part("validation pairs", preset.valid * preset.teacher.nfe)


def learning_cost(preset: Preset, nfe: int, scales: int = 1, starts: int = 1) -> float:
    """Of all iterations and validations."""
    recipe = preset.recipe
    longest = math.ceil(preset.train / recipe.batch) * recipe.all_epochs
    iterations = race_length(starts, longest)
    each = min(recipe.batch, preset.train) * nfe * _passes(recipe, nfe)
    return iterations * each + iterations / recipe.validate_every * preset.valid * nfe * scales


def _passes(recipe: Recipe, nfe: int) -> float:
    """Evaluations per sample and step of one iteration: forward and backward, or one of each half
    trajectory for every parameter."""
    if not isinstance(recipe, GaussNewton):
        return 3.0
    triangle = nfe * (nfe - 1) / 2
    sizes = {"times": nfe, "net": nfe - 1, "coefficients": triangle, "guidance": triangle}
    return 1 + sum(sizes[group] for group in recipe.groups) / 2


def _start_parts(spec: RunSpec, preset: Preset, nfe: int) -> Iterator[Part]:
    if spec.start == "best":
        yield Part("trying starts", len(TRIED) * min(SCREEN, preset.valid) * nfe)
        yield Part("trying starts", FINALISTS * preset.valid * nfe)
    elif spec.start not in (*GRIDS, *BUMPS) and not spec.start.endswith(".json"):
        yield Part("trying starts", preset.train * preset.teacher.nfe)


def score_parts(
    held_out: int, teacher: Teacher, reference_steps: int | None, nfe: int, scales: int = 1
) -> Iterator[Part]:
    """Known grids and a plan on held-out seeds; at the ends of a range only two of them."""
    reference = reference_for(teacher, reference_steps)
    for number in range(scales):
        tables = 2 if number else len(GRIDS) + 2
        yield Part("held-out pairs", held_out * teacher.nfe)
        yield Part("reference samples", held_out * reference.nfe)
        yield Part("scoring on held-out noise", tables * held_out * nfe)


def _set_parts(spec: RunSpec, teacher: Teacher, nfe: int) -> Iterator[Part]:
    if spec.judged < 2 or (spec.data is None and not zoo.has_features(spec.model)):
        return
    reference = reference_for(teacher, spec.reference_steps)
    yield Part("samples of the reference solution", spec.judged * reference.nfe)
    yield Part("Fréchet distance", SHOWN * spec.judged * nfe)


def _family_parts(spec: RunSpec, solver: Solver) -> Iterator[Part]:
    low, high = spec.family or (1, 1)
    counts = [nfe for nfe in range(low, high + 1) if nfe % solver.nfe(1) == 0] or [low]
    alone = spec.model_copy(update={"family": None, "refine": False})
    preset, middle = for_family(alone.make_preset(counts[-1])), sum(counts) / len(counts)
    yield from check_parts(preset.teacher)
    yield from pair_parts(preset)
    yield Part("trying starts", 3 * len(BUMPS) * min(SCREEN, preset.valid) * middle)
    validated = len(counts) * middle  # evaluations of one validation of all members
    recipe, cost = preset.recipe, learning_cost(preset, round(middle))
    iterations = math.ceil(preset.train / recipe.batch) * recipe.all_epochs
    more = (validated - middle) * preset.valid * iterations / recipe.validate_every
    yield Part("loss", cost + more)
    first, second, scoring = score_parts(spec.held_out, preset.teacher, spec.reference_steps, 1)
    yield from (first, second, Part(scoring.name, scoring.evaluations * validated))
    for nfe in counts if spec.refine else ():
        single = alone.make_preset(nfe)
        yield Part("loss", learning_cost(single, nfe))
        yield Part(scoring.name, scoring.evaluations * nfe)
        yield from _set_parts(alone, preset.teacher, nfe)
