"""The command line as a user meets it: what it prints, how it ends, how its options are read."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ld3 import METHODS, SOLVERS, __version__
from ld3.cli import cli
from ld3.cli.examples import EXAMPLES, FIRST
from ld3.cli.options import read_scales, read_seeds
from ld3.errors import Ld3Error, SpecError
from ld3.options import PipelineOptions
from ld3.runs.compare.methods import LEARNED
from ld3.runs.compare.run import command_of
from ld3.runs.compare.spec import TEACHER, CompareSpec
from ld3.runs.spec import RunSpec, Settings
from ld3.schedules import SCHEDULES
from ld3.searches.registry import SEARCHES
from ld3.zoo import SHIPPED
from plans import make_plan

NAMED = {*METHODS, *SEARCHES, *LEARNED}
ALL = cli.commands | {
    f"{name} {part}": inner
    for name, group in cli.commands.items()
    if isinstance(group, click.Group)
    for part, inner in group.commands.items()
}
OPTIONS = [
    pytest.param(name, option, id=f"{name} {option.opts[0]}")
    for name, command in ALL.items()
    for option in command.params
    if isinstance(option, click.Option) and not option.hidden
]


def ld3(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ld3.cli", *words], capture_output=True, text=True, check=False
    )


def test_help_does_not_load_torch() -> None:
    """What makes it answer at once; wall time itself is the benchmark's business."""
    code = (
        "import sys, ld3.cli\n"
        "for words in (['--help'], ['learn', '--help'], ['compare', '--help']):\n"
        "    try: ld3.cli.main(words)\n"
        "    except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'diffusers', 'pydantic'}"
        " & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "Commands:" in run.stdout


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("solvers", set(SOLVERS)),
        ("methods", NAMED),
        ("schedules", set(SCHEDULES)),
        ("models", set(SHIPPED)),
    ],
)
def test_lists(command: str, names: set[str]) -> None:
    listed = ld3(command)
    assert listed.returncode == 0
    lines = listed.stdout.splitlines()
    starts = [line.split()[0] for line in lines[1:] if not line.startswith(" ")]  # not wrapped ones
    found = [start for start in starts if start != "Licence:"]
    assert sorted(found) == sorted(names)  # one row each
    rows = json.loads(ld3(command, "--json").stdout)
    assert {row["name"] for row in rows} == names


def test_examples_fit_the_terminal() -> None:
    every = [FIRST, *EXAMPLES.values()]
    assert not [line for lines in every for line in lines if len(line) > 78]


def test_the_first_help_says_where_to_begin() -> None:
    said = CliRunner().invoke(cli, ["--help"]).output
    for line in FIRST:
        assert line in said
        assert line.split()[1] in cli.commands


def test_image_was_called_picture(tmp_path: Path) -> None:
    """The old name works, and no help shows it."""
    make_plan().save(tmp_path / "plan.json")
    for name in ("--image", "--picture"):
        shown = ld3("show", str(tmp_path / "plan.json"), name, str(tmp_path / f"{name}.png"))
        assert shown.returncode == 0, shown.stderr
        assert (tmp_path / f"{name}.png").is_file()
    for command in ("show", "score"):
        said = ld3(command, "--help").stdout
        assert "--image" in said and "--picture" not in said


def test_places_to_write_are_tried_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_plan().save(tmp_path / "plan.json")
    (tmp_path / "file").write_text("")
    plan = str(tmp_path / "plan.json")
    for name in ("sample.run_sample", "score.run_score"):
        monkeypatch.setattr(f"ld3.runs.{name}", lambda *_, **__: pytest.fail("too late"))
    for words in (
        ["sample", "--plan", plan, "--out", str(tmp_path / "file")],
        ["score", plan, "--image", str(tmp_path)],
        ["score", plan, "--image", str(tmp_path / "file" / "a.png")],
    ):
        result = CliRunner().invoke(cli, words)
        assert isinstance(result.exception, Ld3Error), result.output
        assert "cannot write" in str(result.exception)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "plan.json"]


def test_version_and_bare_call() -> None:
    assert __version__ in ld3("--version").stdout
    bare = ld3()
    assert bare.returncode == 0
    assert "Commands:" in bare.stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["solver"], "did you mean 'solvers'"),
        (["xyzzy"], "known: "),
        (["solvers", "--jsno"], "--json"),
        (["solvers", "extra"], "extra"),
        (["learn", "--device", "cudaa"], "device: got 'cudaa'"),
        (["compare", "--device", "cudaa"], "device: got 'cudaa'"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(words: list[str], hint: str) -> None:
    run = ld3(*words)
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.strip().splitlines()) == 1
    assert hint in run.stderr
    assert "Traceback" not in run.stderr


# Help


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_every_option_has_help_and_shows_its_default(command: str, option: click.Option) -> None:
    record = option.get_help_record(click.Context(ALL[command]))
    assert record is not None
    _, text = record
    said, _, default = text.partition("  [")
    assert len(said) > 8 and said.endswith("."), text
    assert default.startswith("default: ") or (option.required and default == "required]"), text


