"""Files are written whole or not at all, and read with suspicion."""

import json
import os
import stat
import time
from pathlib import Path

import pytest
import torch

from ld3 import store
from ld3.errors import StoreError


def test_round_trips(tmp_path: Path) -> None:
    numbers = {"a": [0.1, 1e-300, 80.0], "b": "é"}
    store.write_json(tmp_path / "deep" / "x.json", numbers)
    assert store.read_json(tmp_path / "deep" / "x.json") == numbers
    tensors = {"x": torch.arange(6.0).view(2, 3).T, "y": torch.tensor(3)}
    store.write_tensors(tmp_path / "x.safetensors", tensors)
    back = store.read_tensors(tmp_path / "x.safetensors")
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    shared = torch.ones(3)
    store.write_tensors(tmp_path / "y.safetensors", {"a": shared, "b": shared})


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plan.json"
    store.write_json(file, {"old": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device; nothing was changed"):
        store.write_json(file, {"new": 2})
    monkeypatch.undo()
    assert store.read_json(file) == {"old": 1}
    assert list(tmp_path.iterdir()) == [file]  # no half-written leftovers


def test_a_file_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, fsync, move = [], os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        if done[-1] == "file":
            assert os.fstat(handle).st_size == 3  # written, not only buffered
        fsync(handle)

    def moved(source: str, target: Path) -> None:
        done.append("move")
        move(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", moved)
    store.write_bytes(tmp_path / "x", b"abc")
    assert done == ["file", "move", "folder"]


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        store.write_json(tmp_path / "taken" / "x.json", {})


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"nonsense", b"\xff\xfe", b'{"a": NaN}', b'{"a": Infinity}', b"[" * 100_000],
)
def test_bad_json_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(StoreError) as error:
        store.read_json(tmp_path / "x.json")
    assert "\n" not in str(error.value)


def test_missing_and_oversized_files(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        store.read_json(tmp_path / "none.json")
    with open(tmp_path / "big.json", "wb") as file:
        file.truncate(store.MAX_JSON + 1)
    with pytest.raises(StoreError, match="expected at most"):
        store.read_json(tmp_path / "big.json")
    (tmp_path / "full.json").write_bytes(b"{}".ljust(store.MAX_JSON))
    assert store.read_json(tmp_path / "full.json") == {}
    (tmp_path / "bad.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(StoreError, match="not a whole safetensors file"):
        store.read_tensors(tmp_path / "bad.safetensors")


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        store.write_json(tmp_path / "x.json", {"a": float("nan")})


def test_digest_depends_on_content_alone() -> None:
    assert store.digest({"a": 1, "b": [0.1]}) == store.digest(json.loads('{"b": [0.1], "a": 1}'))
    assert store.digest({"a": 1}) != store.digest({"a": 2})


def test_sweep_removes_leftovers(tmp_path: Path) -> None:
    """Those of another process at work stay; what is older than an hour goes."""
    left, at_work = tmp_path / ".x.json.abc.tmp", tmp_path / ".x.json.def.tmp"
    for file in (left, at_work):
        file.write_text("half")
    (tmp_path / "x.json").write_text("{}")
    old = time.time() - store.LEFTOVER - 1
    os.utime(left, (old, old))
    store.sweep(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [at_work.name, "x.json"]


def test_equal_tensors_are_equal_bytes(tmp_path: Path) -> None:
    tensors, written = {"b": torch.zeros(2), "a": torch.ones(3)}, set()
    for n in range(20):
        store.write_proved_tensors(tmp_path / f"{n}", {"key": 1}, tensors)
        written.add((tmp_path / f"{n}").read_bytes())
    assert len(written) == 1


def test_a_folder_that_cannot_be_synced_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is in its place by then, so nothing may claim that it is not."""
    opened = os.open

    def refused(path: object, flags: int, *rest: int) -> int:
        if Path(str(path)).is_dir():
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refused)
    store.write_json(tmp_path / "x.json", {"a": 1})
    assert store.read_json(tmp_path / "x.json") == {"a": 1}
