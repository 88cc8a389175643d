"""Every tutorial done literally, as a newcomer would: a new environment, the built wheel, a folder
outside of the repository.

    python tools/tutorials.py                       # all pages
    python tools/tutorials.py --only first-plan     # one page
    python tools/tutorials.py --page docs/results/tutorials.md

Blocks of `bash` and `python` run in the order of the page, in one folder; a block of `text` below
one that ran must be what it printed. Left out are blocks that install packages, since that is what
this script does first, and those that need a published checkpoint, a GPU or a running ComfyUI.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from test_docs import Block, read, same_output  # noqa: E402

PAGES = ROOT / "docs" / "tutorials"
LEFT_OUT = re.compile(r"installs packages|published checkpoint|ComfyUI")
EXTRAS = "report,diffusers"  # all that the pages name
ONCE = """\
import contextlib, io, json, subprocess, sys
sys.path.insert(0, "")
names = {"__name__": "tutorial"}
for kind, code in json.load(open(sys.argv[1], encoding="utf-8")):
    out = io.StringIO()
    if kind == "bash":
        out.write(subprocess.run(["bash", "-ec", code], check=True, stdout=subprocess.PIPE,
                                 text=True).stdout)
    else:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "tutorial", "exec"), names)
    print(json.dumps(out.getvalue()), flush=True)
"""


@dataclass(frozen=True)
class Done:
    page: str
    ran: int
    left_out: int
    seconds: float  # of processor time
    fault: str


def run_page(page: Path, python: Path, folder: Path) -> Done:
    """The page's blocks in a new folder; what went wrong, if anything."""
    folder.mkdir(parents=True)
    blocks = read(page.read_text("utf-8"))[0]
    ours = [b for b in blocks if b.kind in ("bash", "python")]
    run = [b for b in ours if not (b.excused and LEFT_OUT.search(b.excused))]
    steps = folder / ".steps.json"
    steps.write_text(json.dumps([(b.kind, b.code) for b in run]), "utf-8")
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PATH": path}
    begin = _spent()
    done = subprocess.run(
        [python, "-c", ONCE, steps.name], cwd=folder, env=env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    seconds = _spent() - begin
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    fault = done.stderr.strip()[-600:] if done.returncode else wrong_output(blocks, run, printed)
    return Done(page.stem, len(printed), len(ours) - len(run), seconds, fault)


def _spent() -> float:
    """Processor seconds of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wrong_output(blocks: list[Block], run: list[Block], printed: list[str]) -> str:
    """Which shown output is not what was printed, or nothing."""
    for before, shown in pairwise(blocks):
        if shown.kind == "text" and shown.follows and before in run:
            got = printed[run.index(before)]
            if not same_output(shown.code, got):
                return f"line {shown.line}: shown {shown.code!r}, printed {got!r}"
    return ""


def new_environment(folder: Path) -> Path:
    """A Python with nothing but the wheel of this checkout and the extras."""
    quiet = ["--quiet", "--disable-pip-version-check"]
    wheels = folder / "wheel"
    pip = [sys.executable, "-m", "pip", "wheel", *quiet, "--no-deps", "-w", str(wheels), str(ROOT)]
    subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
    (wheel,) = wheels.glob("ld3-*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run(
        [python, "-m", "pip", "install", *quiet, *constraints, f"{wheel}[{EXTRAS}]"],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return python


def table(found: list[Done]) -> str:
    lines = ["Made by `python tools/tutorials.py`.", ""]
    lines += ["| tutorial | blocks run | left out | seconds | result |", "|---|---|---|---|---|"]
    for done in found:
        lines.append(
            f"| {done.page} | {done.ran} | {done.left_out} | {done.seconds:.0f} | "
            f"{done.fault or 'as written'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    pages = sorted(PAGES.glob("*.md"))
    parser.add_argument("--only", help="name of one page", choices=[page.stem for page in pages])
    parser.add_argument("--python", type=Path, help="environment to use instead of a new one")
    parser.add_argument("--page", type=Path, help="Markdown file for the table")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ld3-tutorials-") as name:
        folder = Path(name)
        python = (args.python or new_environment(folder)).absolute()
        found = []
        for page in pages:
            if args.only in (None, page.stem):
                found.append(run_page(page, python, folder / page.stem))
                print(f"{found[-1].page}: {found[-1].seconds:.0f} s, {found[-1].fault or 'fine'}")
    print(table(found), end="")
    if args.page is not None:
        args.page.write_text(table(found), "utf-8")
    sys.exit(any(done.fault for done in found))


if __name__ == "__main__":
    main()
