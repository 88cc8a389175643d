"""Nothing a stranger sends can hurt: plans name no code, text steers no terminal, errors are one
line, files are written where and how they should be."""

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.fuzzing import PIPELINES, QUICK
from tests.plans import make_plan

import ld3
from ld3.cli import main
from ld3.cli.say import say
from ld3.errors import Ld3Error, ModelError, StoreError, one_line, printable
from ld3.runs.evaluation.evaluate import run_evaluate
from ld3.runs.evaluation.spec import EvaluateSpec, with_plan
from ld3.store import read_bytes, read_json, read_text, read_toml, write_json
from ld3.zoo.loading import is_safe_to_open

SMALL = ["--nfe", "2", "--pairs", "2", "--held-out", "2", "--preset", "fast", "--start", "logsnr"]
SMALL += ["--teacher-steps", "4", "--recipe", "epochs=1"]

OWN = """
import sys
import torch
import ld3
from pathlib import Path

Path("ran").touch()


def model(function, **more):
    return ld3.FunctionModel(function, ld3.EDM(), "x0", (4,), **more)


def good():
    return model(lambda x, t, cond: x / (1 + t**2))


def raises():
    raise ValueError("first\\nsecond")


def leaves():
    sys.exit(7)


def answer_raises():
    return model(lambda x, t, cond: 1 / 0)


def answer_leaves():
    return model(lambda x, t, cond: sys.exit(0))


def answers_nothing():
    return model(lambda x, t, cond: None)


def no_memory():
    return model(lambda x, t, cond: x + torch.empty(10**15)[:1])


def late():
    calls = []

    def function(x, t, cond):
        calls.append(0)
        if len(calls) > 40:
            raise RuntimeError("too\\nlate")
        return x / (1 + t**2)

    return model(function)


def condition_raises():
    return model(lambda x, t, cond: x, make_conditions=lambda seeds: seeds[99])


def wrong_condition():
    return model(lambda x, t, cond: x, make_conditions=lambda seeds: [1, 2])


def wrong_decoder():
    return model(lambda x, t, cond: x / (1 + t**2), decoder=lambda x: None)


def late_decoder():
    calls = []

    def decoder(x):
        calls.append(0)
        if len(calls) > 3:
            sys.exit(1)
        return x

    return model(lambda x, t, cond: x / (1 + t**2), decoder=decoder)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


def mute():
    raise Mute


def base():
    raise BaseException("all")


def sparse():
    return model(lambda x, t, cond: x.to_sparse())


def no_content():
    return model(lambda x, t, cond: x.to("meta"))


def shape():
    return ld3.FunctionModel(lambda x, t, cond: x, ld3.EDM(), "x0", (-1,))


def schedule():
    return ld3.FunctionModel(lambda x, t, cond: x, "edm", "x0", (4,))


def schedule_class():
    return ld3.FunctionModel(lambda x, t, cond: x, ld3.EDM, "x0", (4,))


def dtype():
    return model(lambda x, t, cond: x, dtype="float32")


def network():
    return torch.nn.Linear(4, 4)


class Odd:
    def __getattribute__(self, name):
        raise ValueError(f"no {name}")


def odd():
    return Odd()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of a user in the current folder; loading it leaves a file `ran`."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def ended(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code, and the error line."""
    with pytest.raises(SystemExit) as end:
        main(words)
    said = capsys.readouterr()
    assert said.err.count("\n") <= 1 and "Traceback" not in said.out + said.err
    return int(end.value.code or 0), said.err.strip()


# Plans


