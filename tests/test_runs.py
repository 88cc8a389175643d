"""`ld3 learn`, `sample`, `show` as a user runs them, on a model of one's own and a shipped one."""

import io
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread
from safetensors.torch import load_file

from ld3.cli import cli, main
from ld3.errors import Ld3Error, SpecError
from ld3.runs.spec import RunSpec
from ld3.seeds import RANGES

MODEL = """
import time, torch
from ld3 import FunctionModel
from ld3.zoo.toy import mixture

toy = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)


def make():
    return FunctionModel(toy.forward, toy.schedule, "x0", (2,))


def slow():
    def forward(x, t, cond):
        time.sleep(0.002)
        return toy.forward(x, t, cond)

    return FunctionModel(forward, toy.schedule, "x0", (2,))


def other():
    apart = mixture([[-0.5, 0.3], [0.5, -0.4]], 0.2)
    return FunctionModel(apart.forward, toy.schedule, "x0", (2,))


def broken():
    return FunctionModel(lambda x, t, cond: x * float("nan"), toy.schedule, "x0", (2,))


def stopped():
    def forward(x, t, cond):
        exec("raise KeyboardInterrupt")

    return FunctionModel(forward, toy.schedule, "x0", (2,))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ld3.cli", *words]


def ld3(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), cwd=place, capture_output=True, text=True, check=False)


def inside(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, which saves loading torch."""
    out, err = io.StringIO(), io.StringIO()
    sys.modules.pop("mine", None)  # that of another test
    stopped = pytest.raises(SystemExit)
    with chdir(place), redirect_stdout(out), redirect_stderr(err), stopped as end:
        main(words)
    code = end.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


SMALL = ("--pairs", "16", "--held-out", "16", "--nfe", "4")


