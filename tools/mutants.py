"""Mutation test: a seeded sample of small mistakes, and the share of them that the tests notice.

    python tools/mutants.py [--count 200] [--seed 0] [--only ROOM ...] [--page FILE]
    python tools/mutants.py --survivors     the survivors of earlier runs again, after new tests

A mutant is a copy of the package with one expression or statement changed. The sample is spread
over the rooms in proportion to their lines, with at most one mutant per line. Each mutant runs the
tests of its room: first those that call the changed function, quickest first. A failed test, an
import error or a run over its time limit means that the mutant was noticed.

Processes are forked from one that has imported torch and pytest but not ld3.
"""

import argparse
import ast
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "mutants"  # what each test calls, and the last verdicts
PRELOADED = ("torch", "numpy", "pytest", "hypothesis", "pydantic", "safetensors.torch", "click")
BUDGET = 30.0  # seconds of unchanged tests per mutant
SURVIVED = "SURVIVED"
LEAST = 6  # mutants in a small room

Tests = dict[str, dict[str, Any]]  # test: its seconds and the functions it calls
ROOMS = {  # room: its sources in src/ld3, the files of its tests
    "solvers": ("solvers/*.py", "solvers tuning"),
    "grids": ("grids.py", "grids solvers tuning"),
    "table": ("table.py", "tuning solvers plan"),
    "parameters": ("parameters.py", "tuning families learn"),
    "problem": ("problem.py", "student least_squares learn"),
    "learner": ("learner/*.py", "rules least_squares student learn shared_error"),
    "searches": ("searches/*.py", "searches"),
    "teacher check": ("runs/teacher_check.py", "teacher_check"),
    "plan": ("plan.py", "plan families"),
    "metrics": ("metrics/*.py", "metrics bootstrap bound"),
    "seeds": ("seeds.py", "seeds session"),
    "store": ("store.py", "store cache"),
    "cache": ("runs/cache.py", "cache session"),
}

REASONS = {  # "file: old -> new" of a survivor: why no test notices it
    "solvers/ipndm.py: self.order -> (self.order) + 1": (
        "Equivalent: the history never holds more than order - 1 answers."
    ),
    "problem.py: 64 -> 128": "Memory only: tests hold results to be the same for any batch.",
    "metrics/bound.py: centre + step.to(centre.device, centre.dtype).view_as(centre) -> "
    "(centre - step.to(centre.device, centre.dtype).view_as(centre))": (
        "Equivalent: directions in the ball are symmetric."
    ),
    "metrics/bound.py: 2 -> 3": "Rounding only: a third orthogonalisation changes nothing.",
    "metrics/fidelity.py: 100 -> 200": "Memory only: samples per batch.",
    "metrics/kernel.py: 1024 -> 2048": "Memory only: rows per block.",
    "store.py: time.time() - leftover.stat().st_mtime > LEFTOVER -> "
    "(time.time() - leftover.stat().st_mtime >= LEFTOVER)": (
        "Equivalent in practice: a file would have to be one hour old to the last digit."
    ),
    "runs/cache.py: 0.0 -> 1.0": "Equivalent: files are not from the first second of 1970.",
    "learner/shared_error.py: 29 -> 58": "Memory only: the largest number of residuals.",
    "learner/least_squares.py: after < lowest -> (after <= lowest)": (
        "Equivalent in practice: two losses would have to be equal to the last digit."
    ),
    "searches/adam.py: size + 1e-6 -> (size - 1e-06)": "Rounding only: keeps a zero from dividing.",
    "runs/teacher_check.py: 4 -> 5": "Equivalent: steps are doubled; five times is not met.",
    "searches/dmn.py: 0.01 -> 0.011": "Least gap over mean gap; best grids have 0.15 and more.",
}

# ---- mutants

