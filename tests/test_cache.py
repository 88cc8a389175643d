"""What is stored proves itself: damaged files, files of others and numbers that are not finite."""

import json
import math
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ld3.runs.cache import CHUNK, Cache
from ld3.store import (
    read_proved_json,
    read_proved_tensors,
    write_proved_json,
    write_proved_tensors,
)

KEY = {"model": "a", "steps": 5}


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    """Every byte of both kinds of file: read as it was written, or not at all."""
    numbers, tensors = {"x": [0.1, 2.0]}, {"x": torch.tensor([0.1, 2.0])}
    write_proved_json(tmp_path / "a.json", KEY, numbers)
    write_proved_tensors(tmp_path / "a.safetensors", KEY, tensors)
    for file in (tmp_path / "a.json", tmp_path / "a.safetensors"):
        noticed = 0
        size = file.stat().st_size
        for place in range(size):
            flip(file, place)
            if file.suffix == ".json":
                found = read_proved_json(file, KEY)
                assert found is None or found == numbers
            else:
                read = read_proved_tensors(file, KEY)
                assert read is None or torch.equal(read["x"], tensors["x"])
                found = read
            noticed += found is None
            flip(file, place)
        assert noticed > 0.6 * size  # the others are white space, or names that do not matter
    assert read_proved_json(tmp_path / "a.json", KEY) == numbers


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"sha256": 1}', b"null"])
def test_what_is_no_proved_file_is_none(tmp_path: Path, content: bytes) -> None:
    for name, read in (("a.json", read_proved_json), ("a.safetensors", read_proved_tensors)):
        (tmp_path / name).write_bytes(content)
        assert read(tmp_path / name, KEY) is None
        assert read(tmp_path / "none", KEY) is None


def test_a_file_of_another_key_does_not_count(tmp_path: Path) -> None:
    write_proved_json(tmp_path / "a.json", KEY, 1)
    write_proved_tensors(tmp_path / "a.safetensors", KEY, {"x": torch.ones(2)})
    assert read_proved_json(tmp_path / "a.json", KEY | {"steps": 6}) is None
    assert read_proved_tensors(tmp_path / "a.safetensors", KEY | {"steps": 6}) is None
    save_file({"x": torch.ones(2)}, tmp_path / "b.safetensors")  # without a proof
    assert read_proved_tensors(tmp_path / "b.safetensors", KEY) is None


def test_made_once_and_again_when_damaged(tmp_path: Path) -> None:
    cache, made = Cache(tmp_path), []

    def make() -> dict[str, float]:
        made.append(1)
        return {"x": 0.5}

    for _ in range(3):
        assert cache.json("scores", KEY, make) == {"x": 0.5}
    assert len(made) == 1
    (file,) = tmp_path.glob("scores/*.json")
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"content": {"x": 0.25}}))  # a value, but not its proof
    assert cache.json("scores", KEY, make) == {"x": 0.5}
    assert len(made) == 2
    cache.json("scores", KEY | {"steps": 6}, make)
    assert len(made) == 3


@pytest.mark.parametrize("stored", [True, False])
def test_tensors_are_made_once_or_each_time_without_a_folder(tmp_path: Path, stored: bool) -> None:
    cache, made = Cache(tmp_path if stored else None), []

    def make() -> dict[str, torch.Tensor]:
        made.append(1)
        return {"x": torch.tensor([0.1, 2.0])}

    def rows(seeds: Sequence[int]) -> torch.Tensor:
        made.append(1)
        return torch.ones(len(seeds), 2)

    for _ in range(3):
        assert torch.equal(cache.tensors("features", KEY, make)["x"], torch.tensor([0.1, 2.0]))
        assert cache.json("scores", KEY, lambda: len(made) > 0)
        assert torch.equal(cache.rows("pairs", KEY, range(2), rows), torch.ones(2, 2))
    assert len(made) == (2 if stored else 6)
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == (3 if stored else 0)


