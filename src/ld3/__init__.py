"""ld3: learn the few time steps at which your diffusion or flow model should be sampled.

Names load when they are first used, so that importing the package, and `ld3 --help`, is instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ld3.comparison import Comparison as Comparison
    from ld3.distances import DISTANCES as DISTANCES
    from ld3.errors import Ld3Error as Ld3Error
    from ld3.grids import Knots as Knots
    from ld3.grids import TimeGrid as TimeGrid
    from ld3.grids import knots as knots
    from ld3.interpolate import guess as guess
    from ld3.known_grids import METHODS as METHODS
    from ld3.known_grids import make_grid as make_grid
    from ld3.learner.learn import learning as learning
    from ld3.learner.presets import make_preset as make_preset
    from ld3.learner.recipes import GaussNewton as GaussNewton
    from ld3.learner.recipes import PaperRules as PaperRules
    from ld3.learner.recipes import PreconditionedAdam as PreconditionedAdam
    from ld3.model_checks import check_model as check_model
    from ld3.models import ClampedModel as ClampedModel
    from ld3.models import FunctionModel as FunctionModel
    from ld3.models import Model as Model
    from ld3.models import ModelDefaults as ModelDefaults
    from ld3.models import bind as bind
    from ld3.models import bind_network as bind_network
    from ld3.models import count_calls as count_calls
    from ld3.models import prior as prior
    from ld3.plan import Plan as Plan
    from ld3.problem import Problem as Problem
    from ld3.runs.compare.run import run_compare as run_compare
    from ld3.runs.compare.spec import CompareSpec as CompareSpec
    from ld3.runs.family import run_family as run_family
    from ld3.runs.learn import learn as learn
    from ld3.runs.learn import run_learn as run_learn
    from ld3.runs.sample import run_sample as run_sample
    from ld3.runs.score import run_score as run_score
    from ld3.runs.spec import RunSpec as RunSpec
    from ld3.sampling import integrate as integrate
    from ld3.sampling import trajectory as trajectory
    from ld3.schedules import EDM as EDM
    from ld3.schedules import Discrete as Discrete
    from ld3.schedules import Flow as Flow
    from ld3.schedules import Schedule as Schedule
    from ld3.schedules import VPCosine as VPCosine
    from ld3.schedules import VPLinear as VPLinear
    from ld3.schedules import make_schedule as make_schedule
    from ld3.seeds import noise as noise
    from ld3.solvers import SOLVERS as SOLVERS
    from ld3.solvers import Solver as Solver
    from ld3.solvers import make_solver as make_solver
    from ld3.table import Table as Table
    from ld3.table import TunedSolver as TunedSolver
    from ld3.table import compile_table as compile_table
    from ld3.teacher import Pairs as Pairs
    from ld3.teacher import Teacher as Teacher
    from ld3.teacher import make_pairs as make_pairs

__version__ = "0.4.0"

_HOME = {
    name: module
    for module, names in {
        "comparison": ("Comparison",),
        "distances": ("DISTANCES",),
        "errors": ("Ld3Error",),
        "grids": ("Knots", "TimeGrid", "knots"),
        "interpolate": ("guess",),
        "learner.learn": ("learning",),
        "learner.presets": ("make_preset",),
        "learner.recipes": ("GaussNewton", "PaperRules", "PreconditionedAdam"),
        "model_checks": ("check_model",),
        "models": (
            "ClampedModel", "FunctionModel", "Model", "ModelDefaults", "bind", "bind_network",
            "count_calls", "prior",
        ),
        "plan": ("Plan",),
        "problem": ("Problem",),
        "runs.compare.run": ("run_compare",),
        "runs.compare.spec": ("CompareSpec",),
        "runs.family": ("run_family",),
        "runs.learn": ("learn", "run_learn"),
        "runs.sample": ("run_sample",),
        "runs.score": ("run_score",),
        "runs.spec": ("RunSpec",),
        "sampling": ("integrate", "trajectory"),
        "schedules": (
            "EDM", "Discrete", "Flow", "Schedule", "VPCosine", "VPLinear", "make_schedule",
        ),
        "known_grids": ("METHODS", "make_grid"),
        "seeds": ("noise",),
        "solvers": ("SOLVERS", "Solver", "make_solver"),
        "table": ("Table", "TunedSolver", "compile_table"),
        "teacher": ("Pairs", "Teacher", "make_pairs"),
    }.items()
    for name in names
}  # fmt: skip

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'ld3' has no attribute {name!r}")
    value = getattr(import_module(f"ld3.{_HOME[name]}"), name)
    globals()[name] = value
    return value