TEXTS = {"__repr__", "__str__", "source", "summary", "title"}  # functions that only make text
UNCHANGED = {"device", "dtype", "strict", "name", "help"}  # keywords that are left alone
SWAPPED_CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the bytes from `start` to `end` become `new`."""

    room: str
    file: str  # in src/ld3
    line: int
    start: int
    end: int
    old: str
    new: str
    text: str  # the line as it was, numbered where it is not the only one
    function: int  # first line of the innermost function around it; 0 at module level

    @property
    def change(self) -> str:
        return f"{self.file}: {self.old} -> {self.new}"

    @property
    def key(self) -> str:
        return f"{self.change} in {self.text}"

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


class Changes(ast.NodeVisitor):
    """All mutants of one file."""

    def __init__(self, room: str, file: str, source: bytes) -> None:
        self.room, self.file, self.source = room, file, source
        self.found: list[Mutant] = []
        self.function = 0
        self.starts = [0]
        for row in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(row))
        self.visit(ast.parse(source))

    def add(self, node: ast.expr | ast.stmt | ast.keyword, new: ast.AST | str) -> None:
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        if isinstance(node, ast.keyword) and self.source[end : end + 1] == b",":
            end += 1
        old = " ".join(self.source[start:end].decode().split())
        if isinstance(new, ast.AST):
            new = ast.unparse(ast.fix_missing_locations(new))
            new = f"({new})" if isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare) else new
        text = self.source.splitlines()[node.lineno - 1].decode().strip()
        same = [m for m in self.found if (m.old, m.new) == (old, new) and m.text.startswith(text)]
        text += f" #{len(same) + 1}" if same else ""
        place = (self.room, self.file, node.lineno, start, end)
        self.found.append(Mutant(*place, old, new, text, self.function))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in TEXTS:
            return
        outer = self.function
        self.function = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self.function = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:  # not the decorators
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:  # not the annotation
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        pass

    visit_ImportFrom = visit_Import

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Compare(self, node: ast.Compare) -> None:
        for n, operator in enumerate(node.ops):
            ops = [*node.ops]
            ops[n] = COMPARED[type(operator)]()
            self.add(node, ast.Compare(node.left, ops, node.comparators))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        union = isinstance(node.op, ast.BitOr)
        if type(node.op) in COUNTED:
            self.add(node, ast.BinOp(node.left, COUNTED[type(node.op)](), node.right))
        if not union:  # X | None is a type
            self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self.add(node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self.add(node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add(node, repr(not value))
        elif isinstance(value, int):
            self.add(node, repr(value + 1 if value <= 10 else 2 * value))
        elif isinstance(value, float):
            self.add(node, repr(1.0 if value == 0 else 0.1 if value < 1e-6 else _longer(value)))

    def visit_Slice(self, node: ast.Slice) -> None:
        for name in ("lower", "upper"):
            end = getattr(node, name)
            if end is not None and not isinstance(end, ast.Constant):
                self.add(end, f"({ast.unparse(end)}) + 1")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        name = getattr(called, "id", getattr(called, "attr", ""))
        if name in SWAPPED_CALLS:
            other = SWAPPED_CALLS[name]
            new = (
                ast.Name(other)
                if isinstance(called, ast.Name)
                else ast.Attribute(called.value, other)
            )
            self.add(node, ast.Call(new, node.args, node.keywords))
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in UNCHANGED:
                self.add(keyword, "")
        self.visit(called)
        for part in (*node.args, *(k.value for k in node.keywords if k.arg not in UNCHANGED)):
            self.visit(part)

    def visit_If(self, node: ast.If) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def _negated(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare) or len(test.ops) > 1:
            self.add(test, f"(not ({ast.unparse(test)}))")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not _is_none(node.value):
            self.add(node, "return None")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "pass")
        if type(node.op) in COUNTED:
            op = COUNTED[type(node.op)]()
            self.add(node, ast.AugAssign(node.target, op, node.value))
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self.add(node, "pass")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Call):
            self.generic_visit(node)
            return
        if ast.unparse(node.value.func) != "super().__init__":
            self.add(node, "pass")
        self.generic_visit(node)


def _longer(value: float) -> float:
    return float(f"{1.1 * value:.6g}")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def mutants_of(room: str, root: Path) -> dict[tuple[str, int], list[Mutant]]:
    """(file, line): the mutants there; a dropped result only where there is nothing else."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for path in sorted((root / "src/ld3").glob(ROOMS[room][0])):
        file = path.relative_to(root / "src/ld3").as_posix()
        for mutant in Changes(room, file, path.read_bytes()).found:
            lines.setdefault((mutant.file, mutant.line), []).append(mutant)
    return {
        place: [mutant for mutant in found if mutant.new != "return None"] or found
        for place, found in lines.items()
    }


