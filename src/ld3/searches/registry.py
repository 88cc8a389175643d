"""All methods by name: known grids and searches, called with the same problem."""

from ld3.errors import unknown
from ld3.known_grids import METHODS, make_method
from ld3.problem import Problem
from ld3.searches.ays import AYS
from ld3.searches.ddss import DDSS
from ld3.searches.dmn import DMN
from ld3.searches.gits import GITS
from ld3.searches.gs import GS
from ld3.searches.oss import OSS
from ld3.searches.protocol import Found, Need, Report, Search, silent
from ld3.table import TunedSolver

__all__ = ["SEARCHES", "Found", "Need", "Report", "Search", "find"]

SEARCHES: dict[str, Search] = {
    "dmn": DMN(),
    "gits": GITS(),
    "gits-tuned": GITS(coefficient=None),
    "ays": AYS(),
    "ays-kl": AYS(weight="kl"),
    "ays-early": AYS(weight="kl", start="edm", early=True),
    "oss": OSS(),
    "ddss": DDSS(),
    "ddss-ggdm": DDSS(coefficients=True),
    "gs": GS(),
}


def find(name: str, problem: Problem, seed: int = 0, progress: Report = silent) -> Found:
    """The tuned solver that the method of that name gives for a problem."""
    if name in SEARCHES:
        return SEARCHES[name](problem, seed, progress)
    if name not in METHODS and not name.startswith("bump:"):
        raise unknown("method", name, [*METHODS, *SEARCHES, "bump:CENTRE:WIDTH"])
    grid = make_method(name)(problem.model.schedule, problem.steps)
    return Found(TunedSolver(problem.solver, grid))
