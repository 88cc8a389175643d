"""Errors a user can act on.

Every message is one line that says what was got, what was wanted and how to fix it. The command
line prints it without a traceback and exits with code 2.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class Ld3Error(Exception):
    """Anything a user can mend: bad input, a broken file, a model that does not fit."""


class SpecError(Ld3Error):
    """A setting, name or number that cannot be used."""


class PlanError(Ld3Error):
    """A time grid or plan that is malformed or does not fit the model."""


class ModelError(Ld3Error):
    """A network that does not keep the contract of :class:`ld3.Model`, or its weights."""


class StoreError(Ld3Error):
    """A file that cannot be read or written."""


class ExportError(Ld3Error):
    """An exported plan that does not do, in the tool at hand, what it was learned to do."""


class EndedElsewhere(Ld3Error):
    """Another rank has said why all of them end."""


def unknown(kind: str, got: str, known: Iterable[str]) -> SpecError:
    """The error for a name that is not in a registry, with the nearest known one."""
    names = sorted(known)
    near = get_close_matches(got, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return SpecError(f"unknown {kind} {got!r}: {hint}known: {', '.join(names)}")
