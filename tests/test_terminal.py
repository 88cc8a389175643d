"""What the terminal shows: lines that fit it, and how long a run will still take."""

import io
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from tests.plans import make_plan

import ld3
from ld3.cli import cli
from ld3.comparison import Block, Comparison, Metric, Range, Row
from ld3.export.plan_zoo import index_zoo
from ld3.models import bind_network, on_evaluation
from ld3.report.bar import FIRST_LINE, Bar
from ld3.report.comparison import SHORT, comparison_lines
from ld3.report.page import page
from ld3.report.tables import ratio_text, significant, table_lines, wrapped
from ld3.report.time_left import Part, TimeLeft, duration
from ld3.runs.expected import learn_parts
from ld3.runs.learn import run_learn
from ld3.runs.spec import RunSpec
from ld3.zoo.toy import mixture

LISTS = (
    "solvers", "methods", "schedules", "models", "reproduce --list", "zoo list plans",
    "show plans/a.json", "show plans/long-name-of-a-plan-that-somebody-gave-it.json",
    "--version --verbose",
)  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a zoo of two plans; the terminal is the usual one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "plans").mkdir()
    make_plan(steps=3).save(tmp_path / "plans" / "a.json")
    long = make_plan(steps=18, solver="unipc", name="diffusers:somebody/a-model-of-" + "x" * 40)
    long.save(tmp_path / "plans" / "long-name-of-a-plan-that-somebody-gave-it.json")
    index_zoo(tmp_path / "plans")
    return tmp_path


@pytest.mark.parametrize("command", LISTS)
def test_lists_fit_the_terminal(command: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (80, 60, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = CliRunner().invoke(cli, shlex.split(command))
        assert done.exit_code == 0, done.output
        allowed = max(columns, 80 if command.startswith("show") else 0)  # its axis is 79 wide
        assert not [line for line in done.output.splitlines() if len(line) > allowed]


def test_every_list_command_is_tried() -> None:
    without_arguments = {
        name
        for name, command in cli.commands.items()
        if {param.name for param in command.params} == {"json_"}
    }
    assert without_arguments <= set(LISTS)


def test_comparisons_fit_80_columns(here: Path) -> None:
    metrics = [Metric(key="distance", label="LPIPS", unit="mean"), *(
        Metric(key=key, label=key) for key in SHORT
    )]  # fmt: skip
    some = Range(value=0.0123456, low=0.0112345, high=0.0134567)
    rows = [
        Row(
            method=name, kind="learned", seeds=3, scores={m.key: some for m in metrics},
            ratio=some, wins=0.5, evaluations=1_234_567, seconds=1234.5,
        )
        for name in ("ld3-times", "paper-quadratic")
    ]  # fmt: skip
    rows.append(Row(method="ays", kind="searched", seeds=1, failed="a long reason " * 9))
    block = Block(
        solver="unipc-3", nfe=5, baseline="paper-quadratic", featured="ld3-times", gain="gain",
        verdict="A verdict that goes on, " * 6, rows=rows,
    )  # fmt: skip
    found = Comparison(
        command="", spec={"seeds": 3, "held_out": 64}, model={"name": "x" * 50}, teacher={},
        seeds={}, versions={}, metrics=metrics, methods=[], blocks=[block],
    )  # fmt: skip
    lines = list(comparison_lines(found))
    assert max(map(len, lines)) <= 80
    heads = [line for line in lines if line.startswith("method")]
    shown = " ".join(heads)
    assert len(heads) > 1 and all(word in shown for word in (*SHORT.values(), "seconds"))
    assert sum(line.startswith("paper-quadratic") for line in lines) == len(heads)


def test_tables_wrap_text_and_split_numbers() -> None:
    text = [["name", "what"], ["a", "words " * 20], ["b", "x" * 100]]
    lines = list(table_lines(text, width=40))
    assert max(map(len, lines)) <= 40
    assert "".join(lines).count("words") == 20 and "".join(lines).count("x") == 100
    numbers = [["name", *(f"column {n}" for n in range(9))], ["a", *("0.123",) * 9]]
    lines = list(table_lines(numbers, right=range(1, 10), width=40))
    assert max(map(len, lines)) <= 40 and sum(line.startswith("name") for line in lines) == 3
    assert sum(line.count("0.123") for line in lines) == 9
    labelled = [["solver", "of", *numbers[0][1:]], ["a", "us", *numbers[1][1:]]]
    lines = list(table_lines(labelled, width=40, labels=2))
    assert [line.split()[:2] for line in lines if line].count(["a", "us"]) > 2
    narrow = [["a", "b"], ["1", "2"]]
    assert list(table_lines(narrow)) == ["a  b", "1  2"]
    assert wrapped("") == [""]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00010123, "0.000101"), (12.345, "12.3"), (0.0, "0"), (1e-9, "1e-09"), (2e6, "2e+06")],
)
def test_numbers_have_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.204, "1.20"),
        (0.1, "0.10"),
        (0.0267, "0.027"),
        (0.00026, "0.00026"),
        (0.0, "0"),
        (12, "12.00"),
    ],
)
def test_ratios_have_digits_when_they_are_small(value: float, text: str) -> None:
    assert ratio_text(value) == text


def test_a_tiny_ratio_is_not_shown_as_zero(here: Path) -> None:
    """On the terminal and on the page."""
    small = Range(value=0.0026, low=0.0000123, high=0.0049)
    row = Row(
        method="ld3", kind="learned", seeds=1, scores={"distance": small}, ratio=small, wins=1
    )
    block = Block(
        solver="unipc-3", nfe=5, baseline="edm", featured="ld3", gain="gain", verdict="", rows=[row]
    )
    found = Comparison(
        command="", spec={"seeds": 1, "held_out": 64}, model={"name": "x"}, teacher={}, seeds={},
        versions={}, metrics=[Metric(key="distance", label="l2", unit="mean")], methods=[],
        blocks=[block],
    )  # fmt: skip
    for text in ("\n".join(comparison_lines(found)), page(found)):
        assert "0.0026" in text and "0.000012" in text and "0.00" not in re.split(r"[^\d.]", text)