@pytest.mark.parametrize(("command", "spec"), [("learn", RunSpec), ("compare", CompareSpec)])
def test_shown_defaults_are_those_of_the_spec(command: str, spec: type[Settings]) -> None:
    """And every field of a spec has an option, every option a field."""
    options = {str(p.name): p for p in cli.commands[command].params if isinstance(p, click.Option)}
    options["judged"] = options.pop("samples")  # the name of the field in files
    own = {"prompt": "prompts", "label": "classes", "resolution": "height"}
    of_pipelines = {own.get(name, name) for name in options} & set(PipelineOptions.model_fields)
    assert of_pipelines == set(PipelineOptions.model_fields) - {"width"}
    fields = set(spec.model_fields) - {"pipeline", "family", "guidance_to"}
    elsewhere = {*own, *PipelineOptions.model_fields, "file", "resume", "rank_timeout"} - {"batch"}
    assert set(options) - elsewhere == fields
    for name in fields:
        default = spec.model_fields[name].default
        found = re.search(r"\[default: (.*)\]$", str(options[name].help))
        assert found, name
        if default is False:
            assert found[1] == "off", name
        elif isinstance(default, tuple):
            assert found[1] == ",".join(map(str, default)), name
        elif default is not None and default != {}:
            assert found[1] == (f"{default:g}" if isinstance(default, float) else str(default))
    if spec is CompareSpec:
        solver = f"{TEACHER.solver}:{TEACHER.order}:{TEACHER.variant}"
        for name, shown in (("solver", solver), ("grid", TEACHER.grid), ("steps", TEACHER.steps)):
            assert f"[default: {shown}]" in str(options[f"teacher_{name}"].help)


# One notation


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """The specs that a command line asks for; nothing is run."""
    seen: list[Any] = []

    class Stop(Exception):
        pass

    def learn(spec: RunSpec, *_: object, **__: object) -> list[object]:
        seen.append(spec)
        return []

    def stop(spec: object, *_: object, **__: object) -> None:
        seen.append(spec)
        raise Stop

    monkeypatch.setattr("ld3.runs.learn.run_learn", learn)
    monkeypatch.setattr("ld3.runs.family.run_family", stop)
    monkeypatch.setattr("ld3.runs.compare.run.run_compare", stop)

    def specs(*words: str) -> list[Any]:
        seen.clear()
        done = CliRunner().invoke(cli, words)
        assert done.exception is None or isinstance(done.exception, Stop), done.exception
        return list(seen)

    return specs


@pytest.mark.parametrize(
    "forms",
    [
        ["learn --nfe 4,6", "learn --nfe 4 --nfe 6", "learn --nfe=4, --nfe 6"],
        ["learn --recipe epochs=2,rate=0.5", "learn --recipe epochs=2 --recipe rate=0.5"],
        ["learn --label 1,2,3", "learn --label 1 --label 2-3", "learn --label 1-3"],
        ["learn --guidance 1-4", "learn --guidance 1.0-4.0"],
        ["compare --nfe 4,5,6", "compare --nfe 4-6", "compare --nfe 4 --nfe 5-6"],
        ["compare --methods edm,ld3", "compare --methods edm --methods ld3"],
        ["compare --solvers unipc,ipndm:3", "compare --solvers unipc --solvers ipndm:3"],
        ["compare --label 1,2", "compare --label 1-2"],
        ["compare --recipe epochs=2,learn=times", "compare --recipe epochs=2 --recipe learn=times"],
    ],
)
def test_forms_of_a_list_give_the_same_spec(read: Callable[..., Any], forms: list[str]) -> None:
    first, *others = (read(*form.split()) for form in forms)
    assert len(first) == 1
    assert all(other == first for other in others)
    assert first != read(forms[0].split()[0])


def test_lists_and_ranges_are_what_they_say(read: Callable[..., Any], tmp_path: Path) -> None:
    (spec,) = read("learn", "--nfe", "4-10")
    assert (spec.family, spec.nfe) == ((4, 10), (5,))
    assert [spec.guidance for spec in read("learn", "--guidance", "1,2.5,4")] == [1, 2.5, 4]
    (spec,) = read("learn", "--guidance", "1-4")
    assert (spec.guidance, spec.guidance_to) == (1, 4)
    (spec,) = read("compare", "--nfe", "4-6,9")
    assert spec.nfe == (4, 5, 6, 9)
    (spec,) = read("learn", "--model", "diffusers:x", "--label", "0-2,7")
    assert spec.pipeline.classes == (0, 1, 2, 7)
    assert read_seeds("0-3, 70") == [0, 1, 2, 3, 70]
    assert read_seeds("5-5") == [5]
    assert read_scales(["1,2", "4"]) == read_scales(["1", "2,4"]) == [1, 2, 4]
    assert read_scales(["1-3,7.5"]) == [1, 2, 3, 7.5]
    file = tmp_path / "run.toml"
    file.write_text('nfe = "4,6"\nguidance = [1, 2]\n[recipe]\nepochs = 2\n')
    specs = read("learn", "--spec", str(file), "--recipe", "rate=0.5")
    assert [(spec.guidance, spec.nfe) for spec in specs] == [(1, (4, 6)), (2, (4, 6))]
    assert specs[0].recipe == {"epochs": 2, "rate": 0.5}


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("--solver unipc:2", "--solver unipc --order 2"),
        ("--solver unipc:3:bh2", "--solver unipc --order 3 --variant bh2"),
        ("--solver unipc:3:bh2", "--solver unipc --variant bh2"),
        ("--teacher-solver unipc:2:bh2",
         "--teacher-solver unipc --teacher-order 2 --teacher-variant bh2"),
        ("--teacher-solver unipc:2:bh1", "--teacher-order 2"),
        ("--teacher-solver ipndm", "--teacher-solver ipndm"),
    ],
)  # fmt: skip
def test_old_options_are_aliases(read: Callable[..., Any], new: str, old: str) -> None:
    (first,), (second,) = (read("learn", *words.split()) for words in (new, old))
    assert first.make_solver() == second.make_solver()
    assert first.make_preset(5) == second.make_preset(5)
    if "teacher" in new:
        (first,), (second,) = (read("compare", *words.split()) for words in (new, old))
        assert first.teacher == second.teacher


