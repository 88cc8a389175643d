"""`ld3 compare`: fair, resumable, plain about what it found."""

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ld3
from ld3 import FunctionModel, compile_table, knots, make_grid, make_solver
from ld3.cli import main
from ld3.comparison import Comparison
from ld3.errors import Ld3Error
from ld3.metrics.bootstrap import Interval
from ld3.models import Model
from ld3.report.comparison import comparison_lines
from ld3.runs.compare.cells import cells_of
from ld3.runs.compare.run import compare_session, run_compare, write_files
from ld3.runs.compare.spec import CompareSpec, groups
from ld3.runs.compare.statistics import featured, within
from ld3.runs.evaluation.chunks import Samples
from ld3.schedules import EDM
from ld3.searches.registry import SEARCHES
from ld3.seeds import seeds_for
from ld3.zoo.toy import mixture
from learners import QUICK, Copy, Fails

TOY = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)
CLOTH = torch.linspace(-0.8, 0.8, 64).sin()
PICTURES = mixture([CLOTH.tolist(), CLOTH.flip(0).mul(0.7).tolist()], 0.15)


def toy() -> Model:
    return FunctionModel(TOY.forward, TOY.schedule, "x0", (2,))


def pictures() -> Model:
    """8x8 pixels."""

    def forward(x: torch.Tensor, t: torch.Tensor, cond: object) -> torch.Tensor:
        return PICTURES.forward(x.flatten(1), t, None).reshape(x.shape)

    return FunctionModel(forward, PICTURES.schedule, "x0", (1, 8, 8))


@pytest.fixture
def methods() -> Iterator[dict[str, object]]:
    """No searches but those a test adds."""
    with mock.patch.dict(SEARCHES, clear=True):
        yield SEARCHES  # type: ignore[misc]


def spec(out: Path, **words: object) -> CompareSpec:
    small = {"pairs": 16, "valid": 8, "held_out": 24, "nfe": (4,), "methods": "edm,logsnr,ld3"}
    return CompareSpec.read({**small, **QUICK, "teacher_steps": 16, "out": out, **words})


def test_a_teacher_that_is_not_accurate_is_said(tmp_path: Path, methods: dict[str, object]) -> None:
    said = {}
    for steps in (6, 16):
        words = spec(tmp_path, methods="edm", nfe="5", solvers="unipc", teacher_steps=steps)
        said[steps] = " ".join(comparison_lines(run_compare(words, model=toy())))
    assert "The teacher is not accurate: its distance to the reference, " in said[6]
    assert "expected at most 10 %. Give --teacher-steps 12, " in said[6]
    assert "teacher is not" not in said[16]


def test_every_method_gets_the_same_pairs_and_noise(
    tmp_path: Path, methods: dict[str, object]
) -> None:
    first, second = Copy(), Copy("cosine")
    methods |= {"first": first, "second": second}
    words = spec(
        tmp_path, methods="edm,first,second,ld3", seeds=2, nfe="3,4", solvers="dpmpp,ipndm:3"
    )
    names = [(c.method, c.solver.name, c.nfe, c.seed) for c in cells_of(words)]
    assert len(names) == len(set(names)) == 2 * 2 * (1 + 3 * 2)  # edm is not random
    found = run_compare(words, model=toy())
    assert first.seen == second.seen
    assert first.seen[0] == tuple(range(16)) and first.seen[1] == tuple(range(10_000, 10_016))
    used = {s for seeds in first.seen for s in seeds}
    used |= set(compare_session(words, model=toy()).validation(8, 1).seeds)
    assert not used & set(seeds_for("held-out", 24))
    assert [(block.solver, block.nfe) for block in found.blocks] == [
        ("dpmpp-3", 3), ("dpmpp-3", 4), ("ipndm-3", 3), ("ipndm-3", 4),
    ]  # fmt: skip
    for block in found.blocks:
        rows = {row.method: row for row in block.rows}
        assert rows["first"].distances == rows["edm"].distances
        assert (rows["edm"].seeds, rows["ld3"].seeds) == (1, 2)
        assert rows["edm"].evaluations == rows["edm"].teacher_evaluations == 0
        assert rows["ld3"].teacher_evaluations == 16 * (16 + 8)
        assert rows["ld3"].evaluations > 0 and rows["ld3"].seconds > 0
        assert rows["ld3"].start != "" and rows["ld3"].slope == "exact"
        assert rows["edm"].start == rows["edm"].slope == ""
        assert block.featured == "ld3" and block.baseline in ("edm", "first", "second")
        assert block.gain == "gain" and "of the distance of the best baseline" in block.verdict
        assert rows["ld3"].ratio is not None and rows["ld3"].ratio.high < 1
        assert rows["ld3"].corrected and len(rows["ld3"].curve) > 2
        assert rows["ld3"].lam == sorted(rows["ld3"].lam)


