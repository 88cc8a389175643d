"""Point clouds: a comparison with drawings of clouds, and which distance to learn with."""

from collections.abc import Mapping

from ld3.distances import DISTANCES
from ld3.errors import SpecError, unknown
from ld3.experiment import Findings, ResultTable, Value, Values
from ld3.images import is_cloud
from ld3.runs.compare.cells import found_cells
from ld3.runs.compare.methods import LEARNED
from ld3.runs.experiments.comparison_grid import GridOptions, run_grid
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.sample_images import draw_methods
from ld3.runs.experiments.scoring import Scoring, better, capital, title_of
from ld3.table import TunedSolver

NAMES = {"l2": "mean squared error", "chamfer": "Chamfer distance"}
Found = dict[int, list[TunedSolver | None]]  # by evaluations, one per seed


class PointsOptions(GridOptions):
    """A comparison; then the method `learned` with each distance of `learn_with`, and the first
    `clouds` held-out samples of the first method, of `learned` and of the teacher as drawings."""

    learn_with: tuple[str, ...] = ("l2", "chamfer")
    learned: str = "ld3"
    clouds: int = 8

    def checked(self, context: Context) -> None:
        super().checked(context)
        spec = context.compare_spec(self.compare)
        if self.learned not in LEARNED or self.learned not in spec.names:
            known = [name for name in spec.names if name in LEARNED]
            raise unknown("learned method", self.learned, known)
        for name in self.learn_with:
            if name not in DISTANCES:
                raise unknown("distance to learn with", name, DISTANCES)
        if not 1 <= self.clouds <= spec.held_out:
            raise SpecError(f"clouds: got {self.clouds}, expected 1 to held_out = {spec.held_out}")


def run_points(options: PointsOptions, context: Context) -> Findings:
    """Table 9, the teacher's own metrics, Figure 8, and a table for each distance."""
    spec = context.compare_spec(options.compare)
    scoring = Scoring.of(spec, context)
    session = scoring.session
    if not is_cloud(session.held_out(2).target):
        raise SpecError(f"points: got {session.loaded.name}, expected a model of point clouds")
    found = run_grid(options, context)
    shown = (spec.names[0], options.learned)
    images = draw_methods(spec, session, options.clouds, context.own_folder, shown)
    more, said = _learn_with(options, context) if len(options.learn_with) > 1 else ([], [])
    tables = (*found.tables, *_teacher_table(scoring, options.show), *more)
    changes = {"tables": tables, "images": tuple(images), "notes": (*found.notes, *said)}
    return found.model_copy(update=changes)


def _teacher_table(scoring: Scoring, show: tuple[str, ...]) -> list[ResultTable]:
    """Metrics of sets of the teacher itself: what no student is expected to beat."""
    if scoring.sets is None:
        return []
    teacher = scoring.session.teacher
    values = scoring.sets.values(scoring.session.table(teacher))
    keys = [key for key in show if key in values]
    row = {teacher.title: [Value(value=values[key][0]) for key in keys]}
    return [ResultTable.of("The teacher", ("teacher", *map(title_of, keys)), row)]


def _learn_with(options: PointsOptions, context: Context) -> tuple[list[ResultTable], list[str]]:
    """Plans learned with each distance, measured by each distance on the same held-out seeds."""
    scorings: dict[str, Scoring] = {}
    plans: dict[str, Found] = {}
    for name in options.learn_with:
        spec = context.compare_spec({**options.compare, "distance": name, "full": False})
        scorings[name] = Scoring.of(spec, context)
        plans[name] = {}
        for cell, result in found_cells(scorings[name].session, spec, options.learned):
            if cell.solver == spec.made_solvers[0]:
                plans[name].setdefault(cell.nfe, []).append(result.tuned)
    tables, notes = [], []
    for measure, scoring in scorings.items():
        values = {
            name: {nfe: scoring.values(several) for nfe, several in found.items()}
            for name, found in plans.items()
        }
        tables.append(_table(measure, values))
        notes += [_verdict(measure, name, values) for name in values if name != measure]
    return tables, notes


def _table(measure: str, values: Mapping[str, Mapping[int, Values]]) -> ResultTable:
    counts = list(next(iter(values.values())))
    rows = {
        NAMES.get(name, name): [own[nfe].get("distance") for nfe in counts]
        for name, own in values.items()
    }
    title = f"{capital(NAMES.get(measure, measure))} to the teacher, by what was learned with"
    head = ("learned with", *(f"NFE {nfe}" for nfe in counts))
    return ResultTable.of(title, head, rows, better("distance"))


def _verdict(measure: str, other: str, values: Mapping[str, Mapping[int, Values]]) -> str:
    """Whether the distance that is measured is also the one to learn with."""
    ratios = [
        values[other][nfe]["distance"].value / own["distance"].value
        for nfe, own in values[measure].items()
        if "distance" in own and "distance" in values[other][nfe]
    ]
    ends = " to ".join(f"{value:.2f}" for value in sorted({min(ratios), max(ratios)}))
    return (
        f"By {NAMES.get(measure, measure)}, plans learned with {NAMES.get(other, other)} are at "
        f"{ends} times the distance of those learned with it."
    )