@pytest.mark.parametrize("command", ["learn", "compare"])
@pytest.mark.parametrize("start", ["best", "a.json", "bump:0:2", *METHODS, *SEARCHES])
def test_start_takes_every_method(read: Callable[..., Any], command: str, start: str) -> None:
    (spec,) = read(command, "--start", start)
    assert spec.start == start


@pytest.mark.parametrize("command", ["learn", "compare"])
def test_options_of_both_commands(read: Callable[..., Any], command: str) -> None:
    words = (
        "--valid 9 --batch 3 --reference-steps 77 --preset fast --recipe epochs=1 --pairs 11 "
        "--dtype float64 --distance l1 --resolution 512x768 --negative-prompt no --latents"
    )
    (spec,) = read(command, *words.split())
    assert (spec.valid, spec.batch, spec.reference_steps, spec.pairs) == (9, 3, 77, 11)
    assert spec.make_preset(5).recipe.epochs == 1
    assert (spec.pipeline.height, spec.pipeline.width, spec.pipeline.latents) == (512, 768, True)
    assert spec.pipeline.negative_prompt == "no"


def test_a_comparison_says_its_command(read: Callable[..., Any]) -> None:
    """The command in compare.json gives the same spec again."""
    words = (
        'compare --model diffusers:x --prompt a,b --prompt "it\'s" --label 1,2 --resolution 8x16 '
        "--latents --net-time integer --recipe epochs=2,exact=false,learn=times --preset fast "
        "--start gits --batch 3 --reference-steps 50 --teacher-solver unipc:2:bh2 --full "
        "--negative-prompt 'a b' --solvers unipc:3:bh2,heun --nfe 4,6 --guidance 2"
    )
    (spec,) = read(*shlex.split(words))
    (again,) = read(*shlex.split(command_of(spec))[1:])
    assert again == spec


def test_init_writes_a_model_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    said = runner.invoke(cli, ["init", "my_model_of_init.py"])
    assert said.exit_code == 0 and "learn --model my_model_of_init:make" in said.output
    words = "learn --model my_model_of_init:make --nfe 3 --preset fast --pairs 8 --held-out 8"
    learned = runner.invoke(cli, [*words.split(), "--recipe", "epochs=1", "--out", "runs"])
    assert learned.exit_code == 0, learned.output
    assert list(tmp_path.glob("runs/my_model_of_init-make-*/plan.json"))
    for name in ("my_model_of_init.py", "a-b.py", "model"):  # there already; no module names
        with pytest.raises(Ld3Error, match="FILE: got"):
            runner.invoke(cli, ["init", name], catch_exceptions=False)


def test_versions_of_all_parts() -> None:
    said = CliRunner().invoke(cli, ["--version", "--verbose"]).output
    for part in (__version__, "python", "devices", "torch ", "diffusers"):
        assert part in said


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_help_ends_with_examples_that_parse(name: str) -> None:
    """Commands and options of the examples exist; nothing is run."""
    command, parts = ALL[name], name.split()
    said = CliRunner().invoke(cli, [*parts, "--help"]).output
    for line in EXAMPLES[name]:
        assert line in said
        words = shlex.split(line)
        rest = words[1 + len(parts) :]
        assert words[: 1 + len(parts)] == ["ld3", *parts]
        command.make_context(name, list(rest), resilient_parsing=True)
        if isinstance(command, click.Group):
            assert rest[0] in command.commands
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known | {"--help"}


def test_every_command_has_examples() -> None:
    assert set(ALL) == set(EXAMPLES)


@pytest.mark.parametrize("command", ["learn", "compare"])
def test_the_old_name_of_samples_still_works(command: str) -> None:
    """It reaches the same check, and is not in the help."""
    for name in ("--samples", "--judged"):
        run = CliRunner().invoke(cli, [command, name, "-3"])
        assert isinstance(run.exception, SpecError) and "got '-3'" in str(run.exception)
    assert "--judged" not in CliRunner().invoke(cli, [command, "--help"]).output