def test_distances_are_what_they_say(tmp_path: Path, methods: dict[str, object]) -> None:
    words = spec(tmp_path, methods="edm", nfe="5", solvers="unipc", batch=7)
    found = run_compare(words, model=toy())
    model = toy()
    k = ld3.knots(model.schedule, ld3.make_grid("edm", model.schedule, 5))
    seeds = seeds_for("held-out", 24)
    with torch.no_grad():
        table = ld3.compile_table(ld3.make_solver("unipc"), k)
        sample = table.run(ld3.bind_network(model), ld3.prior(model, seeds))
    teacher = ld3.make_pairs(model, seeds, ld3.Teacher(steps=16)).target
    exact = ld3.make_pairs(model, seeds, ld3.Teacher(steps=32)).target
    (row,) = found.blocks[0].rows
    square = (sample - teacher).square().mean(1)
    assert row.distances == pytest.approx(square.tolist(), rel=1e-3)
    assert row.scores["rmse"].value == pytest.approx(float(square.sqrt().mean()), rel=1e-4)
    apart = (sample - exact).square().mean(1)
    assert row.scores["rmse_accurate"].value == pytest.approx(float(apart.sqrt().mean()), rel=1e-4)
    assert row.scores["distance_accurate"].value == pytest.approx(float(apart.mean()), rel=1e-4)
    assert row.worst == pytest.approx(float(square.max()), rel=1e-4)
    assert found.teacher["accurate"]["steps"] == 32
    own = (teacher - exact).square().mean()
    assert found.teacher["error"] == pytest.approx(float(own), rel=1e-3)
    assert "unipc-3, 32 steps on logsnr" in found.metrics[1].label
    assert found.blocks[0].verdict == "There is no learned method to compare with."


def test_cells_are_kept_shared_and_made_again_when_broken(
    tmp_path: Path, methods: dict[str, object]
) -> None:
    search = Copy("cosine")
    methods["copy"] = search

    def learned() -> dict[Path, int]:
        results = (tmp_path / "cache" / "learned").glob("*/result.json")
        return {file: file.stat().st_mtime_ns for file in results}

    names = "edm,logsnr,copy,ld3"
    whole = run_compare(spec(tmp_path, methods=names), model=toy())
    stamps = learned()
    assert len(search.seen) == len(stamps) == 1
    assert run_compare(spec(tmp_path, methods=names), model=toy()) == whole
    more = run_compare(spec(tmp_path, held_out=32, methods="logsnr,copy,ld3"), model=toy())
    assert len(search.seen) == 1 and learned() == stamps  # more noise does not learn again
    old, new = ({r.method: r for r in c.blocks[0].rows}["ld3"] for c in (whole, more))
    assert new.distances[:24] == old.distances
    run_compare(spec(tmp_path, seeds=2, methods=names), model=toy())
    assert len(search.seen) == len(learned()) == 2
    run_compare(spec(tmp_path, pairs=12, methods=names), model=toy())
    assert len(search.seen) == len(learned()) == 3
    for file in tmp_path.glob("cache/*/*"):
        if file.is_file():
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
    for file in stamps:
        file.write_text(file.read_text()[:40])
    again = run_compare(spec(tmp_path, methods=names), model=toy())
    assert len(search.seen) == 4
    assert {r.method: r.distances for r in again.blocks[0].rows} == {
        r.method: r.distances for r in whole.blocks[0].rows
    }
    before = learned()
    run_compare(spec(tmp_path, methods=names), fresh=True, model=toy())
    assert len(search.seen) == 5
    assert sum(learned()[file] != before[file] for file in stamps) == 1


@pytest.mark.parametrize(
    ("grid", "gain", "word"), [("edm", "none", "No gain:"), ("uniform", "worse", "is worse")]
)
def test_no_gain_is_said_plainly(
    tmp_path: Path, methods: dict[str, object], grid: str, gain: str, word: str
) -> None:
    still = {"start": grid, "recipe": {"epochs": 1, "rate": 0.0, "precondition": 2}}
    found = run_compare(spec(tmp_path, methods="edm,ld3", **still), model=toy())
    (block,) = found.blocks
    assert block.gain == gain
    assert word in block.verdict and "edm" in block.verdict
    assert word in "\n".join(comparison_lines(found))


