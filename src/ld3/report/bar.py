"""A progress bar whose text changes as the work goes on."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ld3.errors import one_line

Report = Callable[[str, int, int], None]


class Bar:
    """One bar on the standard error stream, if that is a terminal and it is to be shown."""

    def __init__(self, shown: bool = True) -> None:
        self._hidden = None if shown else True

    def __enter__(self) -> "Bar":
        from tqdm import tqdm

        self._bar = tqdm(
            total=1, disable=self._hidden, leave=False, file=sys.stderr, dynamic_ncols=True
        )
        self._what = ""
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        kind = what.split(" ")[0]
        if kind != self._what:
            self._what = kind
            self._bar.reset(total)
        self._bar.total = total
        self._bar.set_description_str(one_line(what), refresh=False)
        self._bar.n = done
        self._bar.refresh()

    def clear(self) -> None:
        self._bar.clear()


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