def test_learn_show_and_sample_a_model_of_ones_own(place: Path) -> None:
    run = ld3(place, "learn", "--model", "mine:make", *SMALL, "--nfe", "3", "--solver", "unipc")
    assert run.returncode == 0, run.stderr
    assert "learned" in run.stdout
    assert "of that of the best known grid" in run.stdout
    plans = sorted(place.glob("runs/*/plan.json"))
    assert len(plans) == 2
    assert all((plan.parent / "times.png").stat().st_size > 1000 for plan in plans)
    content = json.loads(plans[-1].read_text())
    assert content["nfe"] == 4
    assert content["scores"]["learned"]["distance"] < content["scores"]["logsnr"]["distance"]
    lines = (plans[-1].parent / "progress.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == list(range(1, len(lines) + 1))

    again = ld3(place, "learn", "--model", "mine:make", *SMALL, "--nfe", "3", "--solver", "unipc")
    first, second = ([x for x in r.stdout.splitlines() if "seconds" not in x] for r in (run, again))
    assert first == second  # finished runs are reported, not run again

    shown = ld3(place, "show", str(plans[-1]), "--image", "t.png")
    assert "unipc-3 bh1, 4 evaluations" in shown.stdout
    assert (place / "t.png").exists()
    drawn = ld3(
        place, "sample", "--plan", str(plans[-1]), "--model", "mine:make", "--seeds", "0-4,9"
    )
    assert drawn.returncode == 0, drawn.stderr
    samples = load_file(place / "samples" / "samples.safetensors")["samples"]
    assert samples.shape == (6, 2)
    one = ("--seeds", "9", "--out", "one")
    ld3(place, "sample", "--plan", str(plans[-1]), "--model", "mine:make", *one)
    assert torch.allclose(
        load_file(place / "one" / "samples.safetensors")["samples"][0], samples[5]
    )

    words = ("--model", "mine:make", "--start", str(plans[-1]), "--learn", "times", "--fresh")
    other = ld3(place, "learn", *words, *SMALL, "--solver", "unipc")
    assert other.returncode == 0, other.stderr


def test_learn_a_shipped_model(place: Path) -> None:
    run = ld3(place, "learn", "--pairs", "8", "--held-out", "8", "--samples", "20", "--nfe", "3")
    assert run.returncode == 0, run.stderr
    assert "Fréchet distance from 20 samples only" in run.stdout
    (plan,) = place.glob("runs/*/plan.json")
    assert (plan.parent / "samples.png").stat().st_size > 1000
    moved = json.loads(plan.read_text())
    moved["model"]["digest"] = "0" * 16
    (place / "other.json").write_text(json.dumps(moved))
    refused = ld3(place, "sample", "--plan", "other.json", "--seeds", "0-3")
    assert refused.returncode == 2
    assert "for which the plan was learned" in refused.stderr
    forced = ld3(place, "sample", "--plan", "other.json", "--seeds", "0-7", "--force")
    assert forced.returncode == 0, forced.stderr
    assert (place / "samples" / "sheet.png").exists()
    pixels = imread(place / "samples" / "7.png")
    assert pixels.shape[:2] == (28, 28)
    wanted = load_file(place / "samples" / "samples.safetensors")["samples"][7, 0]
    shown = torch.from_numpy(pixels[..., 0].copy())
    assert (2 * shown - 1 - wanted.clamp(-1, 1)).abs().max() < 0.5 / 127


def interrupted(
    place: Path, wait: float, how: signal.Signals, *words: str, lines: int = 0
) -> tuple[int, str]:
    """Exit code and last line of a run that is stopped `wait` seconds after its first state, and so
    many lines of progress, are written."""
    process = subprocess.Popen(
        command(*words), cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # even in a background job
    )  # fmt: skip
    out = words[words.index("--out") + 1]
    deadline = time.monotonic() + 120
    file = f"{out}/*/state-0.safetensors"

    def begun() -> bool:
        logs = [log.read_text() for log in place.glob(f"{out}/*/progress.jsonl")]
        return bool(list(place.glob(file))) and sum(log.count("\n") for log in logs) >= lines

    while not begun() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(wait)
    process.send_signal(how)
    _, said = process.communicate()
    return process.returncode, said


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(place: Path) -> None:
    """Ten times, at random."""
    words = ("learn", "--model", "mine:slow", *SMALL)
    whole = ld3(place, *words, "--out", "whole")
    assert whole.returncode == 0, whole.stderr
    chance = random.Random(4)
    for _ in range(10):
        interrupted(place, chance.uniform(0, 5), signal.SIGKILL, *words, "--out", "parts")
    assert ld3(place, *words, "--out", "parts").returncode == 0
    for name in ("plan.json", "state-0.safetensors", "progress.jsonl"):
        (first,), (second,) = place.glob(f"whole/*/{name}"), place.glob(f"parts/*/{name}")
        assert first.read_bytes() == second.read_bytes(), name


def test_ctrl_c_leaves_a_plan_and_the_run_goes_on(place: Path) -> None:
    words = ("learn", "--model", "mine:slow", *SMALL, "--recipe", "epochs=200", "--out", "parts")
    code, said = interrupted(place, 0.3, signal.SIGINT, *words)
    assert code == 130
    assert said.strip().splitlines()[-1].startswith("ld3: interrupted; the best plan so far is")
    (so_far,) = place.glob("parts/*/plan-so-far.json")
    drawn = ld3(place, "sample", "--plan", str(so_far), "--model", "mine:slow", "--seeds", "0-3")
    assert drawn.returncode == 0, drawn.stderr
    assert ld3(place, *words).returncode == 0
    assert not so_far.exists()
    assert (so_far.parent / "plan.json").exists()


def test_ctrl_c_inside_of_text_that_is_run_ends_with_the_same_code(place: Path) -> None:
    """Python kills itself with SIGINT at its end after that, although the exception was caught."""
    run = ld3(place, "learn", "--model", "mine:stopped", *SMALL)
    assert run.returncode == 130
    assert run.stderr.strip() == "ld3: interrupted"


def test_best_races_four_starts_and_keeps_the_best(place: Path) -> None:
    run = ld3(place, "learn", "--model", "mine:make", *SMALL, "--preset", "best", "--tensorboard")
    assert run.returncode == 0, run.stderr
    (path,) = place.glob("runs/*/plan.json")
    plan = json.loads(path.read_text())
    log = [json.loads(line) for line in (path.parent / "progress.jsonl").read_text().splitlines()]
    chosen = plan["learned"]["starts"]["chosen"]
    assert len(chosen) == 4
    by_start = {name: [line for line in log if line["start"] == name] for name in chosen}
    ends = [lines[-1] for lines in by_start.values()]
    total = max(end["iteration"] for end in ends)
    early, late = math.ceil(total / 8), math.ceil(total / 2)
    assert sorted(end["iteration"] for end in ends) == [early, early, late, total]

    def best_at(iteration: int) -> dict[str, float]:
        """Of those that came so far."""
        return {
            name: lines[iteration - 1]["best"]
            for name, lines in by_start.items()
            if len(lines) >= iteration
        }

    first, second = best_at(early), best_at(late)
    assert max(first[name] for name in second) <= min(first[n] for n in first if n not in second)
    (winner,) = (name for name, lines in by_start.items() if len(lines) == total)
    assert second[winner] == min(second.values())
    assert plan["learned"]["validation"] == by_start[winner][-1]["best"]
    found = plan["learned"]["starts"]["evaluations"]
    assert plan["learned"]["evaluations"] == found + sum(end["evaluations"] for end in ends)
    assert list(path.parent.glob("tensorboard/events*"))
    assert {"gits-cifar10", "ays-sd15", "edm"} <= set(plan["scores"])


def test_words_from_a_file(place: Path) -> None:
    (place / "run.toml").write_text('model = "mine:make"\nnfe = 3\npairs = 8\nheld_out = 8\n')
    run = ld3(place, "learn", "--spec", "run.toml", "--nfe", "2")
    assert run.returncode == 0, run.stderr
    assert "2 evaluations" in run.stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["learn", "--model", "fashon"], "did you mean 'fashion'"),
        (["learn", "--model", "mine:nothing"], "nothing"),
        (["learn", "--model", "nowhere:make"], "nowhere"),
        (["learn", "--model", "mine:broken"], "finite"),
        (["learn", "--solver", "unipx"], "did you mean 'unipc'"),
        (["learn", "--solver", "heun", "--nfe", "5"], "multiple of 2"),
        (["learn", "--order", "9"], "one of"),
        (["learn", "--nfe", "0"], "expected 1 or more"),
        (["learn", "--nfe", "x"], "nfe: got 'x'"),
        (["learn", "--preset", "fats"], "did you mean 'fast'"),
        (["learn", "--distance", "l3", "--model", "mine:make"], "known: "),
        (["learn", "--learn", "all"], "times+net"),
        (["learn", "--start", "emd"], "did you mean 'edm'"),
        (["learn", "--dtype", "float8"], "float32"),
        (["learn", "--slope", "steep"], "secant"),
        (["learn", "--recipe", "gama=1"], "did you mean 'gamma'"),
        (["learn", "--recipe", "gamma=much"], "something like 0.0"),
        (["learn", "--recipe", "gamma"], "--recipe: got 'gamma', expected NAME=VALUE"),
        (["learn", "--recipe", "gamma=-1"], "gamma: got -1"),
        (["learn", "--recipe", "batch=0"], "batch: got 0"),
        (["learn", "--recipe", "power=nan"], "power: got nan"),
        (["learn", "--teacher-solver", "unipx"], "did you mean 'unipc'"),
        (["learn", "--teacher-grid", "emd"], "did you mean 'edm'"),
        (["learn", "--teacher-steps", "0"], "expected 1 or more"),
        (["learn", "--model", "mine:make", "--dtype", "float64"], "let make take an argument"),
        (["learn", "--spec", "bad.toml"], "not TOML"),
        (["learn", "--spec", "words.toml"], "did you mean 'solver'"),
        (["learn", "--spec", "none.toml"], "No such file"),
        (["learn", "--model", "mine:make", "--out", "mine.py"], "cannot write"),
        (["show", "none.json"], "No such file"),
        (["show", "mine.py"], "not JSON"),
        (["sample", "--plan", "none.json"], "No such file"),
        (
            ["sample", "--plan", "none.json", "--seeds", "3-1"],
            "--seeds: got 3-1, expected rising ranges",
        ),
        (["sample", "--plan", "none.json", "--seeds", "a"], "such as 0-63"),
        (["sample", "--plan", "none.json", "--seeds", ""], "--seeds: got '' with an empty part"),
        (["sample", "--plan", "none.json", "--seeds", "0-2000000"], "at most 1000000"),
        (["learn", "--nfe", "4,6-9"], "either a list such as 4,6 or one range such as 4-10"),
        (["learn", "--nfe", "9-4"], "nfe: got 9-4, expected a rising range"),
        (["learn", "--guidance", "much"], "guidance: got 'much'"),
        (["learn", "--solver", "unipc:x"], "NAME:ORDER"),
        (["learn", "--solver", "unipc:3", "--order", "3"], "give one of them"),
        (["learn", "--solver", "unipc:3:bh9"], "bh9"),
        (["learn", "--start", "ld3"], "unknown start 'ld3'"),
        (["learn", "--start", "none.json", "--model", "mine:make"], "No such file"),
        (["learn", "--batch", "0"], "batch: got '0'"),
        (["learn", "--model", "mine:make", "--label", "1"], "classes"),
        (["learn", "--label", "one"], "--label: got 'one'"),
        (["compare", "--start", "emd"], "did you mean 'edm'"),
        (["compare", "--preset", "fats"], "did you mean 'fast'"),
        (["compare", "--recipe", "gama=1"], "did you mean 'gamma'"),
        (["sample"], "--plan"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(place: Path, words: list[str], hint: str) -> None:
    (place / "bad.toml").write_text("model = ")
    (place / "words.toml").write_text('solvr = "unipc"')
    run = inside(place, *words)
    assert run.returncode == 2, run.stdout + run.stderr
    assert len(run.stderr.strip().splitlines()) == 1, run.stderr
    assert hint in run.stderr


def test_a_full_disk_is_one_line_and_the_run_goes_on_after_it(place: Path) -> None:
    """No file may grow beyond a limit: writing fails as it does on a full disk."""
    words = ("learn", "--model", "mine:make", *SMALL, "--pairs", "8", "--out", "parts")
    for limit in (100, 1000, 4000):
        run = subprocess.run(
            command(*words), cwd=place, capture_output=True, text=True, check=False,
            preexec_fn=lambda limit=limit: resource.setrlimit(
                resource.RLIMIT_FSIZE, (limit, limit)
            ),
        )  # fmt: skip
        assert run.returncode == 2, run.stdout + run.stderr
        assert len(run.stderr.strip().splitlines()) == 1, run.stderr
        assert "cannot write" in run.stderr
        assert not list(place.rglob("*.tmp"))
    after = ld3(place, *words)
    assert after.returncode == 0, after.stderr
    whole = ld3(place, *words[:-1], "whole")
    assert whole.returncode == 0
    (first,), (second,) = place.glob("parts/*/plan.json"), place.glob("whole/*/plan.json")
    assert first.read_bytes() == second.read_bytes()


words = st.sampled_from([*RunSpec.model_fields, "nonsense", ""])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["fashion", "unipc", "float32", "times", "paper-pixel", "a.json", "best"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(st.dictionaries(words, values, max_size=4))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_spec_is_read_or_refused_with_one_line(content: dict[str, object]) -> None:
    try:
        spec = RunSpec.read(content)
    except Ld3Error as error:
        assert len(str(error).splitlines()) == 1
        assert len(str(error)) < 600
    else:
        assert RunSpec.read(spec.model_dump()) == spec


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_spec_file_is_read_or_refused(content: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(content)
        file.flush()
        try:
            RunSpec.read({}, Path(file.name))
        except Ld3Error as error:
            assert len(str(error).splitlines()) == 1


def numbers(folder: Path) -> dict[str, object]:
    """What was learned in a run."""
    plan = json.loads((folder / "plan.json").read_text())
    return {name: plan[name] for name in ("times", "net_times", "corrections")}


def stamps(place: Path, *purposes: str) -> dict[Path, int]:
    """When the stored pairs of these purposes were written, by file."""
    firsts = {"training": 0, "validation": 1, "held-out": 2}
    found = {}
    for file in place.glob("cache/pairs/*"):
        first = int(load_file(file)["seeds"][0]) // 1_000_000_000
        if first in (firsts[purpose] for purpose in purposes):
            found[file] = file.stat().st_mtime_ns
    return found


TINY = (
    "learn", "--model", "mine:make", "--pairs", "8", "--valid", "8", "--held-out", "8",
    "--nfe", "3", "--recipe", "epochs=1",
)  # fmt: skip


def test_options_of_scoring_do_not_learn_again(place: Path) -> None:
    assert inside(place, *TINY).returncode == 0
    (folder,) = place.glob("runs/*/plan.json")
    folder = folder.parent
    learned, pairs = numbers(folder), stamps(place / "runs", "training", "validation")
    files = {file: file.stat().st_mtime_ns for file in folder.glob("*[0-9].safetensors")}
    files[folder / "result.json"] = (folder / "result.json").stat().st_mtime_ns
    assert len(files) == 2 and len(pairs) == 6  # four of them to check the teacher
    before = json.loads((folder / "plan.json").read_text())["scores"]["learned"]
    for more in (
        ("--held-out", "12"),
        ("--samples", "50"),
        ("--device", "cpu:0"),
        ("--batch", "3"),
    ):
        run = inside(place, *TINY, *more)
        assert run.returncode == 0, run.stderr
        assert list(place.glob("runs/*/plan.json")) == [folder / "plan.json"]
        assert numbers(folder) == learned
        assert stamps(place / "runs", "training", "validation") == pairs
        assert {file: file.stat().st_mtime_ns for file in files} == files
        after = json.loads((folder / "plan.json").read_text())["scores"]["learned"]
        assert (after == before) == (more[0] != "--held-out")


def test_fresh_makes_pairs_and_scores_again(place: Path) -> None:
    assert inside(place, *TINY).returncode == 0
    files = [file for file in place.glob("runs/**/*") if file.suffix in (".json", ".safetensors")]
    before = {file: file.stat().st_mtime_ns for file in files}
    kinds = {file.parent.name for file in files}
    assert {"pairs", "scores"} <= kinds
    (folder,) = place.glob("runs/*/plan.json")
    learned = numbers(folder.parent)
    assert inside(place, *TINY, "--fresh").returncode == 0
    assert all(file.stat().st_mtime_ns > before[file] for file in files)
    assert numbers(folder.parent) == learned


def test_what_is_damaged_is_made_again(place: Path) -> None:
    """One bit flipped in every file: pairs, scores, starts, state."""
    assert inside(place, *TINY).returncode == 0
    (folder,) = place.glob("runs/*/plan.json")
    learned, whole = numbers(folder.parent), {}
    stored = [*place.glob("runs/**/*.safetensors"), *place.glob("runs/cache/**/*.json")]
    for file in (*stored, folder.parent / "starts.json"):
        whole[file] = file.read_bytes()
        middle = 3 * len(whole[file]) // 4
        flipped = bytes([whole[file][middle] ^ 1])
        file.write_bytes(whole[file][:middle] + flipped + whole[file][middle + 1 :])
    (folder.parent / "result.json").unlink()
    assert inside(place, *TINY).returncode == 0
    assert numbers(folder.parent) == learned
    for file, content in whole.items():
        if file.suffix == ".json":  # where a seventeenth digit may say nothing
            assert json.loads(file.read_bytes()) == json.loads(content), file
        else:
            assert file.read_bytes() == content, file


def test_no_line_of_progress_is_lost_between_starts(place: Path) -> None:
    words = (
        "learn", "--model", "mine:slow", "--preset", "best", "--recipe", "epochs=1", "--pairs",
        "48", "--valid", "8", "--held-out", "4", "--nfe", "3",
    )  # fmt: skip
    assert ld3(place, *words, "--out", "whole").returncode == 0
    for lines in (2, 6):  # in the first round of the race, and in the second
        interrupted(place, 0.05, signal.SIGKILL, *words, "--out", "parts", lines=lines)
        (log,) = place.glob("parts/*/progress.jsonl")
        assert len(log.read_text().splitlines()) >= lines
    assert ld3(place, *words, "--out", "parts").returncode == 0
    (whole,), (parts,) = (place.glob(f"{out}/*/progress.jsonl") for out in ("whole", "parts"))
    assert len(whole.read_text().splitlines()) == 4 * 1 + 2 * 2 + 3  # of 6 iterations
    assert parts.read_bytes() == whole.read_bytes()
    assert numbers(parts.parent) == numbers(whole.parent)


def test_a_plan_start_is_known_by_its_content(place: Path) -> None:
    assert inside(place, *TINY).returncode == 0
    (first,) = place.glob("runs/*/plan.json")
    plan = json.loads(first.read_text())

    def folders(start: str) -> set[str]:
        run = inside(place, *TINY, "--start", start, "--out", "starts")
        assert run.returncode == 0, run.stderr
        return {path.parent.name for path in place.glob("starts/*/plan.json")}

    (place / "a.json").write_text(json.dumps(plan))
    (place / "b.json").write_text(json.dumps(plan | {"scores": {}}))
    one = folders("a.json")
    assert len(one) == 1
    assert folders("b.json") == one  # another path, the same times
    plan["times"][1] *= 1.01
    (place / "a.json").write_text(json.dumps(plan))
    assert len(folders("a.json")) == 2  # the same path, other times


@pytest.mark.parametrize(
    "words",
    [
        ("learn", "--seed", str(RANGES["training"].blocks)),
        ("learn", "--seed", "-1"),
        ("learn", "--pairs", str(RANGES["training"].block + 1)),
        ("learn", "--valid", str(RANGES["validation"].block + 1)),
        ("compare", "--pairs", str(RANGES["training"].block + 1)),
        ("compare", "--valid", str(RANGES["validation"].block + 1)),
    ],
)
def test_seeds_beyond_the_table_are_refused(words: tuple[str, ...]) -> None:
    """So training noise cannot be held-out noise."""
    with pytest.raises(SpecError, match=rf"{words[1][2:]}: got '{words[2]}'"):
        CliRunner().invoke(cli, words, catch_exceptions=False)


def test_compare_gives_the_plan_of_learn_to_the_bit(place: Path) -> None:
    same = (
        "--model", "mine:make", "--pairs", "8", "--valid", "8", "--teacher-steps", "15",
        "--held-out", "8", "--nfe", "3", "--recipe", "epochs=2",
    )  # fmt: skip
    assert inside(place, "learn", *same, "--seed", "0").returncode == 0
    run = inside(place, "compare", *same, "--methods", "ld3")
    assert run.returncode == 0, run.stderr
    (learned,), (compared,) = (
        place.glob(f"{folder}/result.json") for folder in ("runs/*", "compare/cache/learned/*")
    )
    ours, theirs = (json.loads(file.read_text()) for file in (learned, compared))
    assert ours["key"] == theirs["key"]
    assert ours["content"]["tuned"] == theirs["content"]["tuned"] == numbers(learned.parent)
    assert ours["content"]["tuned"]["corrections"] is not None
    before = compared.stat().st_mtime_ns
    assert inside(place, "compare", *same, "--methods", "ld3").returncode == 0
    assert compared.stat().st_mtime_ns == before
    start = str(learned.parent / "plan.json")
    again = inside(place, "compare", *same, "--methods", "ld3", "--fresh")
    assert again.returncode == 0, again.stderr
    assert compared.stat().st_mtime_ns > before
    other = inside(place, "compare", *same, "--methods", "ld3", "--start", start)
    assert other.returncode == 0, other.stderr
    assert "failed" not in other.stdout
    assert len(list(place.glob("compare/cache/learned/*/result.json"))) == 2


def test_learning_starts_from_a_search(place: Path) -> None:
    run = inside(place, *TINY, "--start", "gits")
    assert run.returncode == 0, run.stderr
    (path,) = place.glob("runs/*/plan.json")
    assert json.loads(path.read_text())["learned"]["start"] == "gits"


def test_sample_and_score_with_another_model(place: Path) -> None:
    assert inside(place, *TINY).returncode == 0
    (path,) = map(str, place.glob("runs/*/plan.json"))
    drawn = []
    for model, *more in (("mine:make",), ("mine:slow",), ("mine:make", "--batch", "2")):
        asked = ("sample", "--plan", path, "--seeds", "0-4", "--model", model)
        run = inside(place, *asked, *more)
        assert run.returncode == 0, run.stderr
        drawn.append(load_file(place / "samples" / "samples.safetensors")["samples"])
    assert all(torch.equal(drawn[0], other) for other in drawn[1:])
    for words in (("sample", "--plan", path), ("score", path, "--held-out", "8")):
        refused = inside(place, *words, "--model", "mine:other")
        assert refused.returncode == 2 and "for which the plan was learned" in refused.stderr
        forced = inside(place, *words, "--model", "mine:other", "--force", "--batch", "5")
        assert forced.returncode == 0, forced.stderr
    nameless = json.loads(Path(path).read_text())
    nameless["model"]["name"] = "own"
    (place / "own.json").write_text(json.dumps(nameless))
    refused = inside(place, "sample", "--plan", "own.json", "--seeds", "0")
    assert refused.returncode == 2 and "--model" in refused.stderr
    assert inside(place, "sample", "--plan", "own.json", "--model", "mine:make").returncode == 0


def test_an_unwritable_folder_loses_nothing(place: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (place / "locked").mkdir(mode=0o500)
    run = ld3(place, "learn", "--model", "mine:make", *SMALL, "--out", "locked")
    assert run.returncode == 2
    assert "Permission denied" in run.stderr
