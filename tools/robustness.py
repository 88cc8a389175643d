"""What is lost when things go wrong: kills, shared folders, damaged files, full disks.

    python tools/robustness.py [--kills 100] [--page docs/results/robustness.md]

Runs `ld3 learn` and `ld3 compare` on a small model, each in a process forked from this one, and
compares what they leave with undisturbed runs, byte by byte. "Lost" counts runs that ended with
another result than the undisturbed one.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import ld3
from ld3.cli import main as command
from ld3.zoo.toy import mixture

SMALL = ("--pairs", "8", "--valid", "8", "--held-out", "8", "--batch", "4", "--preset", "fast")
LEARN = ("learn", "--model", "small:make", "--nfe", "3", *SMALL, "--recipe", "epochs=3")
COMPARE = (
    "compare", "--model", "small:make", "--methods", "edm,gits,ld3", "--nfe", "3", *SMALL,
    "--recipe", "epochs=2",
)  # fmt: skip
Row = tuple[str, str, str, str]  # tried, how often, lost, note


def small(scale: float = 1.0, **changes: object) -> ld3.FunctionModel:
    """Two clusters with a condition, a null condition and a decoder, each of which may change."""
    toy = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)

    def forward(x, t, cond):  # type: ignore[no-untyped-def]
        time.sleep(0.0005)  # long enough to be killed in
        return scale * toy.forward(x, t, None) + 0.01 * cond

    parts = {
        "function": forward,
        "schedule": toy.schedule,
        "prediction": "x0",
        "shape": (2,),
        "make_conditions": lambda seeds: torch.eye(2)[[s % 2 for s in seeds]],
        "make_null": torch.zeros_like,
        "decoder": lambda x: 2 * x,
    }
    return ld3.FunctionModel(**{**parts, **changes})  # type: ignore[arg-type]


def fork(words: tuple[str, ...], out: Path, limit: int | None = None) -> int:
    """The number of a process that runs a command quietly."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
            if limit is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            command([*words, "--out", str(out)])
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os._exit(code)
    return child


def run(words: tuple[str, ...], out: Path, limit: int | None = None) -> int:
    """The exit code of a command."""
    _, status = os.waitpid(fork(words, out, limit), 0)
    return os.waitstatus_to_exitcode(status)


def result(out: Path) -> dict[str, object]:
    """What a run leaves for its user: plans and logs to the byte, comparisons without seconds."""
    found: dict[str, object] = {}
    for name in ("plan.json", "progress.jsonl", "state-0.safetensors"):
        for file in sorted(out.glob(f"small-*/{name}")):
            found[name] = file.read_bytes()
    for file in out.glob("compare.json"):
        content = json.loads(file.read_text())
        for block in content["blocks"]:
            for row in block["rows"]:
                row["seconds"] = 0
        found["compare"] = content["blocks"]
    return found


def answer(out: Path) -> dict[str, object]:
    """The result without logs and states, which a finished run does not read."""
    return {name: value for name, value in result(out).items() if name in ("plan.json", "compare")}


def kills(words: tuple[str, ...], count: int, place: Path, chance: random.Random) -> Row:
    """SIGKILL at a random moment, again and again, until the run comes through."""
    assert run(words, place / "whole") == 0
    begin = time.perf_counter()
    assert run(words, place / "timed") == 0
    whole, usual = result(place / "whole"), time.perf_counter() - begin
    killed = finished = lost = 0
    while killed < count:
        out = place / f"parts-{finished}"
        child = fork(words, out)
        time.sleep(chance.uniform(0.0, 0.7 * usual))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
            if chance.random() > 0.25 and killed < count:
                continue
            assert run(words, out) == 0
        finished += 1
        lost += result(out) != whole
    name = f"`kill -9` of `ld3 {words[0]}`, then the same command again"
    return name, f"{killed} kills, {finished} runs", str(lost), f"{usual:.1f} s per run"


