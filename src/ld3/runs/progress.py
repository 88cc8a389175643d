"""Reports of progress."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ld3.report.bar import Bar
from ld3.report.time_left import Part

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def silent(what: str, done: int, total: int) -> None:
    """Reports nothing."""


def expect(report: Report, parts: Iterable[Part]) -> None:
    """Give a bar the parts of the whole run, for the time left; other functions ignore it."""
    if isinstance(report, Bar):
        report.expect(parts)


def counted(report: Report, what: str, total: int) -> Callable[[int], None]:
    """A callback that takes how many more are done and reports the sum; at first 0."""
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        report(what, done, total)

    return more


def uncounted(count: int) -> None:
    """Counts nothing."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with a line on what was saved."""


@contextmanager
def resumable(saved: str) -> Iterator[None]:
    """Ctrl-C inside ends with the line `saved`, unless it is empty."""
    try:
        yield
    except KeyboardInterrupt:
        if not saved:
            raise
        raise Interrupted(f"{saved}; the same command goes on from there") from None
