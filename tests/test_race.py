"""Several starts race: those that fall behind are dropped, and a stopped race goes on."""

from pathlib import Path

import pytest

from ld3.learner.learn import Progress
from ld3.runs import descent
from ld3.runs.descent import race_length
from ld3.runs.learn import run_learn
from ld3.runs.spec import RunSpec
from ld3.zoo.toy import mixture

SPEC = {
    "model": "own", "preset": "best", "nfe": (3,), "pairs": 16, "held_out": 4, "distance": "l2",
    "teacher_steps": 8, "recipe": {"epochs": 12, "validate_every": 1},
}  # fmt: skip
TOTAL = 24  # 12 epochs of two batches


def learned(folder: Path, stop_after: int | None = None) -> bytes:
    """The plan, after so many iterations of all starts were interrupted once."""

    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("loss"):
            assert total == race_length(4, TOTAL)
            if done == stop_after:
                raise KeyboardInterrupt

    model = mixture([[-1.0, 0.0], [1.0, 0.5]], std=0.2)
    spec = RunSpec(**SPEC, out=folder)  # type: ignore[arg-type]
    if stop_after is not None:
        with pytest.raises(KeyboardInterrupt):
            list(run_learn(spec, stop, model=model))
    (result,) = run_learn(spec, model=model)
    (curves,) = result.folder.glob("progress.jsonl")
    return curves.read_bytes()


def test_the_length_of_a_race() -> None:
    assert race_length(1, 256) == 256
    assert race_length(4, 256) == 4 * 32 + 2 * 96 + 128
    assert race_length(4, TOTAL) == 4 * 3 + 2 * 9 + 12
    assert race_length(3, 1) == 3  # the shortest race: nobody can be dropped before its end


def test_a_race_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Stopped before, at and after each decision."""
    whole = learned(tmp_path / "whole")
    for after in (0, 2, 11, 12, 13, 21, 30, 31, 40):
        assert learned(tmp_path / str(after), after) == whole, after


def test_a_lost_state_is_made_again(tmp_path: Path) -> None:
    """The race comes out the same, although others are ahead by now."""
    whole = learned(tmp_path)
    (folder,) = (path.parent for path in tmp_path.glob("*/plan.json"))
    for state in sorted(folder.glob("state-*")):
        state.unlink()
        (folder / "result.json").unlink()
        assert learned(tmp_path) == whole
    assert len(list(folder.glob("state-*"))) == 4


def test_no_line_is_lost_when_a_run_is_killed_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learned(tmp_path / "whole")
    add, calls = descent._Log.add, list[int]()

    def killed(log: descent._Log, start: str, progress: Progress) -> None:
        calls.append(progress.iteration)
        if len(calls) == 5:
            raise SystemExit
        add(log, start, progress)

    model, spec = mixture([[-1.0, 0.0], [1.0, 0.5]], std=0.2), RunSpec(**SPEC, out=tmp_path / "a")  # type: ignore[arg-type]
    monkeypatch.setattr(descent._Log, "add", killed)
    with pytest.raises(SystemExit):
        list(run_learn(spec, model=model))
    assert len(calls) == 5
    assert learned(tmp_path / "a") == whole
