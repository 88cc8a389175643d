"""What long work reports while it goes on."""

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def silent(what: str, done: int, total: int) -> None:
    """Reports nothing."""


def counted(report: Report, what: str, total: int) -> Callable[[int], None]:
    """A callback that takes how many more are done and reports the sum."""
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
