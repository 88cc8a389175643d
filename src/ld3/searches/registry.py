"""One door for every way to choose the times: hand-made, published, searched for and learned.

All methods are given the same problem (model, solver, number of steps, the same pairs) and give
back a tuned solver with what it cost to find. So a comparison is fair by construction.
"""

from ld3.errors import unknown
from ld3.learner.learned import LD3
from ld3.problem import Problem
from ld3.searches import METHODS, make_method
from ld3.searches.ays import AYS
from ld3.searches.ddss import DDSS
from ld3.searches.dmn import DMN
from ld3.searches.gits import GITS
from ld3.searches.oss import OSS
from ld3.searches.protocol import Discretizer, Found, Need, Tell
from ld3.table import Tuned

__all__ = ["SEARCHES", "Discretizer", "Found", "Need", "Tell", "find"]

SEARCHES: dict[str, Discretizer] = {
    "dmn": DMN(),
    "gits": GITS(),
    "ays": AYS(),
    "ays-kl": AYS(weight="kl"),
    "oss": OSS(),
    "ddss": DDSS(),
    "ddss-ggdm": DDSS(coefficients=True),
    "ld3-paper": LD3("paper"),
    "ld3-times": LD3("times"),
    "ld3": LD3("standard"),
}


def find(
    name: str, problem: Problem, seed: int = 0, tell: Tell = lambda done, total: None
) -> Found:
    """What the method of that name makes of a problem."""
    if name in SEARCHES:
        return SEARCHES[name](problem, seed, tell)
    if name not in METHODS and not name.startswith("bump:"):
        raise unknown("method", name, [*METHODS, *SEARCHES, "bump:CENTRE:WIDTH"])
    return Found(Tuned(make_method(name)(problem.model.schedule, problem.steps)))
