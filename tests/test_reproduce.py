"""The paper's experiments: every spec file is valid, every kind runs, and goes on after a stop."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ld3 import zoo
from ld3.cli import main
from ld3.comparison import Comparison
from ld3.errors import SpecError, StoreError
from ld3.reproduce import Experiment, experiments, load_experiment, run_reproduce, write_result
from ld3.reproduce.ahead import narrowed
from ld3.reproduce.draw import _is_wide
from ld3.reproduce.result import Line, Panel, Result, Row, Table, Value, markdown
from ld3.reproduce.run import KINDS, read_words
from ld3.reproduce.spec import ELSEWHERE, ORDER, merged, read_experiment
from ld3.reproduce.stage import Stage
from ld3.reproduce.training import _rank_correlation
from ld3.runs import Interrupted
from ld3.scores import silent

every = pytest.mark.parametrize("name", ORDER)


def stage(model: str) -> Stage:
    return Stage(model, Path("out/name"), Path("out/cache"), silent, features=Path("net.pt"))


# ---- spec files


def test_names_are_the_files() -> None:
    assert experiments() == list(ORDER)


@every
@pytest.mark.parametrize("quick", [False, True])
def test_words_are_valid(name: str, quick: bool) -> None:
    """Of each small model, and of the paper's own."""
    experiment = load_experiment(name)
    for model in (*experiment.models, experiment.paper.models[0]):
        own = model not in experiment.models
        kind, words, _ = read_words(experiment, model, quick, stage(experiment.model_of(model)))
        assert isinstance(words, kind.words)
        asked = experiment.words(model)
        assert not own or asked == experiment.paper.words
    assert experiment.reported and experiment.claim and experiment.here


@every
def test_the_papers_words_are_the_papers(name: str) -> None:
    """Its learner, never ours; and it never learns the solver's coefficients."""
    words = json.dumps(load_experiment(name).paper.words)
    assert "paper-" in words or "ld3-paper" in words
    assert '"ld3"' not in words and "ld3-times" not in words and "coefficients" not in words


def numbers(place: str) -> set[tuple[str, int]]:
    """ "Tables 2 and 4 to 6 and Figure 1" -> Table 2, 4, 5, 6, Figure 1"""
    _, *parts = re.split(r"(Table|Figure)s? ", place)
    found = set()
    for kind, rest in zip(parts[::2], parts[1::2], strict=True):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", rest):
            found |= {(kind, n) for n in range(int(first), int(last or first) + 1)}
    return found


def test_every_table_and_figure_has_its_place() -> None:
    places = [load_experiment(name).place for name in experiments()]
    found = set().union(*(numbers(place) for place in places))
    told = set().union(*(numbers(place) for place in ELSEWHERE))
    assert not found & told
    assert found | told == {("Table", n) for n in range(1, 23)} | {
        ("Figure", n) for n in range(1, 24)
    }


def test_merging_goes_into_tables() -> None:
    both = merged({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}, "e": 5})
    assert both == {"a": 1, "b": {"c": 4, "d": 3}, "e": 5}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = "grid"', 'kind = "table"', "unknown kind of experiment 'table'"),
        ("seeds = 2", "sedes = 2", "did you mean 'seeds'"),
        ("seeds = 2", "seeds = 0", "seeds: got 0"),
        ('"edm", "ld3-times"', '"edn", "ld3-times"', "unknown method 'edn': did you mean 'edm'"),
        ('"ipndm:3"', '"ipndm:9"', "order"),
        ('show = ["distance"', 'show = ["distnace"', "did you mean 'distance'"),
        ("[quick]", "[quck]", "did you mean 'quick'"),
        ("title =", "title ", "not TOML"),
    ],
)
def test_wrong_words_are_said(old: str, new: str, said: str, tmp_path: Path) -> None:
    file = Path("src/ld3/reproduce/specs/discretization.toml")
    text = (Path(__file__).parents[1] / file).read_text()
    assert old in text
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(text.replace(old, new))
    with pytest.raises(SpecError, match=re.escape(said)) as error:
        read_words(read_experiment(wrong), "fashion", False, stage("fashion"))
    assert "\n" not in str(error.value)


# ---- each kind, to the end

