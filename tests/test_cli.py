"""The command line as a user meets it: a new process, what it prints, how it ends."""

import json
import subprocess
import sys

import pytest

from ld3 import METHODS, SOLVERS, __version__
from ld3.schedules import SCHEDULES
from ld3.searches.registry import SEARCHES


def ld3(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ld3.cli", *words], capture_output=True, text=True, check=False
    )


def test_help_does_not_load_torch() -> None:
    """What makes it answer at once; wall time itself is the benchmark's business."""
    code = (
        "import sys, ld3.cli\n"
        "try: ld3.cli.main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
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
        ("methods", {*METHODS, *SEARCHES}),
        ("schedules", set(SCHEDULES)),
    ],
)
def test_lists(command: str, names: set[str]) -> None:
    listed = ld3(command)
    assert listed.returncode == 0
    lines = listed.stdout.splitlines()
    assert {line.split()[0] for line in lines[1:]} == names  # one line each
    rows = json.loads(ld3(command, "--json").stdout)
    assert {row["name"] for row in rows} == names


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
        (["learn", "--device", "cudaa"], "device: got 'cudaa', wanted one that torch has"),
        (["compare", "--device", "cudaa"], "device: got 'cudaa', wanted one that torch has"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(words: list[str], hint: str) -> None:
    run = ld3(*words)
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.strip().splitlines()) == 1
    assert hint in run.stderr
    assert "Traceback" not in run.stderr
