"""Experiments: every spec file is valid; every kind runs, is read again, goes on after a stop."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from checkpoint_files import SONG, edm_pickle
from ld3 import zoo
from ld3.cli import main
from ld3.comparison import Comparison
from ld3.errors import SpecError, StoreError
from ld3.experiment import (
    Curve,
    Experiment,
    ExperimentResult,
    Findings,
    Panel,
    PaperNumbers,
    ResultRow,
    ResultTable,
    Value,
    merged,
    values_of,
)
from ld3.images import png_of
from ld3.metrics import to_uint8
from ld3.report.experiments import LONG, NOT_RUN, _sizes, markdown
from ld3.report.panels import _is_wide
from ld3.runs.compare.spec import CompareSpec
from ld3.runs.experiments import experiment_names, load_experiment, run_reproduce, write_result
from ld3.runs.experiments.comparison_grid import first_places
from ld3.runs.experiments.context import Context
from ld3.runs.experiments.learning_runs import RunRequest, Sessions, class_subset
from ld3.runs.experiments.paper import paper_notes, paper_tables
from ld3.runs.experiments.run import KINDS, _as_typed, folder_name, read_options
from ld3.runs.experiments.scoring import title_of
from ld3.runs.experiments.shared_errors import feature_errors
from ld3.runs.experiments.spec import ORDER, SPECS, read_experiment
from ld3.runs.experiments.training_curves import best_so_far, rank_correlation
from ld3.runs.progress import Interrupted, silent
from ld3.runs.run import learn_run
from ld3.runs.spec import read_solver, solver_title
from ld3.seeds import noise
from ld3.zoo.features import load_features
from ld3.zoo.lpips import LpipsFeatures

PAPER = [name for name in ORDER if load_experiment(name).paper is not None]
DOCS = Path(__file__).parents[1] / "docs"
every = pytest.mark.parametrize("name", ORDER)
of_the_paper = pytest.mark.parametrize("name", PAPER)


def context(model: str, out: Path = Path("out")) -> Context:
    return Context(model, out / "name", out, silent, features=Path("net.pt"))


# ---- spec files


def test_names_are_the_files() -> None:
    assert experiment_names() == list(ORDER)


@every
@pytest.mark.parametrize("quick", [False, True])
def test_options_are_valid(name: str, quick: bool) -> None:
    """Of each model in the file, and of the paper's own."""
    experiment = load_experiment(name)
    paper = () if experiment.paper is None else experiment.paper.models
    for model in (*experiment.models, *paper):
        place = context(experiment.model_of(model))
        kind, options, _ = read_options(experiment, model, quick, place)
        assert isinstance(options, kind.options)
    assert experiment.here
    if experiment.paper is not None:
        assert experiment.options(paper[0]) == experiment.paper.options
        assert experiment.reported and experiment.claim and experiment.place


@of_the_paper
def test_the_papers_options_are_the_papers(name: str) -> None:
    """Its learner, never ours; and it never learns the solver's coefficients."""
    paper = load_experiment(name).paper
    assert paper is not None
    options = json.dumps(paper.options)
    assert "paper-" in options or "ld3-paper" in options
    assert '"ld3"' not in options and "ld3-times" not in options and "coefficients" not in options


def numbers(place: str) -> set[tuple[str, int]]:
    """ "Tables 2 and 4 to 6 and Figure 1" -> Table 2, 4, 5, 6, Figure 1"""
    _, *parts = re.split(r"(Table|Figure)s? ", place)
    found = set()
    for kind, rest in zip(parts[::2], parts[1::2], strict=True):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", rest):
            found |= {(kind, n) for n in range(int(first), int(last or first) + 1)}
    return found


def test_every_table_and_figure_has_its_place() -> None:
    places = [load_experiment(name).place for name in PAPER]
    found = set().union(*(numbers(place) for place in places))
    elsewhere = set().union(*(numbers(place) for place in NOT_RUN))
    assert not found & elsewhere
    assert found | elsewhere == {("Table", n) for n in range(1, 23)} | {
        ("Figure", n) for n in range(1, 24)
    }


# ---- the paper's numbers

NUMBERS = [
    pytest.param(one, id=f"{name}-{one.table}-{number}")
    for name in PAPER
    for number, one in enumerate(load_experiment(name).paper.numbers)  # type: ignore[union-attr]
]
SHARED = Path(__file__).parents[2] / "shared"
TEX = SHARED / "docs" / "paper.tex"


def test_tables_with_numbers_are_in_the_spec_files() -> None:
    """Tables 2 and 4 are parts of 18 to 22; 1 has no numbers."""
    found = {one.values[0].table for one in NUMBERS}  # type: ignore[attr-defined]
    wanted = {3, *range(5, 23)}
    assert {int(table.removeprefix("Table ")) for table in found} == wanted
    grid = load_experiment("fid-grid").paper
    assert grid is not None
    assert sum(len(row.cells) for one in grid.numbers for row in one.result_rows) == 441
    first = grid.numbers[0].result_rows[13]
    assert first.label == ("ipndm-3", "ld3-paper")
    assert [value.value for value in first.cells if value] == [
        9.31, 8.17, 3.35, 3.97, 2.81, 2.51, 2.38
    ]  # fmt: skip


@pytest.mark.parametrize("one", NUMBERS)
def test_numbers_are_the_papers(one: PaperNumbers) -> None:
    """Each row stands in the paper, in this order."""
    if not TEX.exists():
        pytest.skip(f"{TEX} is not there: the paper is kept outside of the repository")
    text = re.sub(r"\\cellcolor\[HTML\]\{\w+\}", "", TEX.read_text())
    for row in one.rows:
        values = [v for cell in row if not isinstance(cell, str) for v in np.atleast_1d(cell)]
        shown = [rf"{v:g}(?:\.?0+)?" for v in values]
        pattern = r"[^\d]+".join(shown)
        if one.table == "Table 9":  # one block of the paper a column
            pattern = r"(?s:[^\d].{1,900}?)".join(shown)
        if one.table == "Table 11":  # a column of the paper
            pattern = r"(?s: ?/.{1,200}?)".join(shown)
        if one.costs:
            pattern = rf"{shown[0]} ?/ NFE={row[3]}\D"
        assert re.search(rf"\D{pattern}\D", text), row


