"""Seeded mutations of everything that a stranger may send, and what becomes of them.

A case is a number: it chooses a kind of input, changes a good one, and hands it to the code that
reads it. Allowed ends are an answer, or one line for the user (an :class:`~ld3.errors.Ld3Error`, or
exit code 2 with one line). Everything else is a failure: another exception, exit code 1, more than
`LIMIT` seconds of processor time, `WAIT` seconds in all, or code that the input names and that ran.
"""

import copy
import io
import json
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save
from tests.checkpoint_files import ADM, FLAGS, edm_pickle, openai_state, saved
from tests.pipelines import ddpm
from tests.plans import make_plan

from ld3.cli import main
from ld3.diffusers import LD3Scheduler
from ld3.errors import Ld3Error
from ld3.zoo.pipelines.folder import hushed

LIMIT = 5  # seconds of processor time, which do not depend on what else the machine does
TRAP = "tests.trap"  # a module that inputs name, and that nothing may import
WAIT = 300  # seconds by the clock: sleeping and waiting end, too
NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 1, 10**26, -(10**400), 1e308, 1e-320, 0.5, "", "nan", "x" * 5000, "\x00",
    "\x1b]0;a\x07", "\ud800", "../../a", "/dev/zero", "os:system", f"{TRAP}:spring",
    "diffusers:owner/name", "con",
    [], {}, [[]], {"a": {"a": {}}}, [1, "a", None], "é\u202e", "%s{0}$(a)", [0.0] * 3000,
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    kind: str
    end: str  # answered, refused, or a failure: crashed, noisy, hung
    said: str = ""

    @property
    def good(self) -> bool:
        return self.end in ("answered", "refused")