def sample(root: Path, count: int, seed: int) -> list[Mutant]:
    """About `count` mutants, at least LEAST per room, the same for the same seed and sources.

    Lines and mutants are drawn by digests of their text, so that a change elsewhere in the room
    leaves most of the sample as it is.
    """

    def rank(*parts: str) -> str:
        return hashlib.sha256(" ".join((str(seed), *parts)).encode()).hexdigest()

    lines = {room: mutants_of(room, root) for room in ROOMS}
    total = sum(map(len, lines.values()))
    chosen: list[Mutant] = []
    for places in lines.values():
        share = max(LEAST, -(-count * len(places) // total))
        drawn = sorted(places.values(), key=lambda found: rank(found[0].file, found[0].text))
        mutants = [min(found, key=lambda m: rank(m.key)) for found in drawn[:share]]
        chosen += sorted(mutants, key=lambda m: (m.file, m.start))
    return chosen


# ---- runs


def in_child(work: Callable[[], int], limit: float) -> int | None:
    """The exit code of `work` in a forked process, or None.

    None means that it took more than `limit` seconds of CPU time, or six times that by the clock.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
            code = work()
        finally:
            os._exit(code)
    end = time.monotonic() + 6 * limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def run_tests(root: Path, names: list[str], plugin: object = None) -> int:
    """pytest in this process, on the copy of the package at `root`."""
    import pytest

    os.chdir(root)
    sys.path.insert(0, str(root / "src"))
    os.environ["PYTHONPATH"] = str(root / "src")
    options = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--tb=no"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are preloaded
    if plugin is not None:
        return int(pytest.main([*options, *names], [plugin]))
    return int(pytest.main(["-x", *options, *names]))


class Calls:
    """A pytest plugin: how long each test takes, and which functions of the package it calls."""

    def __init__(self, src: Path) -> None:
        self.src = f"{src}/"
        self.now: set[str] = set()
        self.at_import = self.now
        self.tests: Tests = {}
        sys.setprofile(self.profile)

    def profile(self, frame, event, argument) -> None:  # type: ignore[no-untyped-def]
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(self.src):
                self.now.add(f"{code.co_filename[len(self.src) :]}:{code.co_firstlineno}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.now, self.failed, self.began = set(), False, sum(os.times()[:4])
        sys.setprofile(self.profile)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds = sum(os.times()[:4]) - self.began  # of CPU time, children included
        self.tests[nodeid] = {"seconds": seconds, "calls": self.now, "failed": self.failed}

    def pytest_runtest_logreport(self, report) -> None:  # type: ignore[no-untyped-def]
        self.failed = self.failed or report.failed

    def save(self, path: Path) -> None:
        for test in self.tests.values():
            test["calls"] = sorted(test["calls"] | self.at_import)
        path.write_text(json.dumps(self.tests))


def calls_of(root: Path, name: str) -> Tests:
    """test: its seconds and calls, for one test file without mutants; kept until it changes."""
    digest = hashlib.sha256()
    for path in (
        *sorted((root / "src").rglob("*.py")),
        *sorted(set(root.glob("tests/*.py")) - set(root.glob("tests/test_*.py"))),
        root / f"tests/test_{name}.py",
    ):
        digest.update(path.read_bytes())
    kept = KEPT / f"{name}-{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        for old in KEPT.glob(f"{name}-*.json"):
            old.unlink()

        def work() -> int:
            plugin = Calls(root / "src/ld3")
            code = run_tests(root, [f"tests/test_{name}.py"], plugin)
            if code < 2:
                plugin.save(kept)
            return code

        began = time.monotonic()
        code = in_child(work, 1200)
        print(f"tests/test_{name}.py: {time.monotonic() - began:.0f} s", flush=True)
        if not kept.exists():
            sys.exit(f"tests/test_{name}.py: got exit code {code} without mutants, expected 0")
    tests: Tests = json.loads(kept.read_text())
    for test in [test for test, found in tests.items() if found["failed"]]:
        print(f"left out, because it fails without mutants: {test}")
        del tests[test]
    return tests


def tests_of(root: Path, room: str) -> Tests:
    """The tests of a room; the quickest of them must pass one by one without mutants."""
    tests: Tests = {}
    for name in ROOMS[room][1].split():
        tests |= calls_of(root, name)
    names, spent = chosen_tests(Mutant(room, "", 0, 0, 0, "", "", "", 0), tests, BUDGET / 4)
    code = in_child(lambda: run_tests(root, names), 60 + 4 * spent)
    if code != 0:
        sys.exit(f"tests of {room}: got exit code {code} without mutants, expected 0")
    return tests


def chosen_tests(mutant: Mutant, tests: Tests, budget: float = BUDGET) -> tuple[list[str], float]:
    """Tests that call the function first, quickest first, and their seconds in all."""
    place = f"{mutant.file}:{mutant.function}"

    def rank(name: str) -> tuple[bool, float]:
        seconds, calls = tests[name]["seconds"], tests[name]["calls"]
        return mutant.function > 0 and place not in calls, seconds

    names, spent = [], 0.0
    for name in sorted(tests, key=rank):
        seconds = float(tests[name]["seconds"])
        if spent + seconds <= budget:
            names.append(name)
            spent += seconds
    return names, spent


def verdict(root: Path, mutant: Mutant, tests: Tests, number: int) -> str:
    """How a mutant ends: noticed, over time, or SURVIVED."""
    path = root / "src/ld3" / mutant.file
    source = path.read_bytes()
    names, spent = chosen_tests(mutant, tests)
    try:
        path.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
        os.utime(path, (number, number))  # compiled files know their source by its time
        code = in_child(lambda: run_tests(root, names), 20 + 2 * spent)
    finally:
        path.write_bytes(source)
    return "over time" if code is None else "noticed" if code else SURVIVED


def snapshot(to: Path) -> Path:
    """A copy of the project that a mutant may change."""

    def left(folder: str, names: list[str]) -> list[str]:
        made = ("build", "demo", "dist", "runs") if Path(folder) == ROOT else ("__pycache__",)
        return [name for name in names if name.startswith(".") or name in made]

    shutil.copytree(ROOT, to, ignore=left, dirs_exist_ok=True)
    return to


# ---- results


def rows(mutants: list[Mutant], verdicts: dict[str, str]) -> Iterator[tuple[str, int, int]]:
    """(room, mutants, noticed) for each room, then for all."""
    for room in [*dict.fromkeys(m.room for m in mutants), "all"]:
        own = [verdicts[m.key] != SURVIVED for m in mutants if room in (m.room, "all")]
        yield room, len(own), sum(own)


def page(mutants: list[Mutant], verdicts: dict[str, str], seed: int, count: int) -> str:
    lines = [
        "# Mutation test",
        "",
        "Made by `make mutants`.",
        "",
        f"`tools/mutants.py --seed {seed} --count {count}` changes one expression or statement of",
        "the package at a time and runs the tests of its room. A mutant is noticed if one fails.",
        "The sample is spread over the rooms in proportion to their lines.",
        "Tests were added for survivors of seed 0, so another seed is expected to give less.",
        "",
        "| room | mutants | noticed | share |",
        "|---|---|---|---|",
    ]
    for room, number, seen in rows(mutants, verdicts):
        lines.append(f"| {room} | {number} | {seen} | {100 * seen / number:.0f} % |")
    left = [m for m in mutants if verdicts[m.key] == SURVIVED]
    lines += ["", "## Mutants that no test notices", ""]
    lines += ["| place | change | reason |", "|---|---|---|"]
    for m in left:
        old, new = (text.replace("|", "\\|") for text in (m.old, m.new))
        lines.append(f"| {m.place} | `{old}` → `{new}` | {REASONS.get(m.change, '')} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="mutants in all (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")
    parser.add_argument("--only", nargs="+", choices=ROOMS, default=list(ROOMS), metavar="ROOM")
    parser.add_argument("--survivors", action="store_true", help="run last time's survivors again")
    parser.add_argument("--known", action="store_true", help="run only what never ran before")
    parser.add_argument("--list", action="store_true", help="print the sample, run nothing")
    parser.add_argument("--page", type=Path, help="write the results to this file")
    chosen = parser.parse_args()
    mutants = [m for m in sample(ROOT, chosen.count, chosen.seed) if m.room in chosen.only]
    if chosen.list:
        print("\n".join(f"{m.room:10} {m.place}: {m.old} -> {m.new}" for m in mutants))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        importlib.import_module(name)
    KEPT.mkdir(parents=True, exist_ok=True)
    last = KEPT / "last.json"
    known: dict[str, str] = json.loads(last.read_text()) if last.exists() else {}
    verdicts: dict[str, str] = {}
    tests: dict[str, Tests] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = snapshot(Path(folder).resolve())
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = f"{folder}/.hypothesis"
        for number, mutant in enumerate(mutants, 1):
            key = mutant.key
            if key in known and (chosen.known or (chosen.survivors and known[key] != SURVIVED)):
                verdicts[key] = known[key]
                continue
            if mutant.room not in tests:
                tests[mutant.room] = tests_of(root, mutant.room)
            began = time.monotonic()
            verdicts[key] = known[key] = verdict(root, mutant, tests[mutant.room], number)
            last.write_text(json.dumps(known))
            seconds = time.monotonic() - began
            print(f"{number}/{len(mutants)} {verdicts[key]} {seconds:.1f} s {mutant.place}: "
                  f"{mutant.old} -> {mutant.new}", flush=True)  # fmt: skip
    for room, count, seen in rows(mutants, verdicts):
        print(f"{room}: {seen} of {count} noticed, {100 * seen / count:.0f} %")
    for m in mutants:
        if verdicts[m.key] == SURVIVED:
            print(f"{m.place}: {m.old} -> {m.new}  [{REASONS.get(m.change, 'no reason given')}]")
    if chosen.page:
        chosen.page.write_text(page(mutants, verdicts, chosen.seed, chosen.count))


if __name__ == "__main__":
    main()
