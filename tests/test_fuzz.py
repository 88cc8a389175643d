"""Mutated input is answered or refused in one line; `make fuzz` runs many more cases."""

import importlib
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fuzzing import SHARES, TRAP, Outcome, run_case

CASES = 400


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4))
def test_mutated_input_is_answered_or_refused(part: int, tmp_path: Path) -> None:
    first = part * CASES // 4
    ends = {case: run_case(case, tmp_path / "case") for case in range(first, first + CASES // 4)}
    assert not {case: end for case, end in ends.items() if not end.good}
    assert {end.kind for end in ends.values()} >= {"plan", "comparison", "options", "checkpoint"}
    assert {end.end for end in ends.values()} == {"answered", "refused"}


@pytest.mark.filterwarnings("ignore")
def test_a_good_share_of_pipelines_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else these cases would only try how configs are read."""
    monkeypatch.setattr("tests.fuzzing.SHARES", {"pipeline": 1})
    ends = [run_case(case, tmp_path / "case") for case in range(12)]
    assert all(end.good for end in ends), ends
    assert 3 <= sum(end.end == "answered" for end in ends) <= 9


def test_failures_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that lets an exception through, prints an escape sequence or never ends."""

    def crash(words: list[str]) -> None:
        raise ZeroDivisionError

    def noise(words: list[str]) -> None:
        print("\x1b]0;title\x07")
        raise SystemExit(0)

    def hang(words: list[str]) -> None:
        while True:
            with suppress(Exception):
                sum(range(1000))

    def wait(words: list[str]) -> None:
        time.sleep(100)

    def trapped(words: list[str]) -> None:
        importlib.import_module(TRAP)
        raise SystemExit(0)

    monkeypatch.setattr("tests.fuzzing.LIMIT", 1)
    monkeypatch.setattr("tests.fuzzing.WAIT", 5)
    acts = (
        (crash, "crashed"),
        (noise, "noisy"),
        (hang, "hung"),
        (wait, "hung"),
        (trapped, "crashed"),
    )
    for act, end in acts:
        monkeypatch.setattr("tests.fuzzing.main", act)
        found = run_case(0, tmp_path / "case")
        assert isinstance(found, Outcome) and found.kind in SHARES
        assert (found.end, found.good) == (end, False)