@pytest.mark.parametrize("command", ["sample", "score", "evaluate"])
def test_a_plan_never_names_code_to_run(
    command: str, own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    make_plan("edm", prediction="x0", name=f"{own}:good", shape=(4,)).save(file)
    words = {
        "sample": ["sample", "--plan", str(file), "--seeds", "0"],
        "score": ["score", str(file), "--held-out", "2"],
        "evaluate": ["evaluate", str(file), "--samples", "40"],
    }[command] + ["--out", str(tmp_path / "runs")]
    code, said = ended(capsys, *words)
    assert code == 2 and f"--model {own}:good" in said and "code that would run" in said
    assert not (tmp_path / "ran").exists() and own not in sys.modules
    assert not (tmp_path / "runs").exists()
    with pytest.raises(Ld3Error, match="code that would run"):
        ld3.run_sample(ld3.Plan.load(file), [0])
    code, said = ended(capsys, *words, "--model", f"{own}:good", "--force")  # consent
    assert (code == 0 or "expected a model of images" in said) and (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("diffusers:owner/name", "would be fetched"),
        ("os:getcwd", "code that would run"),
        ("gone.pt", "is not here"),
        (r"diffusers:\\host\share", "would be fetched"),
        ("own", "learned from Python"),
    ],
)
def test_models_that_a_plan_may_not_open(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Ld3Error, match=reason):
        ld3.run_sample(make_plan(name=name), [0])
    with pytest.raises(Ld3Error, match=reason):
        next(ld3.run_score(make_plan(name=name), out=tmp_path))
    make_plan(name=name).save(tmp_path / "plan.json")
    spec = EvaluateSpec.read(with_plan({"what": [str(tmp_path / "plan.json")], "out": tmp_path}))
    with pytest.raises(Ld3Error, match=reason):
        run_evaluate(spec)


def test_a_plan_opens_no_share_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r"""On Windows opening \\host\share\file connects to that host."""
    monkeypatch.chdir(tmp_path)
    for name in ("here.pt", r"\\host\share\a.pt", r"\\?\UNC\host\a.pt"):
        Path(name).write_bytes(b"a checkpoint")  # here a file with backslashes in its name
        assert is_safe_to_open(name) is (name == "here.pt")


def test_a_shipped_model_is_opened_if_it_is_the_one(tmp_path: Path) -> None:
    plan = make_plan("edm", prediction="x0", name="fashion", shape=(1, 28, 28))
    with pytest.raises(Ld3Error, match="plan: got a model with weights"):
        ld3.run_sample(plan, [0])


# Text


def test_printed_text_steers_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    title = "\x1b]0;owned\x07\x9b2J\u202e\r\x08"
    assert printable(f"a{title}b\nc").count("\n") == 1
    assert all(c.isprintable() or c == "\n" for c in printable(title))
    say(title)
    assert capsys.readouterr().out == printable(title) + "\n"
    file = tmp_path / "plan.json"
    make_plan(name=f"x{title}").save(file)
    with pytest.raises(SystemExit):
        main(["show", str(file)])
    said = capsys.readouterr()
    assert "owned" in said.out
    assert all(c.isprintable() or c == "\n" for c in said.out + said.err)


def test_the_command_line_prints_in_one_place_only() -> None:
    folder = Path(ld3.__file__).parent
    loose = [
        str(file.relative_to(folder))
        for file in folder.rglob("*.py")
        if file.name != "say.py" and "files" not in file.parts
        if "click.echo(" in (text := file.read_text("utf-8")) or "\n    print(" in text
    ]
    assert not loose


def test_errors_are_one_line_whatever_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert one_line("a\nb\r\n\tc\x00") == "a b c\\x00"
    assert len(one_line("x" * 10**6)) < 1100
    code, said = ended(capsys, "learn", "--model", "a\nb\x1b[2J" + "c" * 5000)
    assert code == 2 and len(said) < 1100 and "\x1b" not in said