@pytest.mark.parametrize("one", NUMBERS)
def test_labels_are_those_of_the_experiment(one: PaperNumbers) -> None:
    """Solvers and methods as result tables name them, so that cells are found."""
    if one.head[:2] != ("solver", "method"):
        return
    owner = next(n for n in PAPER if one in load_experiment(n).paper.numbers)  # type: ignore[union-attr]
    options = load_experiment(owner).paper.options["compare"]  # type: ignore[union-attr]
    solvers = {solver_title(read_solver(name)) for name in options["solvers"]}
    labels = {row.label for row in one.result_rows}
    if one.match:
        assert {solver for solver, _ in labels} == solvers
        assert {method for _, method in labels} - {"best hand-made"} <= set(options["methods"])
        assert one.head[2:] == tuple(f"NFE {nfe}" for nfe in options["nfe"])


def result_of(metric: str) -> ResultTable:
    cells = (Value(value=10.0), Value(value=2.5))
    rows = (ResultRow(label=("ipndm-3", "ld3-paper"), cells=cells),)
    head = ("solver", "method", "NFE 4", "NFE 10")
    return ResultTable(title=title_of(metric), head=head, rows=rows)


def test_the_papers_numbers_stand_beside_ours() -> None:
    """Cell by cell with the difference, where model and metric are the same."""
    experiment = load_experiment("discretization")
    file = "models/edm-cifar10-32x32-uncond-vp.pkl"
    (table,) = paper_tables(experiment, file, [result_of("frechet")])
    assert "The paper's Table 3, CIFAR10" in table.title
    rows = {row.label: [v and round(v.value, 6) for v in row.cells] for row in table.rows}
    label = ("ipndm-3", "ld3-paper")
    assert rows[*label, "paper"] == [9.31, 3.35, 2.81, 2.38]
    assert rows[*label, "here"] == [10.0, None, None, 2.5]
    assert rows[*label, "difference"] == [0.69, None, None, 0.12]
    assert ("ipndm-3", "uniform", "here") not in rows
    other = list(paper_tables(experiment, file, [result_of("frechet_accurate")]))
    assert len(other) == 1 and all(len(row.label) == 2 for row in other[0].rows)


def test_the_papers_numbers_alone_for_an_unknown_model() -> None:
    experiment = load_experiment("fid-grid")
    assert len(list(paper_tables(experiment, "mine:model", []))) == 3
    assert len(list(paper_tables(experiment, "edm-ffhq-64x64-uncond-vp.pkl", []))) == 1
    assert not list(paper_tables(experiment, "fashion", []))
    assert not list(paper_tables(load_experiment("step-counts"), "mine:model", []))


def test_numbers_of_another_data_set_or_network_are_not_compared() -> None:
    """Tables 11 and 12 are CIFAR10 only; Table 15 quotes a model that nobody has."""

    def compared(name: str, file: str) -> list[str]:
        found = paper_tables(load_experiment(name), file, [result_of("frechet")])
        return [table.title for table in found if "minutes" not in table.head[-1]]

    assert "DDPM++" in compared("distillation", "edm-cifar10-32x32-uncond-vp.pkl")[0]
    assert "NCSN++" in compared("distillation", "edm-cifar10-32x32-uncond-ve.pkl")[0]
    assert len(compared("distillation", "edm-ffhq-64x64-uncond-vp.pkl")) == 2  # both, alone
    uncond = compared("ddim-imagenet", "imagenet64_uncond_100M_1500K.pt")
    assert ["1.5M" in title for title in uncond] == [True, False] and "3M" in uncond[1]


@pytest.mark.parametrize(
    ("model", "metric", "said"),
    [
        ("edm_tiny.pkl", "frechet", "the name edm_tiny.pkl has none of cifar10 in it"),
        ("edm-cifar10.pkl", "distance", "has no Fréchet distance to real images; --data"),
        ("edm-cifar10.pkl", "frechet", ""),
        ("fashion", "distance", ""),
    ],
)
def test_why_the_papers_numbers_stand_alone(model: str, metric: str, said: str) -> None:
    given = {"compare": {"judged": 50_000}}
    experiment, tables = load_experiment("discretization"), [result_of(metric)]
    notes = list(paper_notes(experiment, model, tables, given))
    assert len(notes) == bool(said) and all(said in note for note in notes)
    assert not list(paper_notes(load_experiment("cost"), model, [], given))
    assert not list(paper_notes(load_experiment("step-counts"), model, [], given))


def test_training_costs_stand_beside_ours() -> None:
    tables = list(paper_tables(load_experiment("distillation"), "fashion", [result_of("seconds")]))
    assert len(tables) == 3
    first, *_, last = tables[0].rows
    assert first.label == ("consistency distillation", "NCSN++", "1 day on 8 A100", "2")
    assert [v and v.value for v in first.cells] == [2.93, 11520]
    assert last.label == ("ld3-paper, here", "fashion", "this run", "10")
    assert [v and round(v.value, 6) for v in last.cells] == [None, round(2.5 / 60, 6)]


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    text = (SPECS / "flow.toml").read_text().replace("22.56, 16.04, 14.78", "22.56, 16.04")
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(SpecError, match="expected rows of 5 cells"):
        read_experiment(tmp_path / "wrong.toml")


