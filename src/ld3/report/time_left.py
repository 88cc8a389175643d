"""How long a run will still take: network evaluations to come, times the seconds of one."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

SURE = 0.05  # share of a part after which its own speed counts


@dataclass(frozen=True)
class Part:
    """Work that a run will report under `name`, in network evaluations on one sample; a backward
    pass counts as two."""

    name: str
    evaluations: float


class TimeLeft:
    """Follows what a run reports and how often its network is evaluated.

    Parts come in the order in which they are expected. A part that never reports was in the cache
    and costs nothing; work that nobody expected is extrapolated by itself.
    """

    def __init__(
        self, parts: Iterable[Part] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._later = list(parts)
        self._past: set[str] = set()  # names of parts that were expected and have begun
        self._now = Part("", 0.0)
        self._share = self._first = 0.0  # of the present part: done, and when it first reported
        self._begun = self._run = clock()
        self._evaluations = self._since = 0.0  # in all; since the last report

    def report(self, what: str, done: int, total: int) -> bool:
        """So much of a part is done; whether that is news, and not a part that is read again."""
        share = min(1.0, done / max(total, 1))
        if not self._now.name or not what.startswith(self._now.name) or share < self._share:
            expected = any(what.startswith(part.name) for part in self._later)
            if not expected and any(what.startswith(name) for name in self._past):
                return False
            self._go_to(what, share)
        self._share, self._since = share, 0.0
        return True

    def evaluated(self, count: float) -> None:
        """The network was evaluated on so many samples."""
        if self._now.name:
            self._evaluations += count
            self._since += count

    def _go_to(self, what: str, share: float) -> None:
        found = [n for n, part in enumerate(self._later) if what.startswith(part.name)]
        if not self._now.name:
            self._run = self._clock()  # loading a model is not counted
        self._now = self._later[found[0]] if found else Part(what.split(" ")[0], 0.0)
        if found:
            self._past.add(self._now.name)
            self._later = self._later[found[0] + 1 :]
        self._begun, self._first = self._clock(), share

    @property
    def share(self) -> float:
        """Of the present part, with the evaluations since its last report."""
        cost = self._now.evaluations
        return min(1.0, self._share + (self._since / cost if cost else 0.0))

    @property
    def seconds(self) -> float | None:
        """To the end of the run; None if too little was measured."""
        now, share, part = self._clock(), self.share, self._now
        each = (now - self._run) / self._evaluations if self._evaluations else None
        gained, here = share - self._first, None
        if gained > 0 and (gained >= SURE or each is None or not part.evaluations):
            here = (1 - share) * (now - self._begun) / gained
        elif each is not None and part.evaluations:
            here = (1 - share) * part.evaluations * each
        later = sum(one.evaluations for one in self._later)
        if here is None or (later and each is None):
            return None
        return here + (later * each if each is not None else 0.0)


def duration(seconds: float) -> str:
    """5 s, 40 s, 3 min, 1 h 20 min."""
    if seconds < 50:
        return f"{max(1, round(seconds)) if seconds < 10 else 10 * round(seconds / 10)} s"
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
