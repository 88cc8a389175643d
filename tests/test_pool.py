"""Workers fill the cache ahead, and end with their parent."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ld3.errors import SpecError
from ld3.runs.pool import work_ahead

Item = tuple[str, int]


def write(item: Item) -> None:
    folder, number = item
    if number == 2:
        raise SpecError("the reader says this")
    (Path(folder) / f"{number}").write_text(f"{os.getpid()}")


def die(item: Item) -> None:
    if item[1] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    write(item)


def name_of(item: Item) -> str:
    return f"item {item[1]}"


def test_all_items_are_worked_on_by_several_processes(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    items = [(str(tmp_path), n) for n in range(5)]
    work_ahead(2, write, items, name_of, lambda *told: seen.append(told))
    assert sorted(int(file.name) for file in tmp_path.iterdir()) == [0, 1, 3, 4]
    assert str(os.getpid()) not in {file.read_text() for file in tmp_path.iterdir()}
    assert [done for _, done, _ in seen] == [1, 2, 3, 4, 5]
    assert {what for what, _, _ in seen} == {f"item {n}" for n in range(5)}


def test_a_worker_that_dies_is_no_end(tmp_path: Path) -> None:
    """The reader gets control back, no worker is left, and what was lost is not claimed as done."""
    seen: list[str] = []
    items = [(str(tmp_path), n) for n in range(4)]
    work_ahead(2, die, items, name_of, lambda what, done, total: seen.append(what))
    assert multiprocessing.active_children() == []
    assert not (tmp_path / "1").exists() and "item 1" not in seen


def test_processes_of_others_live_on(tmp_path: Path) -> None:
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    other.start()
    work_ahead(1, write, [(str(tmp_path), 0)], name_of, lambda *told: None)
    assert other.is_alive()
    other.terminate()
    other.join()


PARENT = """
import os, sys, time
sys.path[:0] = [{tests!r}]
import test_pool
from ld3.runs.pool import work_ahead

if __name__ == "__main__":
    items = [({folder!r}, n) for n in range(2)]
    work_ahead(2, test_pool.beat, items, test_pool.name_of, lambda *told: None)
"""


def beat(item: Item) -> None:
    """Lives for a minute and says so."""
    for _ in range(600):
        (Path(item[0]) / f"{os.getpid()}").touch()
        time.sleep(0.1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "parent.py"
    pulse = tmp_path / "pulse"
    pulse.mkdir()
    script.write_text(PARENT.format(tests=str(Path(__file__).parent), folder=str(pulse)))
    parent = subprocess.Popen(
        [sys.executable, str(script)], stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(list(pulse.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(list(pulse.iterdir())) == 2
    parent.send_signal(how)
    parent.wait(30)
    last, deadline = 0.0, time.monotonic() + 20
    while time.time() - last < 0.8 and time.monotonic() < deadline:
        time.sleep(1.0)
        last = max(file.stat().st_mtime for file in pulse.iterdir())
    assert time.time() - last >= 0.8, "a worker lives on"