def test_quick_is_small_for_the_papers_models_too() -> None:
    """Whatever else a spec file changes: few samples, one number of evaluations."""
    limits = {"judged": 40, "held_out": 5, "pairs": 8, "valid": 4, "seeds": 1}
    for experiment in map(load_experiment, PAPER):
        assert experiment.paper is not None
        options = experiment.options(experiment.paper.models[0], quick=True)
        for name, most in limits.items():
            assert all(value <= most for value in values_of(options, name)), experiment.name
        assert all(np.size(value) == 1 for value in values_of(options, "nfe")), experiment.name
    quick = load_experiment("ays").options("edm-cifar10-32x32-uncond-vp.pkl", quick=True)
    assert quick["compare"]["nfe"] == [10]  # a column of the paper's table
    assert "ld3-paper" in quick["compare"]["methods"]


def test_the_papers_options_of_one_of_its_models() -> None:
    """ImageNet has its own guidance and teacher; FFHQ another solver in Figure 10."""
    latent = load_experiment("latent")
    imagenet = latent.options("cin256-v2/model.ckpt")["compare"]
    assert (imagenet["guidance"], imagenet["teacher_grid"], imagenet["teacher_steps"]) == (
        2.0, "quadratic", 10,
    )  # fmt: skip
    assert imagenet["nfe"] == [4, 5, 6, 7] and imagenet["judged"] == 50_000
    assert "guidance" not in latent.options("lsun_beds256/model.ckpt")["compare"]
    training = load_experiment("training")
    assert training.options("edm-ffhq-64x64-uncond-vp.pkl")["solvers"] == ["unipc:3"]
    assert training.options("edm-cifar10-32x32-uncond-vp.pkl")["solvers"] == ["dpmpp:3"]


def changed(name: str, model: str, **changes: Any) -> dict[str, Any]:
    experiment = load_experiment(name)
    place = context(experiment.model_of(model))
    return read_options(experiment, model, False, place, changes)[2]


def test_options_that_replace_those_of_the_paper() -> None:
    file = "edm-cifar10-32x32-uncond-vp.pkl"
    new = changed("ablation", file, distance="lpips-alex:w.pth", nfe=[4], samples=100)
    assert values_of(new, "distance").count("lpips-alex:w.pth") == 2
    assert values_of(new, "distance").count("l2") == 2  # what the ablation is about
    assert new["nfe"] == [4] and new["scoring"]["judged"] == 100
    assert new["learn"]["preset"] == "paper-pixel"
    assert changed("bound", "images", nfe=[5])["nfe"] == 5  # one number, not a list


def test_old_names_are_still_taken(tmp_path: Path) -> None:
    assert load_experiment("pictures") == load_experiment("images")
    assert "pictures" not in experiment_names()
    found = [
        run_reproduce(load_experiment("bound"), model, quick=True, out=tmp_path)
        for model in ("images", "pictures")
    ]
    assert found[0] == found[1] and found[1].folder == "bound-images-quick"