def test_a_method_that_fails_is_told_and_the_rest_goes_on(
    tmp_path: Path, methods: dict[str, object]
) -> None:
    methods["lost"] = Fails()
    found = run_compare(spec(tmp_path, methods="edm,lost,ld3"), model=toy())
    (block,) = found.blocks
    assert [row.method for row in block.rows] == ["ld3", "edm", "lost"]
    assert "got nowhere" in block.rows[-1].failed
    assert any(
        line.startswith("lost: failed: search: got nowhere") for line in comparison_lines(found)
    )


def test_what_is_written_is_read_again(tmp_path: Path, methods: dict[str, object]) -> None:
    found = run_compare(spec(tmp_path, nfe="3,4"), model=pictures())
    assert found.pictures is not None
    sheet = found.pictures.sheets[0]
    assert sheet.first == list(range(8)) and len(sheet.worst_after) == 4
    own = {r.method: r for r in found.blocks[0].rows}[sheet.after].distances
    assert own[sheet.worst_after[0]] == max(own)
    shown = {str(n) for n in (*sheet.first, *sheet.worst_after, *sheet.worst_before)}
    assert shown <= set(sheet.before_png) & set(sheet.after_png) & set(found.pictures.teacher)
    js, table = write_files(found, tmp_path)
    assert Comparison.load(js) == found
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 2 * 3
    assert float(rows[0]["distance"]) == found.blocks[0].rows[0].scores["distance"].value
    assert float(rows[0]["ratio_low"]) <= float(rows[0]["ratio"]) <= float(rows[0]["ratio_high"])
    content = json.loads(js.read_text())
    content["blocks"][0]["rows"][0]["surprise"] = 1
    with pytest.raises(Ld3Error, match=r"rows\.0\.surprise"):
        Comparison.checked(content, "x")
    assert found.command == (
        "ld3 compare --model fashion --preset fast --pairs 16 --valid 8 --held-out 24 "
        "--teacher-steps 16 --methods edm,logsnr,ld3 --solvers dpmpp --nfe 3,4 --seeds 1 "
        "--recipe epochs=4 --recipe precondition=8"
    )


def test_shares_stay_shares() -> None:
    assert within(Interval(0.9, 0.7, 1.2), "recall_data") == Interval(0.9, 0.7, 1.0)
    assert within(Interval(-0.1, -0.3, 0.2), "frechet") == Interval(-0.1, -0.1, 0.2)


def test_groups_and_words(methods: dict[str, object]) -> None:
    methods["other"] = Copy("edm")
    known = groups()
    assert known["learned"] == ("ld3-times", "ld3") and known["searched"] == ("other",)
    assert "paper-edm" not in known["handmade"] and "gits-sd" in known["published"]
    assert CompareSpec.read({"methods": "all"}).names == known["all"]
    assert not set(known["all"]) & set(known["variants"])
    words = CompareSpec.read({"methods": ["edm, handmade", "bump:0:1"], "solvers": "unipc:2:bh2"})
    assert words.names[:2] == ("edm", "uniform") and words.names[-1] == "bump:0:1"
    assert words.made_solvers[0].variant == "bh2"
    assert featured(CompareSpec.read({"methods": "ld3-times,ld3"})) == "ld3"
    assert CompareSpec.read(words.model_dump()) == words