# A model of one's own


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("raises", "got ValueError: first second (own_"),
        ("leaves", "got SystemExit: 7"),
        ("answer_raises", "got ZeroDivisionError: division by zero (own_"),
        ("answer_leaves", "got SystemExit: 0"),
        ("answers_nothing", "got NoneType as its output, expected a tensor"),
        ("no_memory", "out of memory: run fewer samples at a time (--batch 8, --recipe batch=1)"),
        ("late", "got RuntimeError: too late (own_"),
        ("condition_raises", "conditions: got IndexError"),
        ("wrong_condition", "conditions: got list for 2 seeds"),
        ("wrong_decoder", "decode: got NoneType for two samples"),
        ("late_decoder", "decode: got SystemExit: 1 (own_"),
        ("mute", "got Mute: no message (own_"),
        ("base", "got BaseException: all (own_"),
        ("sparse", "got torch.sparse_coo as its output, expected a dense tensor"),
        ("no_content", "got a meta tensor as its output"),
        ("shape", "got shape (-1,), expected the sizes of one sample"),
        ("schedule", "got str as its schedule, without t_min"),
        ("schedule_class", "got the class EDM as its schedule, expected an object of it"),
        ("dtype", "got dtype 'float32', expected that of its network: torch.float32"),
        ("network", "expected an ld3.FunctionModel around your network"),
        ("odd", "model: schedule: got ValueError: no schedule (own_"),
        ("absent", "got no function 'absent'"),
    ],
)
def test_a_model_that_fails_is_one_line(
    function: str, reason: str, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ended(capsys, "learn", "--model", f"{own}:{function}", *SMALL)
    assert code == 2 and reason in said, said


def test_modules_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ended(capsys, "learn", "--model", "no_such_module:function")
    assert (code, said) == (
        2, "ld3: model no_such_module:function: got no module 'no_such_module', expected "
        "no_such_module.py in the current folder or an installed package; `ld3 init my_model.py` "
        "writes a file to begin with",
    )  # fmt: skip
    code, said = ended(capsys, "learn", "--model", "owner/name")
    assert code == 2 and "diffusers:owner/name" in said


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my_model.py", "expected module:function, such as my_model:make"),
        ("models/mine.py", "such as models.mine:make"),
        ("/a/b-c/mine.py", "such as mine:make"),
        ("./my_model.py:draw", "expected a module, not a path: my_model:draw"),
        ("models/mine:draw", "expected a module, not a path: models.mine:draw"),
        ("ld3.no.such:make", "got no module 'ld3.no', expected ld3/no/such.py"),
        (":make", "got ':make', expected package.module:function, such as my_model:make"),
        (".mine:make", "expected package.module:function"),
        ("C:\\models\\mine.py:make", "expected a module, not a path: mine:make"),
        ("C:/models/mine.py:make", "expected a module, not a path: mine:make"),
        ("models\\mine:make", "expected a module, not a path: models.mine:make"),
        (".\\mine.py:make", "expected a module, not a path: mine:make"),
        ("C:\\models\\mine.py", "expected module:function, such as mine:make"),
        ("C:\\pipelines\\sd", "a folder or hub id is diffusers:C:\\pipelines\\sd"),
        ("/:make", "expected a module, not a path"),
    ],
)
def test_files_are_not_modules(name: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ended(capsys, "learn", "--model", name)
    assert code == 2 and reason in said, said


def test_a_module_that_needs_another_says_which(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The module is there, so that its name is not what is wrong."""
    (tmp_path / "needs_another.py").write_text("import no_such_package\n", "utf-8")
    code, said = ended(capsys, "learn", "--model", "needs_another:make")
    assert code == 2 and "No module named 'no_such_package' (needs_another.py, line 1)" in said
    code, said = ended(capsys, "learn", "--model", f"{own}:rases")
    assert code == 2 and "got no function 'rases'" in said and " or " in said, said


def test_in_python_the_cause_is_kept() -> None:
    model = ld3.FunctionModel(lambda x, t, cond: 1 / 0, ld3.EDM(), "x0", (4,))
    with pytest.raises(ModelError, match="ZeroDivisionError") as raised:
        ld3.bind(model)(torch.zeros(2, 4), torch.tensor(1.0))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_what_nobody_thought_of_leaves_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LookupError("lost\nthings")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("ld3.cli.lists.print_table", fail)
    code, said = ended(capsys, "solvers")
    (file,) = tmp_path.glob("ld3-error-*.txt")
    assert code == 1 and str(file) in said and "LookupError: lost things" in said
    assert "report" in said and "in fail" in file.read_text("utf-8")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))  # no place for the file
    code, said = ended(capsys, "solvers")
    assert code == 1 and "LookupError" in said and "cannot be written" in said
    monkeypatch.setattr("ld3.cli.lists.print_table", lambda *_: torch.empty(10**15))
    code, said = ended(capsys, "solvers")
    assert code == 2 and "out of memory" in said and "--batch" in said


# Folders of pipelines


SCHEDULER, UNET = "scheduler/scheduler_config.json", "unet/config.json"
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


def pipeline_folder(folder: Path, changes: dict[str, dict[str, object]]) -> str:
    """A good pipeline in a folder, but for changes in its configs, and the names of its weights."""
    for name, content in PIPELINES()["DDPMScheduler"].items():
        if name in changes and name.endswith(".json"):
            content = json.dumps(json.loads(content) | changes[name]).encode()
        for old, new in changes.get(name, {}).items() if name == WEIGHTS else ():
            content = content.replace(old.encode(), str(new).encode())
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return f"diffusers:{folder}"


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        (SCHEDULER, {"trained_betas": 0.5}, "not iterable"),
        (UNET, {"sample_size": [1, "a", None]}, "invalid literal for int"),
        (WEIGHTS, {"conv_in.weight": "conv_in.weighs"}, "meta tensor"),
    ],
)
def test_a_damaged_pipeline_is_one_line(
    file: str, changes: dict[str, object], reason: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What diffusers loads and cannot be used."""
    model = pipeline_folder(tmp_path / "pipe", {file: changes})
    code, said = ended(capsys, "learn", "--model", model, *QUICK)
    assert code == 2 and f"{model}: cannot be loaded" in said and reason in said, said


def test_diffusers_does_not_litter_the_output(tmp_path: Path) -> None:
    """It warns of configs with unknown settings, with control characters and all."""
    odd: dict[str, object] = {"odd\x1b[2J": "\x1b[2J"}
    model = pipeline_folder(tmp_path / "pipe", {UNET: odd, SCHEDULER: odd})
    words = ["-m", "ld3.cli", "learn", "--model", model, *QUICK, "--out", str(tmp_path / "runs")]
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "") and printable(run.stdout) == run.stdout


# Options and files


@pytest.mark.parametrize(
    "words",
    [
        ["learn", "--guidance", "nan"],
        ["learn", "--guidance", "inf"],
        ["learn", "--seed", "9" * 26],
        ["learn", "--nfe", "100000"],
        ["learn", "--nfe", "1-100000"],
        ["learn", "--recipe", "rate=nan"],
        ["learn", "--recipe", "rate=inf"],
        ["learn", "--recipe", "epochs=99999999999999999999"],
        ["learn", "--rank-timeout", "nan"],
        ["learn", "--device", "meta"],
        ["learn", "--device", "privateuseone"],
        ["learn", "--recipe", "rate=" + "[" * 3000],
        ["learn", "--out", "/".join("a" * 2000)],
        ["show", "/".join("a" * 2000)],
        ["learn", "--model", "."],
        ["learn", "--out", "/dev/null/x"],
        ["learn", "--out", "a\0b"],
        ["learn", "--data", "no-such-folder"],
        ["sample", "--plan", "x.json", "--guidance", "nan"],
        ["show", "a\0b"],
        ["init", "class.py"],
        ["sample", "--plan", "x.json", "--seeds", "9" * 26],
        ["sample", "--plan", "x.json", "--seeds", "0-99999999999"],
        ["show", "/dev/zero"],
        ["show", "."],
        ["show", "a" * 300],
        ["inspect", "/dev/zero"],
        ["report", "/dev/zero"],
        ["zoo", "list", "a" * 300],
        ["learn", "--model", "diffusers:" + "a" * 300],
        ["learn", "--data", "a" * 300],
        ["learn", "--label", "0-999999"],
        ["reproduce", "ablation", "--nfe", "0-999999"],
        ["reproduce", "ablation", "--out", "\udcff"],
    ],
)
def test_bad_options_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ended(capsys, *words)
    assert code == 2 and said.startswith("ld3: ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--nfe", "0"], "nfe: got '0', expected 1 or more"),
        (["--nfe", "4.5"], "nfe: got '4.5', expected a whole number"),
        (["--pairs", "99999999"], "pairs: got '99999999', expected at most 10000"),
        (["--samples", "-1"], "samples: got '-1', expected 0 or more"),
        (["--guidance", "nan"], "guidance: got 'nan', expected a finite number"),
        (["--recipe", "rate=-1"], "recipe rate: got -1.0, expected 0 or more"),
        (["--refine"], "refine: got it with nfe 5, expected a range such as --nfe 4-10"),
        (["--distance", "lpips-vgg:gone"], "LPIPS weights got gone, which is no file"),
        (
            ["--dtype", "x"],
            "dtype: got 'x', expected 'float32', 'float64', 'bfloat16' or 'float16'",
        ),
        (
            ["--model", "fashion-flow", "--distance", "nosuch"],
            "known: auto, chamfer, l1, l2, lpips-",
        ),
    ],
)
def test_lines_say_what_was_got_and_expected(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ended(capsys, "learn", *words)
    assert code == 2 and line in said and "1.79" not in said


def test_what_can_be_checked_is_checked_before_any_work(
    own: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start that does not fit, a folder that cannot be written, and a package that is missing
    cost no evaluation."""
    make_plan("sd").save(tmp_path / "other.json")
    seen: list[float] = []
    with ld3.models.on_evaluation(seen.append):
        learn = ["learn", "--model", f"{own}:good", *SMALL]
        code, said = ended(capsys, *learn, "--start", str(tmp_path / "other.json"))
        assert code == 2 and "range" in said
        code, said = ended(capsys, *learn, "--out", "/dev/null/x")
        assert code == 2 and "cannot write" in said
        monkeypatch.setitem(sys.modules, "tensorboard", None)
        code, said = ended(capsys, *learn, "--tensorboard")
        assert code == 2 and "pip install 'ld3[tracking]'" in said
    assert sum(seen) < 20  # the model is looked at, but no pair is made


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "a.pt"],
        ["convert", "a.pt", "b.safetensors"],
        ["learn", "--model", "a.pt"],
        ["learn", "--data", "a.npz"],
        ["learn", "--data", "a.pkl"],
        ["learn", "--distance", "lpips-vgg:a.pth"],
        ["learn", "--features", "a.pt", "--data", "a.npz"],
        ["import", "a.pt", "--model", "fashion"],
        ["show", "a.json", "--image", "b.png"],
    ],
)
def test_nothing_waits_for_a_pipe(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Opening a pipe that nobody writes to would never end."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.pt", "a.pth", "a.npz", "a.pkl", "a.json"):
        os.mkfifo(name)
    code, said = ended(capsys, *words)
    assert code == 2 and said.startswith("ld3: ")


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(StoreError, match="folder or device"):
            read_bytes(path)
    for path in (Path("a\x00b"), Path("a" * 300)):
        with pytest.raises(StoreError, match="cannot read"):
            read_json(path)
        with pytest.raises(StoreError, match="cannot write"):
            write_json(tmp_path / path, {})
    (tmp_path / "latin").write_bytes(b"a\xe9b")
    for read in (read_text, read_toml, read_json):
        with pytest.raises(StoreError, match="latin"):
            read(tmp_path / "latin")
    (tmp_path / "deep").write_bytes(b"[" * 100_000)
    (tmp_path / "deep.toml").write_bytes(b"a = " + b"[" * 100_000)
    with pytest.raises(StoreError, match=r"not JSON \(nested too deeply\)"):
        read_json(tmp_path / "deep")
    with pytest.raises(StoreError, match=r"not TOML \(nested too deeply\)"):
        read_toml(tmp_path / "deep.toml")
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfone\n")
    assert read_text(tmp_path / "marked") == "one\n"


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o002, 0o664), (0o022, 0o644)])
def test_files_follow_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_json(tmp_path / "a.json", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == mode


def test_writes_do_not_go_through_links(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    (tmp_path / "link.json").symlink_to(kept)
    write_json(tmp_path / "link.json", {"new": 1})
    assert kept.read_text() == "{}" and not (tmp_path / "link.json").is_symlink()
    assert read_json(tmp_path / "link.json") == {"new": 1}
    os.mkfifo(tmp_path / "pipe")  # stands for a device: /dev/zero is safe from root, too
    for place in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(StoreError, match="is a folder or device; nothing was changed"):
            write_json(place, {})
    assert (tmp_path / "pipe").is_fifo() and json.loads(kept.read_text()) == {}


def test_names_of_almost_any_length_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / ("n" * 250 + ".json")
    write_json(file, {"a": 1})
    assert read_json(file) == {"a": 1}


def test_a_plan_that_ends_above_the_last_time_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for schedule in ("sd", "flow", "edm"):
        made = ld3.make_schedule(schedule)
        times = [made.t_max, 0.5 * made.t_max, 0.2 * made.t_max]
        plan = make_plan(schedule, times=times, corrections=False)
        plan.save(tmp_path / "plan.json")
        image = str(tmp_path / "times.png")
        code, _ = ended(capsys, "show", str(tmp_path / "plan.json"), "--image", image)
        assert code == 0


def test_without_matplotlib_results_end_well(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was learned, drawn and scored is there, and a line says what the extra adds."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setenv("COLUMNS", "80")

    def lines(*words: str) -> list[str]:
        with pytest.raises(SystemExit) as end:
            main(words)
        said = capsys.readouterr()
        assert end.value.code == 0, said.err
        assert "pip install 'ld3[report]' adds plots" in " ".join(said.out.split())
        found = said.out.splitlines()
        assert not [line for line in found if "sheet" in line and len(line) > 80]
        return found

    own_model = ["--model", f"{own}:good"]
    plan = lines("learn", *own_model, *SMALL)[-1].split()[-1]
    assert Path(plan).is_file()
    lines("score", plan, *own_model, "--held-out", "2", "--image", "a.png")
    make_plan("edm", prediction="x0", shape=(1, 28, 28)).save(tmp_path / "images.json")
    shipped = ["--model", "fashion", "--force", "--seeds", "0"]
    lines("sample", "--plan", "images.json", *shipped, "--out", "drawn")
    assert sorted(os.listdir("drawn")) == ["0.png", "samples.safetensors"]


# SECURITY.md, sentence by sentence, where no test above or elsewhere does it


def test_nothing_imports_what_could_run_or_fetch() -> None:
    """No pickle, eval, exec or sockets in the package; TorchScript in one place."""
    folder = Path(ld3.__file__).parent
    banned = re.compile(
        r"^\s*(import|from) (pickle|dill|joblib|requests|urllib|socket|http)\b|"
        r"(?<![\w.])(eval|exec)\(|pickle\.load|weights_only=False|trust_remote_code=True",
        re.MULTILINE,
    )
    found = {
        str(file.relative_to(folder)): match.group(0).strip()
        for file in folder.rglob("*.py")
        if (match := banned.search(file.read_text("utf-8")))
    }
    assert found == {"export/zoo_files.py": "from urllib"}  # `ld3 zoo` with an address
    scripts = [f.name for f in folder.rglob("*.py") if "torch.jit.load" in f.read_text("utf-8")]
    assert scripts == ["features.py"]
    loads = [line for f in folder.rglob("*.py") for line in f.read_text("utf-8").splitlines()]
    loads = [line for line in loads if "torch.load(" in line]
    assert loads and all("weights_only=True" in line for line in loads), loads


def test_importing_learning_and_sampling_open_no_connection(
    own: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    for command in ("solvers", "methods", "schedules", "models"):
        with pytest.raises(SystemExit) as end:
            main([command])
        assert end.value.code == 0
    with pytest.raises(SystemExit) as end:
        main(["learn", "--model", f"{own}:good", *SMALL, "--out", "runs"])
    assert end.value.code == 0
    (plan,) = tmp_path.glob("runs/*/plan.json")
    with pytest.raises(SystemExit) as end:
        main(["sample", "--plan", str(plan), "--model", f"{own}:good", "--seeds", "0"])
    assert end.value.code == 0