def test_options_of_the_network_reach_every_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `--config`, `--clamp`, `--label`, `--dtype` and `--batch` of `ld3 learn`."""
    seen: list[Context] = []

    def run(options: Any, place: Context) -> Findings:
        seen.append(place)
        return Findings()

    kinds = {name: replace(kind, run=run) for name, kind in KINDS.items()}
    monkeypatch.setattr("ld3.runs.experiments.run.KINDS", kinds)
    words = "reproduce discretization --model a.pt --config imagenet64_uncond --clamp --label 1,3 "
    words += f"--dtype bfloat16 --batch 2 --resolution 64 --out {tmp_path}"
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 0, capsys.readouterr().err
    (place,) = seen
    for spec in (place.run_spec({}), place.compare_spec({})):
        assert (spec.dtype, spec.batch) == ("bfloat16", 2) and spec.pipeline is not None
        assert spec.pipeline.config == "imagenet64_uncond" and spec.pipeline.clamp
        assert spec.pipeline.classes == (1, 3) and spec.pipeline.height == 64
    result = ExperimentResult.load(place.folder / "result.json")
    assert "--label 1,3 --resolution 64x64 --config imagenet64_uncond --clamp" in result.command
    assert result.folder.startswith("discretization-a-pt-")  # not that of other options
    with pytest.raises(SystemExit) as end:
        main([*words.split(), "--dtype", "int3"])
    assert end.value.code == 2 and "int3" in capsys.readouterr().err


def test_many_prompts_are_no_part_of_the_command() -> None:
    assert _as_typed({"prompts": ("a cat's",)}) == " --prompt 'a cat'\"'\"'s'"
    assert _as_typed({"prompts": ("x" * 5000,)}) == " --prompts FILE"


def test_results_with_other_options_have_their_own_folder() -> None:
    experiment = load_experiment("fid-grid")
    changes = {"distance": "lpips-vgg:/a/b.pth", "nfe": [4, 6], "samples": 100}
    assert folder_name(experiment, "a/b.pkl", True, changes) == (
        "fid-grid-a-b-pkl-lpips-vgg-nfe-4-6-samples-100-quick"
    )
    assert folder_name(experiment, "fashion", False) == "fid-grid"


def test_merging_goes_into_tables() -> None:
    both = merged({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}, "e": 5})
    assert both == {"a": 1, "b": {"c": 4, "d": 3}, "e": 5}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = "comparison-grid"', 'kind = "table"', "unknown kind of experiment 'table'"),
        ("seeds = 2", "sedes = 2", "did you mean 'seeds'"),
        ("seeds = 2", "seeds = 0", "seeds: got '0'"),
        ('"edm", "ld3-times"', '"edn", "ld3-times"', "unknown method 'edn': did you mean 'edm'"),
        ('"ipndm:3"', '"ipndm:9"', "order"),
        ('show = ["distance"', 'show = ["distnace"', "did you mean 'distance'"),
        ("[quick]", "[quck]", "did you mean 'quick'"),
        ("title =", "title ", "not TOML"),
    ],
)
def test_wrong_options_are_one_line(old: str, new: str, said: str, tmp_path: Path) -> None:
    text = (SPECS / "discretization.toml").read_text()
    assert old in text
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(text.replace(old, new))
    with pytest.raises((SpecError, StoreError), match=re.escape(said)) as error:
        read_options(read_experiment(wrong), "fashion", False, context("fashion"))
    assert "\n" not in str(error.value)


# ---- each kind, to the end

TOY, DOTS = (f"ld3.runs.experiments.toy_models:{name}" for name in ("clusters", "images"))
FEW: dict[str, Any] = {"pairs": 4, "valid": 2, "held_out": 4, "teacher_steps": 6}
LEARN: dict[str, Any] = {
    "preset": "fast", "pairs": 4, "distance": "l2", "learn": "times+net", "teacher_steps": 6,
    "start": "edm", "recipe": {"epochs": 1, "precondition": 2, "validate_every": 1},
}  # fmt: skip
SCORING = {"held_out": 4, "teacher_steps": 6}
SHORT = {"recipe": {"epochs": 1, "precondition": 2}}
OPTIONS: dict[str, dict[str, Any]] = {
    "comparison-grid": {
        "model": TOY, "show": ["distance", "rmse_accurate", "evaluations", "ratio"],
        "compare": FEW | SHORT
        | {"methods": ["logsnr", "dmn", "ld3-times"], "nfe": [2, 3, 4], "seeds": 2},
        "goal": {"teacher_solver": "euler", "teacher_grid": "logsnr", "teacher_steps": 9},
    },
    "ablation": {
        "model": TOY, "learn": LEARN, "scoring": SCORING, "nfe": [3], "seeds": 2, "axis": "r",
        "show": ["distance", "validation", "ratio", "training"],
        "against": ["logsnr", "best known"],
        "changes": {
            "hard": {"x": 0}, "soft": {"x": 1, "recipe": {"gamma": 0.5, "rate_noise": 1.0}},
        },
    },
    "cross-solver": {
        "model": TOY,
        "compare": FEW | SHORT
        | {"methods": ["ld3-times"], "solvers": ["dpmpp:3", "euler"], "nfe": [3]},
    },
    "training-curves": {
        "model": TOY, "learn": LEARN | {"start": "uniform"}, "scoring": SCORING, "nfe": [3],
        "solvers": ["dpmpp:3"], "points": 3,
    },
    "bound": {"model": TOY, "learn": LEARN, "nfe": 7, "samples": 3, "radii": [0.0, 0.1, 0.5, 1.0]},
    "illustration": {
        "model": "ld3.runs.experiments.toy_models:line", "radii": [0.0, 0.3], "nfe": 2,
        "samples": 20,
        "learn": {
            **LEARN, "preset": "paper-pixel", "solver": "euler", "learn": "times",
            "recipe": {"epochs_times": 0, "epochs": 1},
        },
    },
    "sample-images": {
        "model": DOTS, "count": 2,
        "compare": FEW | SHORT | {"methods": ["edm", "ld3-times"], "nfe": [3]},
    },
    "points": {
        "model": "fashion-points", "show": ["distance"], "learned": "ld3-times", "clouds": 2,
        "compare": FEW | SHORT
        | {"methods": ["uniform", "ld3-times"], "solvers": ["euler"], "nfe": [2],
           "distance": "l2", "preset": "fast"},
    },
    "step-counts": {
        "model": TOY, "learn": LEARN, "scoring": SCORING, "nfe": [2, 3], "seeds": 2,
        "family": True, "interpolated": [3], "runs": {"times": {"learn": "times"}},
    },
    "guidance": {
        "model": TOY, "learn": LEARN, "scoring": SCORING, "nfe": 3, "learned_for": ["1"],
        "scales": [1.0],
    },
    "guidance-passes": {
        "model": "fashion-latent", "learn": LEARN | {"distance": "l2"},
        "scoring": SCORING | {"distance": "l2"}, "nfe": [2, 3], "passes": [4], "scales": [2.0],
    },
    "docking": {
        "model": "ld3.zoo.docking.ligands:aspirin", "solvers": ["euler-log"], "poses": 5,
        "compare": SHORT
        | {"methods": ["uniform", "dmn", "ld3-times"], "nfe": [2], "pairs": 2, "valid": 2,
           "held_out": 6, "teacher_steps": 4, "reference_steps": 6, "distance": "l2"},
    },
    "shared-errors": {
        "model": "fashion",
        "compare": SHORT
        | {"methods": ["edm", "logsnr"], "nfe": [2], "held_out": 4, "teacher_steps": 4},
    },
}  # fmt: skip


DRAWN = ("comparison-grid", "bound", "illustration", "sample-images", "docking", "points")
"""Kinds whose options above give curves of more than two points, or images."""


def made_of(kind: str, options: dict[str, Any]) -> Experiment:
    plain = load_experiment("discretization")
    return plain.model_copy(update={"name": f"my-{kind}", "kind": kind, "models": {"toy": options}})


def test_first_places_count_the_interval_of_the_best() -> None:
    """With UniPC the plan is inside the interval of the best, with Euler outside of it. Of a
    metric that is better when higher the other end counts."""
    given = {"model": "fashion", "solvers": ["euler", "unipc"], "nfe": [4]}
    spec = CompareSpec.read({**given, "methods": ["logsnr", "dmn", "ld3", "ld3-times"]})
    names = [solver_title(solver) for solver in spec.made_solvers]
    for key, sign in (("kid", 1.0), ("recall", -1.0)):
        cells = {(names[0], "logsnr"): (1.0, 0.9, 1.05), (names[1], "dmn"): (1.0, 0.7, 1.2)}
        values: dict[Any, Any] = {
            (solver, method, 4): {key: Value(value=sign * 2.0)}
            for solver in names
            for method in spec.names
        }
        for (solver, method), (middle, low, high) in cells.items():
            ends = sorted((sign * low, sign * high))
            found = Value(value=sign * middle, low=ends[0], high=ends[1])
            values[solver, method, 4] = {key: found}
        for solver in names:
            values[solver, "ld3", 4] = {key: Value(value=sign * 1.1)}
        first, near = first_places(spec, spec.names, values, key, "x")
        assert first.endswith("of 2 pairs of solver and evaluations: `logsnr` in 1, `dmn` in 1.")
        assert near == "Best by x or inside the 95 % interval of the best: `ld3` in 1."


def test_long_tables_are_folded_away() -> None:
    def table(title: str, rows: int) -> ResultTable:
        made = tuple(ResultRow(label=(f"{n}",), cells=(Value(value=n),)) for n in range(rows))
        return ResultTable(title=title, head=("method", "NFE 4"), rows=made)

    result = ExperimentResult(
        name="a", folder="a", title="A", place="", model="toy", quick=False, options={},
        versions={}, command="ld3 reproduce a", tables=(table("Short", 3), table("Long", 20)),
        weights=zoo.weights_behind("fashion"),
    )  # fmt: skip
    text = markdown(result)
    assert f" Weights: fashion {zoo.SHIPPED['fashion'].digest[:8]}, feature network " in text
    assert "\nShort:\n\n| method" in text and text.count("<details>") == 1
    assert "<details><summary>Long: 20 rows</summary>\n\n| method" in text
    assert text.endswith("\n\n</details>\n")


def test_tables_of_the_docs_are_folded_by_the_same_rule() -> None:
    pages = sorted((Path(__file__).parents[1] / "docs/results/reproduce").glob("*.md"))
    assert pages
    for page in pages:
        parts = re.split(r"<details>.*?</details>", page.read_text("utf-8"), flags=re.DOTALL)
        open_ = [run for part in parts for run in re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE)]
        assert all(run.count("\n") - 2 <= LONG for run in open_), page.name


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_runs_and_is_read_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = made_of(kind, OPTIONS[kind])
    result = run_reproduce(experiment, out=tmp_path)
    files = list(write_result(result, tmp_path))
    assert all(file.stat().st_size > 100 for file in files)
    assert not list(tmp_path.glob("*nfe*"))  # learned plans are in the cache
    pictures = [file for file in files if file.suffix == ".png"]
    assert bool(pictures) == (kind in DRAWN)
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in pictures)
    assert ExperimentResult.load(tmp_path / f"my-{kind}" / "result.json") == result
    assert result.tables
    for table in result.tables:
        assert table.rows and all(len(table.head) == len(r.label + r.cells) for r in table.rows)
        assert f"| {' | '.join(table.head)} |" in (tmp_path / f"my-{kind}/result.md").read_text()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("learned again")

    places = ("ld3.runs.run.descend", "ld3.runs.compare.cells.find", "ld3.runs.family.descend")
    for place in places:
        monkeypatch.setattr(place, refuse)
    assert run_reproduce(experiment, out=tmp_path) == result


def test_numbers_of_a_grid(tmp_path: Path) -> None:
    """Spread where there is chance; a first-order solver's goal is not the teacher's."""
    result = run_reproduce(made_of("comparison-grid", OPTIONS["comparison-grid"]), out=tmp_path)
    plain = {k: v for k, v in OPTIONS["comparison-grid"].items() if k != "goal"}
    other = run_reproduce(made_of("comparison-grid", plain), out=tmp_path)
    distance, accurate, cost, ratio = result.tables
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
    assert 1.0 in [row.cells[0].value for row in ratio.rows if row.cells[0]]
    assert result.reference == "unipc-3, 12 steps on logsnr"  # twice the teacher's
    inside = [note for note in result.notes if "inside the 95 % interval of the best" in note]
    firsts = [note for note in result.notes if "of 3 pairs of solver" in note]
    assert len(firsts) == 2 and {*firsts, *inside} == {*result.notes}
    assert (tmp_path / "my-comparison-grid" / "compare.json").exists()


def test_soft_loss_is_below_the_hard_one(tmp_path: Path) -> None:
    """With noise that may move, validation can only gain."""
    words = merged(OPTIONS["ablation"], {"seeds": 1, "learn": {"recipe": {"epochs": 4}}})
    result = run_reproduce(made_of("ablation", words), out=tmp_path)
    rows = {row.label[0]: row.cells[0] for row in result.tables[1].rows}
    assert rows["soft"] and rows["hard"] and rows["soft"].value < rows["hard"].value
    assert rows["logsnr"] is None
    assert [curve.x for curve in result.panels[0].curves] == 3 * [(0.0, 1.0)]


def test_two_processes_find_the_same(tmp_path: Path) -> None:
    words = OPTIONS["ablation"] | {"changes": {"a": {}, "b": {"learn": "times"}}, "axis": ""}
    experiment = made_of("ablation", words)
    alone = run_reproduce(experiment, out=tmp_path / "one")
    both = run_reproduce(experiment, out=tmp_path / "two", jobs=2)
    assert alone.tables == both.tables


def test_a_goal_names_its_solver_and_steps(tmp_path: Path) -> None:
    words = OPTIONS["comparison-grid"] | {"goal": {"teacher_steps": 9}}
    with pytest.raises(SpecError, match="expected at least teacher_solver and teacher_steps"):
        run_reproduce(made_of("comparison-grid", words), out=tmp_path)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"methods": ["ld3"]}, "methods: got ld3, expected one that depends on the solver"),
        ({"methods": ["gits"]}, "methods: got gits"),
        ({"methods": ["ld3-times", "ddss"]}, "methods: got ld3-times, ddss"),
        ({"solvers": ["euler"]}, "solvers: got euler, expected several"),
        ({"solvers": ["euler", "heun"], "nfe": [4]}, "expected one evaluation per step"),
    ],
)
def test_only_times_of_one_solver_fit_another(
    wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    words = merged(OPTIONS["cross-solver"], {"compare": wrong})
    with pytest.raises(SpecError, match=re.escape(said)):
        run_reproduce(made_of("cross-solver", words), out=tmp_path)


def test_on_the_diagonal_a_plan_is_used_as_it_was_learned(tmp_path: Path) -> None:
    result = run_reproduce(made_of("cross-solver", OPTIONS["cross-solver"]), out=tmp_path)
    own = Comparison.load(tmp_path / "my-cross-solver" / "compare.json")
    for i, (row, block) in enumerate(zip(result.tables[0].rows, own.blocks, strict=True)):
        cell = row.cells[i]
        assert cell and cell.value == pytest.approx(block.rows[0].scores["distance"].value)


def test_a_stop_says_how_to_go_on(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("scoring"):
            raise KeyboardInterrupt

    experiment = made_of("ablation", OPTIONS["ablation"])
    with pytest.raises(Interrupted, match="the same command goes on"):
        run_reproduce(experiment, out=tmp_path, report=stop)


def test_some_classes_only() -> None:
    model = class_subset("fashion", [3, 8])
    assert model.conditions(range(4)).tolist() == [3, 8, 3, 8]
    other = class_subset("fashion", [8, 3])
    assert len({model.identity, other.identity, zoo.SHIPPED["fashion"].digest}) == 3
    with pytest.raises(SpecError, match="0 to 9"):
        class_subset("fashion", [10])
    with pytest.raises(SpecError, match="classes: got the model own"):
        class_subset("own", [1])


def test_fashion_with_set_metrics(tmp_path: Path) -> None:
    """A shipped model, set metrics, subsets of classes; two solvers."""
    options = {
        "learn": LEARN | {"distance": "perceptual", "pairs": 2, "teacher_steps": 4}, "nfe": [2],
        "scoring": {"held_out": 2, "teacher_steps": 4, "full": True, "judged": 40},
        "changes": {"shoes": {"classes": [5, 7, 9]}, "bags": {"classes": [8]}},
        "show": ["distance", "frechet_accurate", "frechet"], "together": True,
        "solvers": ["euler", "dpmpp:2"],
    }  # fmt: skip
    experiment = made_of("ablation", options).model_copy(update={"models": {"fashion": options}})
    result = run_reproduce(experiment, out=tmp_path)
    assert len(result.tables) == 3
    for table in result.tables:
        assert [row.label[0] for row in table.rows] == 3 * ["euler-1"] + 3 * ["dpmpp-2"]
        shoes, bags, over = (row.cells[0] for row in table.rows[:3])
        assert shoes and bags and over and over.spread is not None
        assert over.value == pytest.approx((shoes.value + bags.value) / 2)


def test_best_baselines_are_picked_by_distance(tmp_path: Path) -> None:
    compare = FEW | {"methods": ["edm", "logsnr", "gits-cifar10", "uniform"], "nfe": [3]}
    options = {"model": TOY, "show": ["distance"], "compare": compare}
    plain = run_reproduce(made_of("comparison-grid", options), out=tmp_path)
    options |= {"best_baselines": True}
    result = run_reproduce(made_of("comparison-grid", options), out=tmp_path)
    values = {row.label[1]: row.cells[0].value for row in plain.tables[0].rows if row.cells[0]}
    hand, known = (row.cells[0] for row in result.tables[0].rows)
    assert hand and known
    assert known.name == min(values, key=lambda name: values[name])
    assert known.value == min(values.values()) and hand.name != "gits-cifar10"
    assert not result.notes  # one setting: the table says it all
    assert known.text.endswith(f"({known.name})")


def test_training_curves_follow_the_learner(tmp_path: Path) -> None:
    """The last of the recorded solvers is the one that the run itself gives."""
    spec = context(TOY, tmp_path).run_spec(LEARN | {"nfe": [3], "recipe": {"precondition": 2}})
    run = Sessions().make_run(RunRequest("one", spec))
    steps = best_so_far(run)
    learned = learn_run(run)
    assert steps[0][0] == 0 and [step[1] for step in steps] == sorted(
        (step[1] for step in steps), reverse=True
    )
    assert steps[-1][1] == learned.validation
    assert torch.equal(steps[-1][2].grid.times, learned.tuned.grid.times)


def test_feature_errors_by_hand() -> None:
    net = load_features()
    exact = -torch.ones(3, 1, 28, 28)
    exact[:, :, 10:20, 10:20] = 0.5
    same = feature_errors(net, exact, exact)
    assert same[:5] == [0.0, 0.0, 0.0, 0.0, 1.0] and 0 < same[5] <= 1
    bright = exact + 0.02 * (exact == -1)
    error, shift, background, clear, rough, _ = feature_errors(net, bright, exact)
    assert error == pytest.approx(shift, rel=1e-4) and shift > 0  # every sample has the same error
    assert background == pytest.approx(0.02, rel=1e-4) and clear == 0 and rough < 1


# ---- numbers and files


def test_values() -> None:
    value = Value.over([1.0, 2.0, 3.0])
    assert (value.value, value.spread, value.seeds) == (2.0, 1.0, 3)
    assert value.text == "2.00 ± 1.00"
    assert Value(value=0.0031234).text == "0.00312"
    assert Value(value=12345.6).text == "12,346"
    assert Value(value=0.0).text == "0"
    assert Value(value=1.0, name="edm").text == "1.00 (edm)"


def test_the_best_is_bold_within_its_group() -> None:
    rows = [("a", "x", 1.0), ("a", "y", 2.0), ("b", "x", 5.0), ("b", "y", 4.0)]
    table = ResultTable(
        title="T", head=("solver", "method", "NFE 4"), best="lower", groups=True,
        rows=tuple(ResultRow(label=(s, m), cells=(Value(value=v),)) for s, m, v in rows),
    )  # fmt: skip
    result = ExperimentResult(
        name="n", folder="n", title="t", place="p", model="m", quick=True, versions={},
        options={"seeds": 2, "compare": {"judged": 300}, "changes": {"a": {"pairs": 5}}},
        command="ld3 reproduce n", tables=(table,), notes=("So it is.",),
    )  # fmt: skip
    text = markdown(result)
    assert "| a | x | **1.00** |" in text and "| b | y | **4.00** |" in text
    assert "`: 2 learning seeds, 300 samples for set metrics.\n" in text
    assert "| a | y | 2.00 |" in text and "Smallest sizes" in text and "- So it is." in text


def testrank_correlation() -> None:
    assert rank_correlation([3, 2, 1], [30, 20, 10]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)
    assert rank_correlation([1, 1], [1, 2]) == 0


def test_a_broken_result_is_said(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"format": "ld3-reproduce-1"}')
    with pytest.raises(StoreError, match="make it anew"):
        ExperimentResult.load(tmp_path / "result.json")


# ---- the command


def run_cli(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["reproduce", *words])
    return int(end.value.code or 0)


def test_list_and_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("--list") == 0
    listed = capsys.readouterr().out
    names = [line.split()[0] for line in listed.splitlines()[1:] if line[0] not in "- "]
    assert names == list(ORDER)
    assert "nothing to run" in listed
    assert run_cli("cross-solver", "--paper") == 0
    shown = capsys.readouterr().out
    assert "231.00" in shown and 'models = ["edm-afhqv2-64x64-uncond-vp.pkl"]' in shown
    assert "[[paper.numbers]]" not in shown and "Table 8, AFHQv2:" in shown
    assert "[models.fashion]" not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fid-grit"], "unknown experiment 'fid-grit': did you mean 'fid-grid'"),
        ([], "a name of `ld3 reproduce --list`"),
        (["flow", "--model", "fashion"], "did you mean 'fashion-flow'"),
        (["bound", "--model", "ld3.zoo:nothing"], "model ld3.zoo:nothing"),
        (["rmsd", "--jobs", "0"], "jobs"),
        (["rmsd", "--distance", "l2"], "--distance: got l2, but rmsd with fashion has no lpips"),
        (["rmsd", "--samples", "100"], "--samples: got 100, but rmsd with fashion has no samples"),
        (["rmsd", "--samples", "4"], "--samples"),
        (["rmsd", "--nfe", "four"], "--nfe: got 'four', expected whole numbers such as 4,6"),
        (["rmsd", "--nfe", "0"], "nfe"),
        (["bound", "--nfe", "4,6"], "nfe: got"),
        (["rmsd", "--device", "cudaa"], "device: got 'cudaa', expected one that torch has"),
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
    curve = Curve(name="kid", x=tuple(map(float, range(len(values)))), y=values)
    assert _is_wide(Panel(title="", x="evaluations", y="KID", curves=(curve,))) == wide


def test_command_to_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli("bound", "--model", TOY, "--quick", "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "bound-ld3-runs-experiments-toy_models-clusters-quick"
    assert "KL(q ‖ p)" in out and str(folder / "result.png") in out
    made = ExperimentResult.load(folder / "result.json")
    assert made.quick and made.model == TOY
    assert made.command == f"ld3 reproduce bound --model {TOY} --quick"


class Corners(nn.Module):
    """Features of images: a few pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, :2, :2].to(torch.float32).flatten(1) / 64