def together(words: tuple[str, ...], rounds: int, place: Path) -> Row:
    """Three processes with the same command on one folder."""
    assert run(words, place / "whole") == 0
    whole, lost = result(place / "whole"), 0
    for number in range(rounds):
        out = place / f"shared-{number}"
        children = [fork(words, out) for _ in range(3)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        lost += sum(code != 0 for code in codes) + (result(out) != whole)
    return f"three `ld3 {words[0]}` on one folder", f"{3 * rounds} processes", str(lost), ""


def flips(words: tuple[str, ...], place: Path, chance: random.Random) -> Iterator[Row]:
    """One bit in every stored file, one file at a time."""
    out = place / "flipped"
    assert run(words, out) == 0
    whole = answer(out)
    tried: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        kind = file.parent.name if "cache" in file.parts else file.name
        if file.parent.parent.name == "learned":
            kind = f"learned/{file.name}"
        if file.suffix not in (".json", ".safetensors", ".jsonl"):
            continue
        content = bytearray(file.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        code = run(words, out)
        tried[kind] += 1
        if code != 0 or answer(out) != whole:
            lost[kind] += 1
            shutil.rmtree(out)
            assert run(words, out) == 0
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(tried.items()))
    if lost:
        kinds += f"; lost: {dict(lost)}"
    name = f"a flipped bit in a file of `ld3 {words[0]}`"
    yield name, f"{sum(tried.values())} files", str(sum(lost.values())), kinds


CHANGES: dict[str, Callable[[], ld3.FunctionModel]] = {
    "prediction": lambda: small(prediction="eps"),
    "schedule": lambda: small(schedule=ld3.EDM(0.01, 60.0)),
    "decoder": lambda: small(decoder=lambda x: 2.0001 * x),
    "null condition": lambda: small(make_null=torch.ones_like),
    "conditions": lambda: small(make_conditions=lambda s: torch.eye(2)[[0 for _ in s]]),
    "a small change of the network": lambda: small(1.00001),
    "dtype": lambda: small(dtype=torch.float64),
    "dtype left open": lambda: small(dtype=None),
}


def changed(place: Path) -> Row:
    """A model is changed; the folder of the model before is used again."""
    spec = {
        "nfe": (3,), "pairs": 8, "held_out": 8, "preset": "fast", "recipe": {"epochs": 1},
        "guidance": 2.0,
    }  # fmt: skip

    def scores(model: ld3.FunctionModel, out: Path) -> dict[str, float]:
        (found,) = ld3.run_learn(ld3.RunSpec(**spec, out=out), model=model)  # type: ignore[arg-type]
        return {name: score.distance for name, score in found.scores.items()}

    scores(small(), place / "used")
    lost = []
    for name, make in CHANGES.items():
        clean, used = (scores(make(), place / out) for out in (f"clean-{name}", "used"))
        if clean != used:
            lost.append(name)
    said = f"changed: {', '.join(CHANGES)}"
    return "another model in the same folder", f"{len(CHANGES)} ways", str(len(lost)), said


def full_disk(words: tuple[str, ...], place: Path) -> Row:
    """No file may grow beyond a limit, as on a full disk; then the same command with room."""
    assert run(words, place / "whole") == 0
    whole, lost = result(place / "whole"), 0
    limits = (0, 100, 500, 1000, 2000, 4000, 8000)
    for limit in limits:
        out = place / f"full-{limit}"
        code = run(words, out, limit)
        left = list(out.rglob("*.tmp")) if out.exists() else []
        lost += code not in (0, 2) or bool(left) or run(words, out) != 0 or result(out) != whole
    return f"a full disk under `ld3 {words[0]}`", f"{len(limits)} limits", str(lost), ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of each command")
    parser.add_argument("--rounds", type=int, default=12, help="of three processes")
    parser.add_argument("--page", type=Path, help="write the table to this file, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    chance, rows = random.Random(0), []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "small.py").write_text("from __main__ import small as make\n")
        os.chdir(place)
        for name, work in (
            ("kill-learn", lambda p: [kills(LEARN, args.kills, p, chance)]),
            ("kill-compare", lambda p: [kills(COMPARE, args.kills, p, chance)]),
            ("together-learn", lambda p: [together(LEARN, args.rounds, p)]),
            ("together-compare", lambda p: [together(COMPARE, args.rounds, p)]),
            ("flip-learn", lambda p: list(flips(LEARN, p, chance))),
            ("flip-compare", lambda p: list(flips(COMPARE, p, chance))),
            ("changed", lambda p: [changed(p)]),
            ("full-learn", lambda p: [full_disk(LEARN, p)]),
            ("full-compare", lambda p: [full_disk(COMPARE, p)]),
        ):
            (place / name).mkdir()
            for row in work(place / name):
                rows.append(row)
                print("  ".join(row), flush=True)
        os.chdir("/")
    if args.page is not None:
        lines = [
            "| tried | how often | lost | |", "|---|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]  # fmt: skip
        made = f"python tools/robustness.py --kills {args.kills} --rounds {args.rounds}"
        text = f"Made by `{made}`, ld3 {ld3.__version__}.\n\n"
        args.page.parent.mkdir(parents=True, exist_ok=True)
        args.page.write_text(text + "\n".join(lines) + "\n")
    sys.exit(any(row[2] != "0" for row in rows))


if __name__ == "__main__":
    main()
