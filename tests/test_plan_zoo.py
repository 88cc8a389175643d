"""A folder of plans with an index: listed, fetched, checked; offline where there is a copy."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ld3.cli import main
from ld3.errors import Ld3Error, SpecError, StoreError
from ld3.export.plan_zoo import INDEX, Zoo, index_zoo
from ld3.export.zoo_files import ZooFiles
from ld3.plan import Plan
from ld3.scores import Scores
from plans import make_plan


def scored(plan: Plan) -> Plan:
    values = {"learned": 0.01, "edm": 0.04, "logsnr": 0.03, "uniform": 0.9}
    scores = {
        name: Scores(distance=v, to_teacher=0.0, to_accurate=0.0) for name, v in values.items()
    }
    return plan.model_copy(update={"scores": scores})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two plans, one with an image and a report; and JSON files that are no plans."""
    zoo = tmp_path / "zoo"
    scored(make_plan(name="owner/SD 1.5")).save(zoo / "sd15" / "plan.json")
    (zoo / "sd15" / "samples.png").write_bytes(b"png")
    (zoo / "sd15" / "report.html").write_text("report")
    make_plan("flow", "euler", prediction="flow", steps=4).save(zoo / "flow" / "four.json")
    (zoo / "sd15" / "result.json").write_text('{"format": "ld3-result"}')
    (zoo / "notes.json").write_text("[1, 2")
    index_zoo(zoo, "My [plans](x)")
    return zoo