@pytest.fixture
def features(tmp_path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Corners()).save(str(tmp_path / "corners.pt"))
    return tmp_path / "corners.pt"


def random_lpips(file: Path) -> str:
    """AlexNet with random weights as the name of a distance."""
    shapes = {key: value.shape for key, value in LpipsFeatures("alex").state_dict().items()}
    widths = enumerate((64, 192, 384, 256, 256))
    shapes |= {f"lin{k}.model.1.weight": torch.Size((1, c, 1, 1)) for k, c in widths}
    g = torch.Generator().manual_seed(0)
    save_file({k: torch.rand(s, generator=g) / 100 for k, s in shapes.items()}, file)
    return f"lpips-alex:{file}"


@pytest.mark.parametrize("made", [True, False], ids=["small", "fixture"])
def test_an_edm_file_beside_the_paper(
    made: bool, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, data and weights of LPIPS by the command line; then the paper's rows beside ours."""
    file = tmp_path / "edm-cifar10-small.pkl"
    if made:
        file.write_bytes(edm_pickle({**SONG, "img_resolution": 16}))
        distance = random_lpips(tmp_path / "alex.safetensors")
    else:
        tiny = SHARED / "fixtures" / "edm_tiny.pkl"
        weights = SHARED / "weights" / "lpips_vgg16.safetensors"
        if not (tiny.exists() and weights.exists()):
            pytest.skip("needs ../shared/fixtures and ../shared/weights")
        file.write_bytes(tiny.read_bytes())
        distance = f"lpips-vgg:{weights}"
    (tmp_path / "images").mkdir()
    for number, image in enumerate(to_uint8(noise(range(20), (3, 16, 16)))):
        (tmp_path / "images" / f"{number}.png").write_bytes(png_of(image))
    words = ["--model", str(file), "--quick", "--distance", distance]
    words += ["--data", str(tmp_path / "images")]
    assert (
        run_cli("discretization", *words, "--features", str(features), "--out", str(tmp_path)) == 0
    )
    shown = capsys.readouterr().out
    result = ExperimentResult.load(next(tmp_path.glob("discretization-*/result.json")))
    assert result.command == f"ld3 reproduce discretization {' '.join(words)}"
    assert result.options["compare"]["distance"] == distance
    assert [t.title for t in result.tables[:3]] == [
        "Fréchet distance to real images", "Fréchet distance to the reference",
        "Distance to the teacher",
    ]  # fmt: skip
    ours, paper = result.tables[0], result.tables[3]
    rows = {row.label[1:]: row.cells[0] for row in paper.rows}
    for row in ours.rows:
        name, (value,) = row.label[1], row.cells
        there, here, apart = (rows[name, of] for of in ("paper", "here", "difference"))
        assert value and there and here and apart and here.value == value.value
        assert apart.value == pytest.approx(here.value - there.value)
    assert len(paper.rows) == 3 * len(ours.rows) == 15
    assert rows["ld3-paper", "paper"] == Value(value=9.31) and "35.04" in shown
    assert any("from 40 samples, the paper's from 50,000" in note for note in result.notes)
    assert any("of the reference solution itself: " in note for note in result.notes)
    assert result.weights == ""  # of a file, they are not the package's


def test_pieces_of_the_docs(tmp_path: Path) -> None:
    result = run_reproduce(made_of("sample-images", OPTIONS["sample-images"]), out=tmp_path)
    files = list(write_result(result, tmp_path, docs=tmp_path / "docs"))
    page = tmp_path / "docs/results/reproduce/my-sample-images.md"
    image = tmp_path / "docs/images/reproduce/my-sample-images-dpmpp-3-nfe3.png"
    assert {page, image} <= set(files) and page.read_text() == markdown(result)


@of_the_paper
def test_the_page_tells_of_it(name: str) -> None:
    page = (DOCS / "reproduce.md").read_text()
    experiment = load_experiment(name)
    start = page.index(f"\n## {experiment.title}\n")
    section = " ".join(page[start:].split("\n## ")[1].split())
    for text in (experiment.place, experiment.claim, experiment.here):
        assert " ".join(text.split()) in section
    for text in experiment.reported:  # numbers are rows of a table
        what, _, numbers = " ".join(text.split()).partition(": ")
        assert (f"| {what} | {numbers} |" if numbers else f"- {what}") in section
    for model in experiment.models:
        option = "" if model == experiment.default else f" --model {model}"
        assert f"`ld3 reproduce {name}{option}`" in section


# ---- the pages of the docs

PAGES = [
    pytest.param(name, model, id=folder_name(load_experiment(name), model, quick=False))
    for name in ORDER
    for model in load_experiment(name).models
]


OLD_WEIGHTS = "**Measured with earlier weights of the package's models.**"


def page_of(name: str, model: str) -> Path:
    folder = folder_name(load_experiment(name), model, quick=False)
    return DOCS / f"results/reproduce/{folder}.md"


@pytest.mark.parametrize(("name", "model"), PAGES)
def test_a_page_was_made_with_the_options_of_today(name: str, model: str) -> None:
    """Its first line has the sizes of the spec file, its tables the numbers of evaluations."""
    page, options = page_of(name, model), load_experiment(name).options(model)
    if not page.exists():
        text = (DOCS / "reproduce.md").read_text() + (DOCS / "results.md").read_text()
        paper = rf"\[`{name}`\]\S+ \| not measured yet \||Not measured yet: `{model}`"
        assert re.search(rf"{paper}|Not measured yet: `ld3 reproduce {page.stem}`", text)
        pytest.skip(f"{page.name}: not measured yet, as the docs say")
    first, *lines = page.read_text().splitlines()
    made = f"Made by `ld3 reproduce {name} --model {model}"
    sizes = re.escape(", ".join(_sizes(options)))
    assert re.match(rf"{re.escape(made)}( --data \S+)?`: {sizes}\.", first)
    columns = {int(n) for line in lines for n in re.findall(r"\| NFE (\d+)(?= \|)", line)}
    wanted = options.get("nfe") or options.get("compare", {}).get("nfe")
    assert not columns or columns == set(np.atleast_1d(wanted).tolist())


@pytest.mark.parametrize(("name", "model"), PAGES)
def test_a_page_of_earlier_weights_says_so(name: str, model: str) -> None:
    page, weights = page_of(name, model), zoo.weights_behind(load_experiment(name).model_of(model))
    if not page.exists() or not weights:
        return
    text = page.read_text()
    assert (f"Weights: {weights}." in text) != (OLD_WEIGHTS in text)


def test_every_page_and_image_has_its_place() -> None:
    """Each is shown by one page of the docs, and none is left that no command makes."""
    text = "".join(page.read_text() for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
    shown = re.findall(r"^```\{include\} (results/\S+)$", text, re.M)
    pages = sorted(str(page.relative_to(DOCS)) for page in (DOCS / "results").rglob("*.md"))
    assert sorted(shown) == pages
    images = {file.name for file in (DOCS / "images").rglob("*.png")}
    assert images == {name for name in images if f"/{name})" in text}
    made = {page_of(*case.values) for case in PAGES}  # type: ignore[arg-type]
    assert set((DOCS / "results/reproduce").glob("*.md")) <= made


@pytest.mark.parametrize("page", sorted((DOCS / "results").glob("*.md")), ids=lambda p: p.stem)
def test_every_other_page_names_its_command(page: Path) -> None:
    assert re.search(r"`(make mutants|make fuzz|python (tools|benchmarks)/)", page.read_text())