TOY, DOTS = "ld3.reproduce.toys:clusters", "ld3.reproduce.toys:pictures"
FEW: dict[str, Any] = {"pairs": 4, "valid": 2, "held_out": 4, "teacher_steps": 6}
LEARN: dict[str, Any] = {
    "preset": "fast", "pairs": 4, "distance": "l2", "learn": "times+net", "teacher_steps": 6,
    "recipe": {"epochs": 1, "precondition": 0, "validate_every": 1},
}  # fmt: skip
JUDGE = {"held_out": 4, "teacher_steps": 6}
WORDS: dict[str, dict[str, Any]] = {
    "grid": {
        "model": TOY, "show": ["distance", "rmse_accurate", "evaluations"],
        "compare": FEW | {"methods": ["logsnr", "dmn", "ld3-times"], "nfe": [3], "seeds": 2},
        "goal": {"teacher_solver": "euler", "teacher_grid": "logsnr", "teacher_steps": 9},
    },
    "changes": {
        "model": TOY, "learn": LEARN, "judge": JUDGE, "nfe": [3], "seeds": 2, "axis": "r",
        "show": ["distance", "validation"], "against": ["logsnr"],
        "changes": {
            "hard": {"x": 0}, "soft": {"x": 1, "recipe": {"gamma": 0.5, "rate_noise": 1.0}},
        },
    },
    "cross": {
        "model": TOY,
        "compare": FEW | {"methods": ["ld3-times"], "solvers": ["dpmpp:3", "euler"], "nfe": [3]},
    },
    "training": {
        "model": TOY, "learn": LEARN | {"start": "uniform"}, "judge": JUDGE, "nfe": [3],
        "solvers": ["dpmpp:3"], "points": 3,
    },
    "bound": {"model": TOY, "learn": LEARN, "nfe": 7, "samples": 3, "radii": [0.0, 1.0]},
    "illustration": {
        "model": "ld3.reproduce.toys:line", "radii": [0.0, 0.3], "nfe": 2, "samples": 20,
        "learn": {
            **LEARN, "preset": "paper-pixel", "solver": "euler", "learn": "times",
            "recipe": {"epochs_times": 0, "epochs": 1},
        },
    },
    "pictures": {
        "model": DOTS, "count": 2, "compare": FEW | {"methods": ["edm", "ld3-times"], "nfe": [3]},
    },
}  # fmt: skip


def made_of(kind: str, words: dict[str, Any]) -> Experiment:
    plain = load_experiment("discretization")
    return plain.model_copy(update={"name": f"my-{kind}", "kind": kind, "models": {"toy": words}})


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_runs_and_is_read_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = made_of(kind, WORDS[kind])
    result = run_reproduce(experiment, out=tmp_path)
    files = list(write_result(result, tmp_path))
    assert all(file.stat().st_size > 100 for file in files)
    pictures = [file for file in files if file.suffix == ".png"]
    assert bool(pictures) == (kind != "cross")
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in pictures)
    assert Result.load(tmp_path / f"my-{kind}" / "result.json") == result
    assert result.tables
    for table in result.tables:
        assert table.rows and all(len(table.head) == len(r.label + r.cells) for r in table.rows)
        assert f"| {' | '.join(table.head)} |" in (tmp_path / f"my-{kind}/result.md").read_text()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("learned again")

    places = ("ld3.runs.learn.descend", "ld3.compare.cells.find", "ld3.reproduce.training.learn")
    for place in places:
        monkeypatch.setattr(place, refuse)
    assert run_reproduce(experiment, out=tmp_path) == result


def test_numbers_of_a_grid(tmp_path: Path) -> None:
    """Spread where there is chance; a first-order solver's goal is not the teacher's."""
    result = run_reproduce(made_of("grid", WORDS["grid"]), out=tmp_path)
    plain = {k: v for k, v in WORDS["grid"].items() if k != "goal"}
    other = run_reproduce(made_of("grid", plain), out=tmp_path)
    distance, accurate, cost = result.tables
    assert distance.title == "Distance to 9 steps of euler"
    assert other.tables[0].title == "Distance to the teacher"
    rows = {row.label[1]: row.cells[0] for row in distance.rows}
    assert set(rows) == {"logsnr", "dmn", "ld3-times"}
    assert rows["logsnr"] and rows["logsnr"].spread is None
    assert rows["ld3-times"] and rows["ld3-times"].spread is not None
    assert rows["ld3-times"].seeds == 2
    assert other.tables[0] != distance
    assert other.tables[1] == accurate  # to an accurate run, whatever the goal
    spent = {row.label[1]: row.cells[0].value for row in cost.rows if row.cells[0]}
    assert spent["logsnr"] == 0 < spent["ld3-times"]
    assert (tmp_path / "my-grid" / "compare.json").exists()


