"""Ranks that share a command, fail or are killed: the same bytes, and no rank hangs.

    python tools/ranks.py [--quick] [--page docs/results/ranks.md]

Runs commands on a small model with 1, 2 and 3 ranks of gloo, each a process forked from this one,
and compares all files they leave, byte by byte, but for seconds. Then one rank is killed by -9 at
ten moments, spread evenly over its calls of the network, and the command goes on with another
number of ranks. Last, ranks fail in other ways: all must end with code 2 and one line.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import ld3
import ld3.runs.compare.run
import ld3.runs.evaluation.evaluate
import ld3.runs.family
import ld3.runs.pictures
from ld3.cli import main as command
from ld3.report.figures import plots

MODEL = """
import os, time
import ld3
from ld3.zoo.toy import image_mixture

TOY = image_mixture(count=3, rank=2, shape=(1, 8, 8))
CALLS = 0

def forward(x, t, cond):
    global CALLS
    CALLS += 1
    how, _, where = os.environ.get("FAIL", "").partition(" ")
    if where == f"{os.environ['RANK']} {CALLS}":
        if how == "kill":
            os.kill(os.getpid(), 9)
        if how == "bug":
            raise ZeroDivisionError("a bug of this model")
        if how == "hang":
            time.sleep(600)
        if how == "nan":
            return 0 * x / 0
    return TOY.forward(x, t, None)

def make():
    return ld3.FunctionModel(forward, TOY.schedule, "x0", (1, 8, 8))
"""
SMALL = (
    "--model", "small:make", "--nfe", "3", "--pairs", "39", "--valid", "10", "--held-out", "13",
    "--batch", "4", "--preset", "fast", "--recipe", "epochs=1,part=3",
)  # fmt: skip
COMMANDS: dict[str, tuple[str, ...]] = {
    "learn": ("learn", *SMALL),
    "compare": (
        "compare", *SMALL, "--methods", "edm,gits,ld3-times", "--full", "--samples", "42",
        "--features", "features.pt",
    ),
    "evaluate": (
        "evaluate", "edm", "--model", "small:make", "--nfe", "3", "--samples", "520", "--batch",
        "50", "--metrics", "fid-accurate", "--reference-steps", "6", "--features", "features.pt",
    ),
    "sample": ("sample", "--plan", "plan.json", "--model", "small:make", "--seeds", "0-20",
               "--batch", "4"),
}  # fmt: skip
MORE: dict[str, tuple[str, ...]] = {
    "learn --nfe 3-4": ("learn", *SMALL[:3], "3-4", *SMALL[4:]),
    "learn --preset paper-pixel": ("learn", *SMALL, "--preset", "paper-pixel"),
    "learn --gradient-free": ("learn", *SMALL[:-2], "--gradient-free"),
    "learn --start gits": ("learn", *SMALL, "--start", "gits"),
}
TIMED = ("seconds", "sha256", "out", "command")  # differ from run to run, with what depends on them
Row = tuple[str, str, str, str]  # command, tried, how often, different


@dataclass(frozen=True)
class Ended:
    """How a rank came to its end."""

    code: int
    said: str


def launch(world: int, words: tuple[str, ...], out: Path, fail: str = "") -> list[Ended]:
    """Run a command by so many ranks, each forked from this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out.mkdir(parents=True, exist_ok=True)
    children = [_rank(world, rank, port, words, out, fail) for rank in range(world)]
    ended = []
    for rank, child in enumerate(children):
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ended.append(Ended(code, Path(f"said-{rank}").read_text()))
    return ended


def _rank(world: int, rank: int, port: int, words: tuple[str, ...], out: Path, fail: str) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        said = os.open(f"said-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.environ |= {
            "RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{world}", "FAIL": fail,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "TORCH_CPP_LOG_LEVEL": "ERROR",
        }  # fmt: skip
        command([*words, "--out", str(out)])
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        calls = getattr(sys.modules.get("small"), "CALLS", 0)
        Path(f"{out}.calls-{rank}").write_text(str(calls))
        os._exit(code)


def left(out: Path) -> dict[str, bytes]:
    """All files of a folder by name; JSON without what is timed."""
    found = {}
    for file in sorted(out.rglob("*")):
        if file.suffix in (".json", ".jsonl", ".safetensors", ".png"):
            content = file.read_bytes()
            if file.suffix == ".json" and file.name != "plan.json":
                content = json.dumps(_untimed(json.loads(content))).encode()
            found[str(file.relative_to(out))] = content
    return found


def _untimed(value: object) -> object:
    if isinstance(value, dict):
        return {name: _untimed(inner) for name, inner in value.items() if name not in TIMED}
    return [_untimed(inner) for inner in value] if isinstance(value, list) else value