# How long it will take


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


PARTS = [Part("training pairs", 100), Part("loss", 600), Part("scoring", 300)]


def test_the_time_left_is_that_of_the_whole_run() -> None:
    clock = Clock()
    left = TimeLeft(PARTS, clock)
    clock.now += 60  # loading a model counts for nothing
    left.report("training pairs", 0, 10)
    assert left.seconds is None
    clock.now += 5
    left.evaluated(50)
    left.report("training pairs", 5, 10)
    assert left.seconds == pytest.approx(95)  # 950 evaluations to come, 0.1 s each
    clock.now += 5
    left.evaluated(50)
    left.report("training pairs", 10, 10)
    assert left.seconds == pytest.approx(90)
    left.report("loss 1.0", 0, 80)
    clock.now += 60  # twice as slow as the pairs: half of this part, by its own speed
    left.evaluated(300)
    left.report("loss 0.5", 40, 80)
    assert left.seconds == pytest.approx(60 + 300 * 70 / 400)
    assert not left.report("training pairs", 0, 10)  # read again: no news
    left.report("scoring", 3, 3)
    assert left.seconds == 0


def test_what_was_cached_costs_nothing_and_a_resumed_part_only_its_rest() -> None:
    clock = Clock()
    left = TimeLeft(PARTS, clock)
    left.report("loss", 40, 80)
    clock.now += 10
    left.evaluated(150)
    left.report("loss", 60, 80)
    assert left.seconds == pytest.approx(10 + 300 * 10 / 150)


def test_large_models_count_by_the_sample() -> None:
    clock = Clock()
    left = TimeLeft([Part("samples", 640)], clock)  # 64 samples of 10 evaluations
    left.report("samples", 0, 64)
    clock.now += 8
    left.evaluated(8)
    assert left.share == pytest.approx(8 / 640) and left.seconds == pytest.approx(632)


def test_work_that_nobody_expected_is_extrapolated() -> None:
    clock = Clock()
    left = TimeLeft(clock=clock)
    left.report("features", 0, 100)
    clock.now += 10
    left.report("features", 25, 100)
    assert left.seconds == pytest.approx(30)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (7.4, "7 s"), (44, "40 s"), (55, "1 min"), (200, "3 min"), (5000, "1 h 23 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_network_tells_of_its_evaluations() -> None:
    model, seen = mixture([[-1.0, 0.0], [1.0, 0.0]], std=0.2), []
    network, x = bind_network(model), make_noise(model)
    with torch.no_grad(), on_evaluation(seen.append):
        network(x, torch.tensor(1.0))
    with on_evaluation(seen.append):
        network(x, torch.tensor(1.0))
    network(x, torch.tensor(1.0))  # nobody listens
    assert seen == [4, 12]  # a backward pass counts as two


def make_noise(model: ld3.Model) -> torch.Tensor:
    return ld3.prior(model, range(4))


def test_what_is_expected_of_a_run_is_what_it_does(tmp_path: Path) -> None:
    """Every part is reported, in the order expected, and the sum of evaluations is near."""
    spec = RunSpec(nfe=(3, 4), pairs=16, valid=8, held_out=8, preset="fast", judged=0, out=tmp_path)
    model = mixture([[-1.0, 0.0], [1.0, 0.0]], std=0.2)
    parts, seen, spent = list(learn_parts(spec)), [], []
    with on_evaluation(spent.append):
        for _ in run_learn(spec, lambda what, done, total: seen.append(what), model=model):
            pass
    names = list(dict.fromkeys(part.name for part in parts))
    begun = list(dict.fromkeys(n for what in seen for n in names if what.startswith(n)))
    assert begun == [name for name in names if name in begun]
    assert set(names) == set(begun)
    once = {"training pairs", "validation pairs", "held-out pairs", "reference samples"}
    cached = sum({part.name: part.evaluations for part in parts if part.name in once}.values())
    expected = sum(part.evaluations for part in parts) - cached  # the second time from the cache
    assert 0.7 < sum(spent) / expected < 1.4


def test_a_terminal_gets_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(), Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "80")
    with Bar(clock=clock) as bar:
        bar.expect(PARTS)
        for done in range(11):
            bar("training pairs", done, 10)
            bar.evaluated(10)
            clock.now += 1
        bar.clear()
        bar.evaluated(10)  # pictures after the run
    text = stream.getvalue()
    assert "\n" not in text and max(map(len, text.split("\r"))) <= 80
    assert "[#####     ] about" in text and "training pairs, 5 of 10" in text
    assert not text.split("\r")[-1].strip()


def test_a_file_gets_a_few_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Bar(clock=clock) as bar:
        bar.expect([Part("samples", 36_000)])
        bar("samples", 0, 3600)
        for _ in range(36_000):
            bar.evaluated(1)
            clock.now += 0.1
    text = stream.getvalue()
    assert "\r" not in text and "\x1b" not in text
    lines = text.splitlines()
    assert len(lines) == 6 and lines[0] == "about 59 min left: samples, 30 of 3600"
    with Bar(clock=clock) as bar:
        bar("samples", 1, 2)
        clock.now += FIRST_LINE - 1
        bar("samples", 2, 2)
    assert stream.getvalue() == text  # short work says nothing
    with Bar(shown=False, clock=clock) as bar:
        bar("samples", 0, 2)
        clock.now += 1000
        bar("samples", 1, 2)
    assert stream.getvalue() == text