def test_old_files_do_not_count_when_everything_is_made_again(tmp_path: Path) -> None:
    assert Cache(tmp_path).json("scores", KEY, lambda: 1) == 1
    time.sleep(0.02)
    fresh = Cache(tmp_path, since=time.time())
    time.sleep(0.02)
    assert fresh.json("scores", KEY, lambda: 2) == 2
    assert fresh.json("scores", KEY, lambda: 3) == 2  # what it made itself counts
    assert Cache(tmp_path).json("scores", KEY, lambda: 4) == 2


def test_old_files_in_a_folder_of_its_own_are_removed(tmp_path: Path) -> None:
    folder = Cache(tmp_path).own_folder("learned", KEY)
    assert folder is not None and folder.parent == tmp_path / "learned"
    folder.mkdir(parents=True)
    for name in ("old", "new"):
        (folder / name).write_text("")
    os.utime(folder / "old", (1000, 1000))
    assert Cache(tmp_path, since=2000.0).own_folder("learned", KEY) == folder
    assert [file.name for file in folder.iterdir()] == ["new"]
    assert Cache(tmp_path).own_folder("learned", KEY | {"steps": 6}) != folder
    assert Cache(None).own_folder("learned", KEY) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nothing_that_is_not_finite_is_stored(tmp_path: Path, bad: float) -> None:
    cache = Cache(tmp_path)
    cache.json("scores", KEY, lambda: {"a": [1.0, {"b": bad}]})
    cache.tensors("features", KEY, lambda: {"x": torch.tensor([1.0, bad])})
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
    assert cache.json("scores", KEY, lambda: 1.0) == 1.0


def test_rows_are_made_for_missing_chunks_only(tmp_path: Path) -> None:
    cache, asked = Cache(tmp_path), []

    def make(seeds: list[int]) -> torch.Tensor:
        asked.append(list(seeds))
        return torch.tensor([[float(seed)] for seed in seeds])

    first = cache.rows("pairs", KEY, range(8), make)
    assert first.flatten().tolist() == list(range(8))
    assert asked == [list(range(8))]  # eight were asked for, not a chunk
    some = cache.rows("pairs", KEY, [40, 3, 3, 7], make)
    assert some.flatten().tolist() == [40, 3, 3, 7] and asked[1:] == [[3, 7], [40]]
    more = cache.rows("pairs", KEY, range(2 * CHUNK), make)
    assert more.flatten().tolist() == list(range(2 * CHUNK))
    cache.rows("pairs", KEY, range(2 * CHUNK + 2), make)
    assert asked[5:] == [[2 * CHUNK, 2 * CHUNK + 1]]
    for file in tmp_path.rglob("*.safetensors"):
        flip(file, file.stat().st_size - 3)
    again = cache.rows("pairs", KEY, range(8), make)
    assert torch.equal(again, first) and asked[6:] == [list(range(8))]


def test_rows_do_not_depend_on_what_was_asked_for_before(tmp_path: Path) -> None:
    """A network gives the same row with other last bits in another batch."""

    def make(seeds: list[int]) -> torch.Tensor:
        return torch.full((len(seeds), 1), float(len(seeds)))

    clean = Cache(tmp_path / "clean").rows("pairs", KEY, range(8), make)
    used = Cache(tmp_path / "used")
    for count in (4, 20, 8):
        rows = used.rows("pairs", KEY, range(count), make)
    assert torch.equal(rows, clean)


def _fill(folder: Path, number: int) -> None:
    cache = Cache(folder)
    for n in range(20):
        cache.rows("pairs", KEY, range(n + 1), lambda seeds: torch.ones(len(seeds), 3))
        cache.json("scores", KEY | {"n": n}, lambda n=n: {"n": n})
        cache.sweep()


def test_three_processes_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_fill, args=(tmp_path, n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]

    def never(*_: object) -> torch.Tensor:
        raise AssertionError("made again")

    cache = Cache(tmp_path)
    assert cache.rows("pairs", KEY, range(20), never).sum() == 60
    assert [cache.json("scores", KEY | {"n": n}, never)["n"] for n in range(20)] == list(range(20))