def test_soft_loss_is_below_the_hard_one(tmp_path: Path) -> None:
    """With noises that may move, validation can only gain."""
    words = merged(WORDS["changes"], {"seeds": 1, "learn": {"recipe": {"epochs": 4}}})
    result = run_reproduce(made_of("changes", words), out=tmp_path)
    rows = {row.label[0]: row.cells[0] for row in result.tables[1].rows}
    assert rows["soft"] and rows["hard"] and rows["soft"].value < rows["hard"].value
    assert rows["logsnr"] is None
    assert [line.x for line in result.panels[0].lines] == [(0.0, 1.0), (0.0, 1.0)]


def test_two_processes_find_the_same(tmp_path: Path) -> None:
    words = WORDS["changes"] | {"changes": {"a": {}, "b": {"learn": "times"}}, "axis": ""}
    experiment = made_of("changes", words)
    alone = run_reproduce(experiment, out=tmp_path / "one")
    both = run_reproduce(experiment, out=tmp_path / "two", jobs=2)
    assert alone.tables == both.tables


def test_a_goal_names_its_solver_and_steps(tmp_path: Path) -> None:
    words = WORDS["grid"] | {"goal": {"teacher_steps": 9}}
    with pytest.raises(SpecError, match="wanted at least teacher_solver and teacher_steps"):
        run_reproduce(made_of("grid", words), out=tmp_path)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"methods": ["ld3"]}, "methods: got ld3, wanted one that looks at the solver"),
        ({"methods": ["gits"]}, "methods: got gits"),
        ({"methods": ["ld3-times", "ddss"]}, "methods: got ld3-times, ddss"),
        ({"solvers": ["euler"]}, "solvers: got euler, wanted several"),
        ({"solvers": ["euler", "heun"], "nfe": [4]}, "wanted one evaluation a step"),
    ],
)
def test_only_times_of_one_solver_fit_another(
    wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    words = merged(WORDS["cross"], {"compare": wrong})
    with pytest.raises(SpecError, match=re.escape(said)):
        run_reproduce(made_of("cross", words), out=tmp_path)


def test_on_the_diagonal_a_plan_is_used_as_it_was_learned(tmp_path: Path) -> None:
    result = run_reproduce(made_of("cross", WORDS["cross"]), out=tmp_path)
    own = Comparison.load(tmp_path / "my-cross" / "compare.json")
    for i, (row, block) in enumerate(zip(result.tables[0].rows, own.blocks, strict=True)):
        cell = row.cells[i]
        assert cell and cell.value == pytest.approx(block.rows[0].scores["distance"].value)


def test_a_stop_says_how_to_go_on(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("judging"):
            raise KeyboardInterrupt

    experiment = made_of("changes", WORDS["changes"])
    with pytest.raises(Interrupted, match="the same command goes on"):
        run_reproduce(experiment, out=tmp_path, tell=stop)


def test_some_classes_only(tmp_path: Path) -> None:
    model = narrowed("fashion", [3, 8])
    assert model.conditions(range(4)).tolist() == [3, 8, 3, 8]
    other = narrowed("fashion", [8, 3])
    assert len({model.digest, other.digest, zoo.SHIPPED["fashion"].digest}) == 3
    with pytest.raises(SpecError, match="0 to 9"):
        narrowed("fashion", [10])
    with pytest.raises(SpecError, match="classes: got the model own"):
        narrowed("own", [1])


def test_fashion_with_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shipped model, real columns of the judge, narrowed classes; with few accurate steps."""
    monkeypatch.setattr("ld3.teacher.CHUNK", 2)
    for place in ("ld3.runs.held_out.ACCURATE", "ld3.compare.full.ACCURATE"):
        monkeypatch.setattr(place, 4)
    words = {
        "learn": LEARN | {"distance": "perceptual", "pairs": 2, "start": "edm"}, "nfe": [2],
        "judge": {"held_out": 2, "teacher_steps": 4, "full": True, "judged": 40},
        "changes": {"shoes": {"classes": [5, 7, 9]}, "bags": {"classes": [8]}},
        "show": ["distance", "frechet_accurate", "frechet"], "together": True,
    }  # fmt: skip
    experiment = made_of("changes", words).model_copy(update={"models": {"fashion": words}})
    result = run_reproduce(experiment, out=tmp_path)
    assert len(result.tables) == 3
    for table in result.tables:
        shoes, bags, over = (row.cells[0] for row in table.rows)
        assert shoes and bags and over and over.spread is not None
        assert over.value == pytest.approx((shoes.value + bags.value) / 2)


# ---- numbers and files


def test_values() -> None:
    value = Value.over([1.0, 2.0, 3.0])
    assert (value.value, value.spread, value.seeds) == (2.0, 1.0, 3)
    assert value.text == "2.00 ± 1.00"
    assert Value(value=0.0031234).text == "0.00312"
    assert Value(value=12345.6).text == "12,346"
    assert Value(value=0.0).text == "0"


def test_the_best_is_bold_within_its_group() -> None:
    rows = [("a", "x", 1.0), ("a", "y", 2.0), ("b", "x", 5.0), ("b", "y", 4.0)]
    table = Table(
        title="T", head=("solver", "method", "NFE 4"), best="lower", groups=True,
        rows=tuple(Row(label=(s, m), cells=(Value(value=v),)) for s, m, v in rows),
    )  # fmt: skip
    result = Result(
        name="n", folder="n", title="t", place="p", model="m", quick=True, versions={},
        words={"seeds": 2, "compare": {"judged": 300}, "changes": {"a": {"pairs": 5}}},
        command="ld3 reproduce n", tables=(table,), notes=("So it is.",),
    )  # fmt: skip
    text = markdown(result)
    assert "| a | x | **1.00** |" in text and "| b | y | **4.00** |" in text
    assert "`: 2 learning seeds, 300 samples for Fréchet distances.\n" in text
    assert "| a | y | 2.00 |" in text and "Smallest sizes" in text and "- So it is." in text


def test_rank_correlation() -> None:
    assert _rank_correlation([3, 2, 1], [30, 20, 10]) == pytest.approx(1)
    assert _rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)
    assert _rank_correlation([1, 1], [1, 2]) == 0


def test_a_broken_result_is_said(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"format": "ld3-reproduce-0"}')
    with pytest.raises(StoreError, match="make it anew"):
        Result.load(tmp_path / "result.json")


# ---- the command


def run_cli(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["reproduce", *words])
    return int(end.value.code or 0)


def test_list_and_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("--list") == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()[1:] if line[0] != "-"] == list(ORDER)
    assert "not there yet" in listed
    assert run_cli("cross-solver", "--paper") == 0
    shown = capsys.readouterr().out
    assert "231.00" in shown and 'models = ["yours.edm:afhqv2"]' in shown
    assert "[models.fashion]" not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fid-grit"], "unknown experiment 'fid-grit': did you mean 'fid-grid'"),
        ([], "wanted a name of `ld3 reproduce --list`"),
        (["flow", "--model", "fashion"], "did you mean 'fashion-flow'"),
        (["bound", "--model", "ld3.zoo:nothing"], "model ld3.zoo:nothing"),
        (["rmsd", "--jobs", "0"], "jobs"),
        (["rmsd", "--device", "cudaa"], "device: got 'cudaa', wanted one that torch has"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_cli(*words, "--out", str(tmp_path)) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error


@pytest.mark.parametrize(
    ("values", "wide"),
    [((0.1, 1.0), True), ((0.0, 0.1, 1.0), True), ((0.5, 1.0), False), ((-0.001, 0.1, 1.0), False)],
)
def test_logarithmic_axes_hide_nothing_below_zero(values: tuple[float, ...], wide: bool) -> None:
    line = Line(name="kid", x=tuple(map(float, range(len(values)))), y=values)
    assert _is_wide(Panel(title="", x="evaluations", y="KID", lines=(line,))) == wide


def test_command_to_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("bound", "--model", TOY, "--quick", "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "bound-ld3-reproduce-toys-clusters-quick"
    assert "KL(q ‖ p)" in out and str(folder / "result.png") in out
    made = Result.load(folder / "result.json")
    assert made.quick and made.model == TOY
    assert made.command == f"ld3 reproduce bound --model {TOY} --quick"


@every
def test_the_page_tells_of_it(name: str) -> None:
    page = (Path(__file__).parents[1] / "docs" / "reproduce.md").read_text()
    experiment = load_experiment(name)
    start = page.index(f"\n## {experiment.title}\n")
    section = " ".join(page[start:].split("\n## ")[1].split())
    for text in (experiment.place, experiment.claim, experiment.here, *experiment.reported):
        assert " ".join(text.split()) in section
    for model in experiment.models:
        option = "" if model == experiment.default else f" --model {model}"
        assert f"`ld3 reproduce {name}{option}`" in section