def ld3_says(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def test_the_index(folder: Path) -> None:
    zoo = Zoo.open(str(folder))
    flow, sd = zoo.index.plans
    assert (flow.name, flow.file, flow.nfe) == ("flow-four", "flow/four.json", [4])
    assert (sd.name, sd.model, sd.solver) == ("sd15", "owner/SD 1.5", "dpmpp-3")
    assert sd.scores == {"learned": 0.01, "logsnr": 0.03, "edm": 0.04}  # best first
    assert (sd.report, sd.image) == ("sd15/report.html", "sd15/samples.png")
    assert zoo.plan(sd)[0] == Plan.load(folder / "sd15" / "plan.json")
    assert [fault for _, fault in zoo.faults()] == ["", ""]
    again = (folder / INDEX).read_bytes()
    index_zoo(folder)
    assert (folder / INDEX).read_bytes() == again


def test_the_card(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    for said in (
        "# My plans x",
        "pip install 'ld3[diffusers]'",
        "LD3Scheduler.from_config(pipe.scheduler.config, plans=[plan])",
        'plan = Plan.load("sd15.json")',  # as `ld3 zoo get` calls it
        "from diffusers import FlowMatchEulerDiscreteScheduler",  # the list for stock schedulers
        "![samples of sd15](sd15/samples.png)",
        "| sd15 | owner SD 1.5 | 5 | 1 | dpmpp-3 | 0.0100 | logsnr 0.0300 | [report](sd15/rep",
        "| flow-four | toy | 4 | 1 | euler-1 | none | none |  |",
    ):
        assert said in card, said


def test_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ld3_says(capsys, "zoo", "list", folder)
    assert code == 0 and "sd15" in out and "learned 0.0100" in out
    code, out, _ = ld3_says(capsys, "zoo", "list", folder, "--json")
    assert [entry["name"] for entry in json.loads(out)] == ["flow-four", "sd15"]
    got = tmp_path / "got.json"
    code, out, _ = ld3_says(capsys, "zoo", "get", folder, "sd15", "--out", got)
    assert code == 0 and got.read_bytes() == (folder / "sd15" / "plan.json").read_bytes()
    code, out, _ = ld3_says(capsys, "zoo", "check", folder)
    assert code == 0 and out.count("fine ") == 2
    code, out, _ = ld3_says(capsys, "zoo", "index", folder)
    assert code == 0 and "2 plans" in out
    code, out, err = ld3_says(capsys, "zoo", "get", folder, "sd5")
    assert code == 2 and "did you mean 'sd15'" in err
    code, out, err = ld3_says(capsys, "zoo", "list", tmp_path / "nowhere")
    assert code == 2 and "expected a folder or an https address" in err


def test_what_is_wrong_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed plan, an index that says otherwise, a plan that is gone."""
    path = folder / "sd15" / "plan.json"
    kept = path.read_bytes()
    path.write_bytes(kept + b" ")
    with pytest.raises(StoreError, match="its SHA-256 is another"):
        Zoo.open(str(folder)).plan(Zoo.open(str(folder)).entry("sd15"))
    path.write_bytes(kept)
    index = json.loads((folder / INDEX).read_text())
    index["plans"][1] |= {"guidance": "9", "solver": "euler-1"}
    (folder / INDEX).write_text(json.dumps(index))
    (folder / "flow" / "four.json").unlink()
    code, out, err = ld3_says(capsys, "zoo", "check", folder)
    assert code == 2 and "2 of 2 plans are wrong" in err
    assert "the index says otherwise of solver, guidance" in out and "cannot read" in out


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../plan.json"},
        {"file": "/etc/passwd"},
        {"file": "a\\b"},
        {"file": "https://x/y"},
        {"file": ".hidden/plan.json"},
        {"sha256": "x"},
        {"nfe": []},
        {"surprise": 1},
    ],
)
def test_hostile_indexes(folder: Path, change: dict[str, Any]) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["plans"] = [index["plans"][1] | change]
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(Ld3Error, match=r"index\.json|plain names"):
        list(_plans(folder))


def _plans(folder: Path) -> Iterator[Plan]:
    zoo = Zoo.open(str(folder))
    yield from (zoo.plan(entry)[0] for entry in zoo.index.plans)


def test_folders_that_are_no_zoo(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="got no plan below"):
        index_zoo(tmp_path)
    with pytest.raises(StoreError, match=r"index\.json"):
        Zoo.open(str(tmp_path))
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(StoreError, match="`ld3 zoo index` makes it anew"):
        Zoo.open(str(tmp_path))
    (tmp_path / "plan.json").write_text('{"format": "ld3-plan-1"}')
    with pytest.raises(Ld3Error, match=r"plan\.json"):  # a broken plan is not passed over
        index_zoo(tmp_path)
    make_plan().save(tmp_path / "a" / "plan.json")
    make_plan().save(tmp_path / "a.json")
    (tmp_path / "plan.json").unlink()
    with pytest.raises(SpecError, match="two plans called"):
        index_zoo(tmp_path)
    for address in ("http://example.org/zoo", "ftp://example.org"):
        with pytest.raises(SpecError, match="expected"):
            ZooFiles.at(address)


class Quiet(SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def log_message(self, *words: Any) -> None:
        self.asked.append(self.path)


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    Quiet.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_address(address: str, folder: Path, tmp_path: Path) -> None:
    """Plans are asked for once; without a connection the copies serve, and a line says so."""
    copies = tmp_path / "copies"
    for _ in range(2):
        zoo = Zoo.open(address, copies)
        assert zoo.plan(zoo.entry("sd15"))[0] == Plan.load(folder / "sd15" / "plan.json")
        assert not zoo.note
    assert sum("plan.json" in path for path in Quiet.asked) == 1
    assert [fault for _, fault in zoo.faults()] == ["", ""]
    with pytest.raises(StoreError, match="cannot read"):
        zoo.files.read("nothing.json")
    gone = ZooFiles(zoo.files.folder, "http://127.0.0.1:9")  # nothing listens there
    content, note = gone.read(INDEX)
    assert json.loads(content)["format"] == "ld3-zoo-1" and "no connection" in note
    entry = zoo.entry("sd15")
    assert gone.read(entry.file, entry.sha256)[0] == (folder / entry.file).read_bytes()
    with pytest.raises(StoreError, match="cannot read"):
        gone.read(entry.file, "0" * 64)  # a copy of something else does not serve