def mutate_bytes(rng: random.Random, content: bytes) -> bytes:
    """Flip, cut, double or overwrite a few places."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(max(1, len(found)))
        match rng.randrange(5):
            case 0 if found:
                found[at] ^= 1 << rng.randrange(8)
            case 1:
                del found[at:]
            case 2:
                found[at:at] = rng.choice((b"\x00", b"\xff", b"[" * 200, b"1e999", b'"', b"\r\n"))
            case 3:
                found[at:at] = found[at : at + rng.randrange(64)]
            case _:
                del found[at : at + rng.randrange(16)]
    return bytes(found)


def mutate_json(rng: random.Random, content: Any) -> Any:
    """Replace, remove, double or add a few values anywhere inside."""
    found = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 2))):
        places = list(_places(found))
        if not places:
            return rng.choice(NASTY)
        inside, key = rng.choice(places)
        match rng.randrange(5):
            case 0:
                del inside[key]
            case 1 if isinstance(inside, dict):
                inside[str(rng.choice(NASTY))[:40]] = rng.choice(NASTY)
            case 2 if isinstance(inside, list):
                inside.insert(key, copy.deepcopy(inside[key]))
            case 3 if isinstance(inside[key], int | float) and not isinstance(inside[key], bool):
                inside[key] = rng.choice((-1, 0.5, 2, 1e3, 1e9)) * inside[key]
            case _:
                inside[key] = copy.deepcopy(rng.choice(NASTY))
    return found


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


# What is sent, and who reads it


def mutated_json(rng: random.Random, content: Any) -> bytes:
    """Half of the time as a value, else as bytes."""
    if rng.random() < 0.5:
        return as_json(mutate_json(rng, content))
    return mutate_bytes(rng, as_json(content))


def plan(rng: random.Random, folder: Path) -> list[str]:
    kinds = ("sd", "flow", "edm", "vp-linear")
    schedule = rng.choice(kinds)
    solver = rng.choice(("dpmpp", "unipc", "ipndm", "euler", "heun"))
    good = make_plan(schedule, solver, steps=rng.choice((1, 2, 4)), corrections=rng.random() < 0.5)
    content = good.model_dump(mode="json")
    file = folder / "plan.json"
    if rng.random() < 0.2:  # a good plan of a stranger who hopes that his model is opened
        content["model"]["name"] = f"{TRAP}:spring"
        file.write_bytes(as_json(content))
    else:
        file.write_bytes(mutated_json(rng, content))
    return rng.choice(
        (
            ["show", str(file)],
            ["show", str(file), "--as", rng.choice(("text", "comfyui", "diffusers", "a1111"))],
            ["sample", "--plan", str(file), "--seeds", "0", "--out", str(folder / "out")],
            ["score", str(file), "--held-out", "2", "--out", str(folder / "out")],
            ["evaluate", str(file), "--samples", "40", "--out", str(folder / "out")],
            ["export", str(file), "--to", "text", "--out", str(folder / "out")],
            ["export", str(file), "--to", "kdiffusion", "--out", str(folder / "out")],
        )
    )


def comparison(rng: random.Random, folder: Path) -> list[str]:
    (folder / "compare.json").write_bytes(mutated_json(rng, COMPARISON))
    return ["report", str(folder / "compare.json")]


def spec(rng: random.Random, folder: Path) -> list[str]:
    """The model does not exist, so that nothing is learned if all else is right."""
    lines = ['model = "no_such_module:function"', "nfe = [4, 6]", 'solver = "unipc:3"', "pairs = 8"]
    lines += ["[recipe]", "epochs = 2", "rate = 0.05"]
    content = "\n".join(lines).encode()
    if rng.random() < 0.5:
        at = rng.randrange(len(lines))
        value = rng.choice(("nan", "inf", "-1", '"a"', "[" * 300, "1e999", '"\\u0000"', "{a=1}"))
        lines[at] = lines[at].split("=")[0] + "= " + value
        content = "\n".join(lines).encode()
    else:
        content = mutate_bytes(rng, content)
    (folder / "spec.toml").write_bytes(content)
    words = [rng.choice(("learn", "compare")), "--spec", str(folder / "spec.toml")]
    return [*words, "--model", "no_such_module:function", "--out", str(folder / "out")]


def words(rng: random.Random, folder: Path) -> list[str]:
    """Words of the command line; `learn` and `compare` meet a model that does not exist."""
    options = ["--nfe", "--guidance", "--seed", "--pairs", "--held-out", "--solver", "--start"]
    options += ["--recipe", "--preset", "--distance", "--device", "--dtype", "--batch", "--label"]
    options += ["--teacher-steps", "--teacher-grid", "--methods", "--seeds", "--prompts", "--nope"]
    texts = ["nan", "inf", "-inf", "-1", "0", "1e999", "9" * 26, "0-99999999999", "4-2", "a" * 300]
    texts += [
        "",
        " ",
        "1,,2",
        "²",
        "\x1b[2J",
        "é",
        "/dev/zero",
        "..",
        "unipc:3:bh9:x",
        "x=1=2",
        "--",
    ]
    command = rng.choice(("learn", "compare", "show", "sample", "solvers", "methods", "nope"))
    out = ["--model", "no_such_module:function"] * (command in ("learn", "compare", "sample"))
    for _ in range(rng.randint(1, 4)):
        out += [rng.choice(options), rng.choice(texts)]
    return [command, *out]


def checkpoint(rng: random.Random, folder: Path) -> list[str]:
    name, content = rng.choice(CHECKPOINTS())
    (folder / name).write_bytes(mutate_bytes(rng, content))
    return ["inspect", str(folder / name)]


def pipeline(rng: random.Random, folder: Path) -> list[str]:
    """A folder with one broken file: what is still a pipeline is learned and drawn with."""
    parts = PIPELINES()[rng.choice(SCHEDULERS)]
    broken = rng.choice([*sorted(parts), *["scheduler/scheduler_config.json"] * 4])
    for name, content in parts.items():
        file = folder / "pipe" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(mutated_file(rng, name, content) if name == broken else content)
    model = f"diffusers:{folder / 'pipe'}"
    return ["learn", "--model", model, *QUICK, "--out", str(folder / "out")]


def mutated_file(rng: random.Random, name: str, content: bytes) -> bytes:
    """Most of the time still a whole file: a config with another value, weights with other bits."""
    if rng.random() < 0.25:
        return mutate_bytes(rng, content)
    if name.endswith(".json"):
        return as_json(mutate_json(rng, json.loads(content)))
    found = bytearray(content)
    for _ in range(rng.choice((1, 10, 1000))):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def scheduler(rng: random.Random, folder: Path) -> list[str]:
    """A config of LD3Scheduler, read by the class itself."""
    good = LD3Scheduler.from_plan(make_plan()).config
    content = mutate_json(rng, json.loads(json.dumps(dict(good))))
    file = folder / "scheduler_config.json"
    file.write_bytes(as_json(content))
    try:
        with hushed():  # of settings that it does not know diffusers says so, line by line
            LD3Scheduler.from_config(json.loads(file.read_bytes())).set_timesteps(4)
    except OSError as error:  # diffusers' own word for a file that does not fit
        raise Ld3Error(str(error)) from None
    return []


KINDS: dict[str, Callable[[random.Random, Path], list[str]]] = {
    "plan": plan, "comparison": comparison, "spec": spec, "options": words,
    "checkpoint": checkpoint, "pipeline": pipeline, "scheduler": scheduler,
}  # fmt: skip
SHARES = {"plan": 30, "comparison": 15, "spec": 10, "options": 20, "checkpoint": 20, "pipeline": 2, "scheduler": 3}  # fmt: skip  # noqa: E501


def run_case(case: int, folder: Path) -> Outcome:
    """One mutation, from its number alone."""
    found = _run(case, folder)
    if sys.modules.pop(TRAP, None) is None:
        return found
    return Outcome(found.kind, "crashed", "code ran that the input names")


def _run(case: int, folder: Path) -> Outcome:
    rng = random.Random(f"case {case}")
    kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    out, err = io.StringIO(), io.StringIO()
    try:
        with _within(LIMIT, WAIT), redirect_stdout(out), redirect_stderr(err):
            asked = KINDS[kind](rng, folder)
            if not asked:
                return Outcome(kind, "answered")
            main(asked)
    except TookTooLong as late:
        return Outcome(kind, "hung", str(late))
    except Ld3Error as error:
        return Outcome(kind, "refused", str(error))
    except SystemExit as end:
        return _ended(kind, end.code, out.getvalue(), err.getvalue())
    except Exception as error:
        return Outcome(kind, "crashed", f"{type(error).__name__}: {error}")
    return Outcome(kind, "crashed", "no end")


def _ended(kind: str, code: Any, out: str, err: str) -> Outcome:
    said = err.strip().rsplit("\n", 1)[-1][:300]
    steering = [c for c in out + err if not c.isprintable() and c not in "\n\r"]
    if steering or (code == 2 and err.count("\n") != 1):
        return Outcome(kind, "noisy", f"{steering[:3]} {err[:300]!r}")
    if code in (0, 2):
        return Outcome(kind, "answered" if code == 0 else "refused", said)
    return Outcome(kind, "crashed", said)


class TookTooLong(BaseException):
    """No `except Exception` takes it for an error of its own."""


@contextmanager
def _within(limit: float, wait: float) -> Iterator[None]:
    """At most `limit` seconds of processor time and `wait` seconds by the clock."""
    clocks = (
        (signal.SIGPROF, signal.ITIMER_PROF, limit, f"more than {limit} s of processor time"),
        (signal.SIGALRM, signal.ITIMER_REAL, wait, f"more than {wait} s"),
    )
    before = []
    for number, clock, seconds, said in clocks:

        def stop(*_: object, said: str = said) -> None:
            raise TookTooLong(said)

        before.append(signal.signal(number, stop))
        signal.setitimer(clock, seconds)
    try:
        yield
    finally:
        for (number, clock, *_), old in zip(clocks, before, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(number, old)


def peak_memory() -> int:
    """Bytes that this process held at the most."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