@pytest.mark.parametrize("classes", [2, 7, 10])
def test_no_class_is_left_out_with_a_tenth(classes: int) -> None:
    """Classes are asked for in turn: each keeps its share, or intervals would be far too wide."""
    table = compile_table(make_solver("euler"), knots(EDM(), make_grid("edm", EDM(), 2)))
    samples = Samples(table, 700)
    tenths = torch.tensor([samples.group(number) for number in range(700)])
    assert tenths.bincount().tolist() == list(samples.sizes) == [70] * 10
    for tenth in range(10):
        kept = torch.arange(700)[tenths != tenth] % classes
        assert kept.bincount().tolist() == [630 // classes] * classes
    uneven = Samples(table, 43)
    assert [[uneven.group(n) for n in range(43)].count(g) for g in range(10)] == list(uneven.sizes)


def test_full_has_the_columns_of_a_judge_with_intervals(
    tmp_path: Path, methods: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ld3.zoo.features._places", lambda: iter(()))  # as where none is installed
    small: dict[str, object] = {"methods": "uniform,vp-uniform", "held_out": 8, "teacher_steps": 10}
    small["reference_steps"] = 10  # enough to tell these two apart
    words = spec(tmp_path, **small, full=True, judged=60, model="fashion", nfe="5")
    found = run_compare(words)
    keys = ["frechet", "frechet_accurate", "kid", "cmmd", "precision", "recall", "agreement"]
    assert [metric.key for metric in found.metrics[4:]] == keys
    rows = {row.method: row for row in found.blocks[0].rows}
    for row in rows.values():
        assert set(keys) <= set(row.scores)
        for key in keys:
            assert row.scores[key].low <= row.scores[key].value <= row.scores[key].high
        assert 0 <= row.scores["agreement"].value <= 1
    good, bad = rows["vp-uniform"].scores, rows["uniform"].scores  # even in sigma: very bad
    assert good["frechet_accurate"].high < bad["frechet_accurate"].low
    assert good["kid"].value < bad["kid"].value and good["cmmd"].value < bad["cmmd"].value
    assert good["agreement"].value > bad["agreement"].value
    said = "\n".join(comparison_lines(found))
    assert (
        "FD to data" in said
        and "FD to accurate" in said
        and "distance in features of package" in said.replace("\n", " ")
    )
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.*")}
    assert run_compare(words) == found
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.*")} == files
    with pytest.raises(Ld3Error, match="expected a model of images"):
        run_compare(spec(tmp_path, full=True, methods="edm"), model=toy())
    with pytest.raises(Ld3Error, match="--features"):
        run_compare(spec(tmp_path, full=True, methods="edm"), model=pictures())


MODEL = """
import time, torch
from ld3 import FunctionModel
from ld3.zoo.toy import mixture

toy = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)


def make():
    return FunctionModel(toy.forward, toy.schedule, "x0", (2,))


def slow():
    def forward(x, t, cond):
        time.sleep(0.02)
        return toy.forward(x, t, cond)

    return FunctionModel(forward, toy.schedule, "x0", (2,))
"""

WORDS = ("compare", "--methods", "handmade", "--pairs", "8", "--valid", "8", "--held-out", "16")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ld3.cli", *words]


def test_the_command_in_one_process_and_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MODEL)
    contents = []
    for out, jobs in (("one", "1"), ("two", "2")):
        with pytest.raises(SystemExit) as end:
            main([*WORDS, "--model", "mine:make", "--nfe", "3,4", "--jobs", jobs, "--out", out])
        assert not end.value.code
        assert "There is no learned method" in capsys.readouterr().out
        content = json.loads(Path(out, "compare.json").read_text())
        assert len(list(Path(out, "cache", "scores").glob("*.json"))) == 2 * 6
        content["spec"] = {}
        for block in content["blocks"]:
            for row in block["rows"]:
                row["seconds"] = 0
        contents.append(content)
    assert contents[0] == contents[1]
    page = Path("one", "report.html").read_text()
    Path("one", "report.html").unlink()
    with pytest.raises(SystemExit) as end:
        main(["report", "one"])
    assert not end.value.code
    assert Path("one", "report.html").read_text() == page


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    process = subprocess.Popen(
        command(*WORDS, "--model", "mine:slow", "--nfe", "4,5,6,7,8"), cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("compare/cache/scores/*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    last = said.strip().splitlines()[-1]
    assert "finished cells are in compare; the same command goes on" in last


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["compare", "--methods", "handmad"], "did you mean 'handmade'"),
        (["compare", "--methods", "edm", "--solvers", "unipx"], "did you mean 'unipc'"),
        (["compare", "--methods", "edm", "--solvers", "unipc:x"], "NAME:ORDER"),
        (["compare", "--methods", "edm", "--solvers", "unipc:9"], "expected one of"),
        (["compare", "--solvers", "heun", "--nfe", "5", "--methods", "edm"], "multiple of 2"),
        (["compare", "--nfe", "four"], "expected a whole number"),
        (["compare", "--seeds", "0"], "expected 1 or more"),
        (["compare", "--model", "fashon", "--methods", "edm"], "did you mean 'fashion'"),
        (["compare", "--teacher-grid", "emd", "--methods", "edm"], "did you mean 'edm'"),
        (["compare", "--spec", "words.toml"], "did you mean 'methods'"),
        (["report", "nowhere"], "No such file"),
        (["report", "bad.json"], "bad.json: command: got nothing, expected a value"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    hint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.toml").write_text('method = "edm"')
    Path("bad.json").write_text('{"format": "ld3-compare-1", "blocks": 3}')
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and hint in said, said


words = st.sampled_from([*CompareSpec.model_fields, "nonsense", ""])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["fashion", "edm,logsnr", "unipc:3", "all", "heun", "4,6", "float32"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(st.dictionaries(words, values, max_size=4))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_spec_is_read_or_refused_with_one_line(content: dict[str, object]) -> None:
    try:
        found = CompareSpec.read({"methods": "edm", **content})
    except Ld3Error as error:
        assert len(str(error).splitlines()) == 1
        assert len(str(error)) < 900
    else:
        assert CompareSpec.read(found.model_dump()) == found
