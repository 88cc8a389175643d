"""The solvers, by name. A new one is a file of its own and a line here."""

from ld3.errors import SpecError, unknown
from ld3.solvers.base import Denoise, History, Solver
from ld3.solvers.deis import DEIS
from ld3.solvers.dpm_single import DPMSingle
from ld3.solvers.dpmpp import DPMpp
from ld3.solvers.euler import Euler
from ld3.solvers.euler_log import EulerLog
from ld3.solvers.heun import Heun
from ld3.solvers.ipndm import IPNDM
from ld3.solvers.unipc import UniPC

_KINDS: tuple[type[Solver], ...] = (Euler, Heun, DPMpp, DPMSingle, IPNDM, UniPC, DEIS, EulerLog)
SOLVERS = {kind.name: kind for kind in _KINDS}

__all__ = ["SOLVERS", "Denoise", "History", "Solver", "make_solver"]


def make_solver(name: str, order: int | None = None, variant: str | None = None) -> Solver:
    """The solver of that name; order and variant default to the method's own."""
    if name not in SOLVERS:
        raise unknown("solver", name, SOLVERS)
    kind = SOLVERS[name]
    if order is not None and order not in kind.orders:
        raise SpecError(f"solver {name}: got order {order}, expected one of {list(kind.orders)}")
    if variant is not None and variant not in kind.variants:
        named = [known for known in kind.variants if known]  # "" is the method without a variant
        wanted = f"one of {named}" if named else "none: it has no variants"
        raise SpecError(f"solver {name}: got variant {variant!r}, expected {wanted}")
    return kind(order=order or kind.order, variant=variant or kind.variant)