_made: list[tuple[str, bytes]] = []


def CHECKPOINTS() -> list[tuple[str, bytes]]:
    """Good files of every kind, made once."""
    if not _made:
        _made.extend(
            [
                ("a.pkl", edm_pickle(ADM)),
                ("a.pt", saved(openai_state())),
                ("old.pt", saved(openai_state(), zipped=False)),
                ("a.safetensors", save({"x": torch.ones(3)}, {"config": json.dumps(FLAGS)})),
            ]
        )
    return _made


SCHEDULERS = (
    "DDPMScheduler", "DDIMScheduler", "PNDMScheduler", "DPMSolverMultistepScheduler",
    "EulerDiscreteScheduler",
)  # fmt: skip
QUICK = [
    "--nfe", "2", "--pairs", "2", "--valid", "2", "--held-out", "2", "--preset", "fast",
    "--recipe", "epochs=1", "--start", "logsnr", "--distance", "l2", "--slope", "exact",
    "--teacher-steps", "3", "--reference-steps", "3",
]  # fmt: skip
_folders: dict[str, dict[str, bytes]] = {}


def PIPELINES() -> dict[str, dict[str, bytes]]:
    """The files of good pipelines by name, for each scheduler, made once."""
    for scheduler in SCHEDULERS[len(_folders) :]:
        with TemporaryDirectory() as made:
            ddpm(scheduler).save_pretrained(made)
            files = [file for file in Path(made).rglob("*") if file.is_file()]
            parts = {str(file.relative_to(made)): file.read_bytes() for file in files}
        _folders[scheduler] = parts
    return _folders


COMPARISON = json.loads(
    (Path(__file__).parent / "files_of_before" / "compare-0.2.json").read_text()
)
