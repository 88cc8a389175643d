"""ld3: learn the few time steps at which your diffusion or flow model should be sampled.

Names load when they are first used, so that importing the package, and `ld3 --help`, is instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ld3.compare import CompareSpec as CompareSpec
    from ld3.compare import run_compare as run_compare
    from ld3.errors import Ld3Error as Ld3Error
    from ld3.families import run_family as run_family
    from ld3.grids import Knots as Knots
    from ld3.grids import TimeGrid as TimeGrid
    from ld3.grids import knots as knots
    from ld3.models import FunctionModel as FunctionModel
    from ld3.models import Model as Model
    from ld3.models import bind as bind
    from ld3.models import bind_network as bind_network
    from ld3.model_checks import check_model as check_model
    from ld3.models import count_calls as count_calls
    from ld3.models import prior as prior
    from ld3.plan import Plan as Plan
    from ld3.runs import run_learn as run_learn
    from ld3.runs import run_sample as run_sample
    from ld3.runs import run_score as run_score
    from ld3.sampling import integrate as integrate
    from ld3.sampling import trajectory as trajectory
    from ld3.schedules import EDM as EDM
    from ld3.schedules import Discrete as Discrete
    from ld3.schedules import Flow as Flow
    from ld3.schedules import Schedule as Schedule
    from ld3.schedules import VPCosine as VPCosine
    from ld3.schedules import VPLinear as VPLinear
    from ld3.schedules import make_schedule as make_schedule
    from ld3.searches import METHODS as METHODS
    from ld3.searches import make_grid as make_grid
    from ld3.seeds import noise as noise
    from ld3.solvers import SOLVERS as SOLVERS
    from ld3.solvers import Solver as Solver
    from ld3.solvers import make_solver as make_solver
    from ld3.spec import RunSpec as RunSpec
    from ld3.table import Table as Table
    from ld3.table import compile_table as compile_table

__version__ = "0.1.0"

_HOME = {
    name: module
    for module, names in {
        "compare": ("CompareSpec", "run_compare"),
        "searches": ("METHODS", "make_grid"),
        "errors": ("Ld3Error",),
        "families": ("run_family",),
        "grids": ("Knots", "TimeGrid", "knots"),
        "sampling": ("integrate", "trajectory"),
        "models": (
            "FunctionModel", "Model", "bind", "bind_network", "count_calls", "prior",
        ),
        "model_checks": ("check_model",),
        "plan": ("Plan",),
        "runs": ("run_learn", "run_sample", "run_score"),
        "seeds": ("noise",),
        "spec": ("RunSpec",),
        "schedules": (
            "EDM", "Discrete", "Flow", "Schedule", "VPCosine", "VPLinear", "make_schedule",
        ),
        "solvers": ("SOLVERS", "Solver", "make_solver"),
        "table": ("Table", "compile_table"),
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