def finished(world: int, words: tuple[str, ...], out: Path) -> dict[str, bytes]:
    """What a command leaves that must come through."""
    ended = launch(world, words, out)
    assert all(rank.code == 0 for rank in ended), ended
    assert not any(rank.said for rank in ended[1:]), ended  # rank 0 alone may show progress
    return left(out)


def worlds(name: str, words: tuple[str, ...], sizes: tuple[int, ...]) -> Row:
    """The same files by several ranks as by one."""
    one = finished(1, words, Path(f"{name}-1"))
    different = 0
    for world in sizes:
        several = finished(world, words, Path(f"{name}-{world}"))
        different += several != one
    files = f"{len(one)} files"
    return f"`{name}`", f"{' and '.join(map(str, sizes))} ranks against 1", files, f"{different}"


def kills(name: str, words: tuple[str, ...], count: int) -> Row:
    """One rank of two killed at even distances in its calls; then three ranks or one go on."""
    whole, different = left(Path(f"{name}-1")), 0
    calls = [int(Path(f"{name}-2.calls-{rank}").read_text()) for rank in range(2)]
    for number in range(count):
        out, rank = Path(f"{name}-killed-{number}"), 1 - number % 2
        moment = 1 + (calls[rank] - 1) * (2 * number + 1) // (2 * count)
        ended = launch(2, words, out, f"kill {rank} {moment}")
        assert ended[rank].code == -9 and ended[1 - rank].code == 2, ended
        different += finished((3, 1)[number // 2 % 2], words, out) != whole
    tried = "a rank of 2 killed by -9, then 1 or 3 ranks"
    return f"`{name}`", tried, f"{count} moments", f"{different}"


FAILURES = {  # how a rank fails: when, options, how both ranks end, how many lines are said
    "a sample that is not finite, on one rank": ("nan 1 40", (), (2, 2), 1),
    "a folder that cannot be written": ("", (), (2, 2), 1),
    "a bug of the model, on one rank": ("bug 1 40", (), (2, 2), 1),
    "a rank killed by -9": ("kill 1 40", (), (2, -9), 1),
    "a rank that hangs": ("hang 1 40", ("--rank-timeout", "0.05"), (2, 2), 1),
    "a wrong option": ("", ("--recipe", "no=1"), (2, 2), 1),
}


def failures(words: tuple[str, ...], quick: bool) -> Iterator[Row]:
    """All ranks end, with code 2 and one line."""
    chosen = {name: FAILURES[name] for name in list(FAILURES)[: 3 if quick else None]}
    for number, (name, (fail, options, codes, lines)) in enumerate(chosen.items()):
        out, begin = Path(f"failed-{number}"), time.monotonic()
        if "written" in name:
            out.mkdir()
            (out / "cache").write_text("no folder")
        ended = launch(2, (*words, *options), out, fail)
        said = [line for rank in ended for line in rank.said.splitlines() if line[:5] == "ld3: "]
        right = tuple(rank.code for rank in ended) == codes and len(said) == lines
        if not right:
            print(name, ended, flush=True)
        took = time.monotonic() - begin
        yield f"`{words[0]}`", name, f"{took:.0f} s", f"{int(not right)}"


def feature_network() -> None:
    """Means and squares of the rows of an image, as TorchScript."""

    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = x.float().mean((1, 3))
            return torch.cat([rows, rows * rows], 1)

    torch.jit.script(Rows()).save("features.pt")  # type: ignore[no-untyped-call]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer moments and commands")
    parser.add_argument("--page", type=Path, help="write the table to this file, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    page = None if args.page is None else args.page.absolute()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("small.py").write_text(MODEL)
        feature_network()
        plots()  # imported here once, not by each rank
        for row in results(args.quick):
            rows.append(row)
            print("  ".join(row), flush=True)
        os.chdir("/")
    if page is not None:
        head = ("command", "tried", "how often, or seconds", "different")
        lines = [f"| {' | '.join(row)} |" for row in (head, ("---",) * 4, *rows)]
        page.parent.mkdir(parents=True, exist_ok=True)
        made = f"Made by `python tools/ranks.py`, ld3 {ld3.__version__}.\n\n"
        page.write_text(made + "\n".join(lines) + "\n")
    sys.exit(any(row[3] != "0" for row in rows))


def results(quick: bool) -> Iterator[Row]:
    """Rows of the table; the plan of the first run is sampled."""
    for name, words in (COMMANDS if quick else COMMANDS | MORE).items():
        yield worlds(name, words, (2,) if quick else (2, 3))
        if name == "learn":
            (plan,) = Path("learn-1").glob("*/plan.json")
            Path("plan.json").write_bytes(plan.read_bytes())
    for name in ("learn",) if quick else ("learn", "compare", "evaluate"):
        yield kills(name, COMMANDS[name], 1 if quick else 10)
    yield from failures(COMMANDS["learn"], quick)


if __name__ == "__main__":
    main()
