"""Progress on the standard error stream: one line that changes on a terminal; elsewhere, such as in
a file, a plain line now and then."""

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from ld3.errors import one_line
from ld3.models import on_evaluation
from ld3.report.time_left import Part, TimeLeft, duration

Report = Callable[[str, int, int], None]
REFRESH = 0.1  # seconds between changes of the line on a terminal
FIRST_LINE = 30.0  # seconds before the first plain line; then twice as long each time
LAST_WAIT = 1800.0  # longest wait between plain lines
WIDTH = 10  # of the bar


class Bar:
    """What is done, how much of it, and how long the whole run will still take."""

    def __init__(self, shown: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown, self._clock = shown, clock
        self._left = TimeLeft(clock=clock)
        self._what, self._done, self._total = "", 0, 0
        self._drawn = ""
        self._last, self._wait = clock(), FIRST_LINE
        self._stack = ExitStack()

    def __enter__(self) -> "Bar":
        if self._shown:
            self._stack.enter_context(on_evaluation(self.evaluated))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.clear()

    def expect(self, parts: Iterable[Part]) -> None:
        """What the whole run will do."""
        self._left = TimeLeft(parts, self._clock)

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._left.report(what, done, total):
            self._what, self._done, self._total = one_line(what), done, total
            self._show(again=done >= total)

    def evaluated(self, count: float) -> None:
        """Between reports of large models, samples count."""
        self._left.evaluated(count)
        self._show()

    def clear(self) -> None:
        """Before other lines are printed."""
        if self._drawn:
            sys.stderr.write("\r" + " " * len(self._drawn) + "\r")
            sys.stderr.flush()
            self._drawn = ""
        self._what = ""  # what is evaluated until the next report is not shown

    def _show(self, again: bool = False) -> None:
        if not self._shown or not self._what:
            return
        now, terminal = self._clock(), sys.stderr.isatty()
        if not terminal and now - self._last >= self._wait:
            sys.stderr.write(self._text() + "\n")
            sys.stderr.flush()
            self._last, self._wait = now, min(2 * self._wait, LAST_WAIT)
        if terminal and (again or not self._drawn or now - self._last >= REFRESH):
            self._last = now
            filled = round(WIDTH * self._left.share)
            columns = shutil.get_terminal_size((80, 24)).columns - 1
            line = f"[{'#' * filled}{' ' * (WIDTH - filled)}] {self._text()}"[:columns]
            sys.stderr.write("\r" + line.ljust(len(self._drawn)))
            sys.stderr.flush()
            self._drawn = line

    def _text(self) -> str:
        """Such as `about 3 min left: training pairs, 24 of 128`."""
        share, seconds = self._left.share, self._left.seconds
        done = max(self._done, int(share * self._total + 1e-9))
        left = "" if seconds is None else f"about {duration(seconds)} left: "
        return f"{left}{self._what}, {done} of {self._total}"


@contextmanager
def progress_bar(wanted: bool | Report) -> Iterator[Report]:
    """A bar, a function of one's own, or nothing."""
    if not isinstance(wanted, bool):
        yield wanted
    elif not wanted:
        yield lambda what, done, total: None
    else:
        with Bar() as bar:
            yield bar
