"""The diffusers tests on several versions of diffusers, each in its own environment.

    python tools/diffusers_matrix.py                    # 0.39.0 to 0.42.0, and the newest
    python tools/diffusers_matrix.py --versions 0.40.0
    python tools/diffusers_matrix.py --page docs/tools/diffusers-versions.md

An environment is a folder with that diffusers and what it needs, put before the installed packages:
torch is not installed again. Folders are kept in `--cache` and used the next time. Ends with code 1
if any version fails.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("0.39.0", "0.40.0", "0.41.0", "0.42.0", "newest")
TESTS = {  # name: files, what they check
    "solvers": (("diffusers_parity",), "our solvers against those of its schedulers, step by step"),
    "scheduler": (
        ("diffusers_scheduler", "edit_pipelines"),
        "`LD3Scheduler`: every solver in eleven pipelines, stock schedulers, image to image, "
        "pipelines that begin in the middle of the timesteps",
    ),
    "pipelines": (
        ("pipelines", "latent_checkpoints"),
        "every family that `ld3 learn` reads: network, decoder, learning a plan, sampling with it",
    ),
    "exports": (
        ("export", "importing", "serving", "plan_zoo", "files_of_before"),
        "`ld3 export`, `ld3 import`, `ld3 zoo`, the example server, files of older versions",
    ),
}
NAMES = {f"test_{file}": name for name, (files, _) in TESTS.items() for file in files}
FREE = ("diffusers", "huggingface_hub", "transformers", "tokenizers", "hf-xet", "httpx", "httpcore")
SHOWN = ("diffusers", "transformers", "huggingface_hub", "torch")


@dataclass(frozen=True)
class Outcome:
    """One version: its packages, and tests by (name in `TESTS`, how they ended)."""

    packages: dict[str, str]
    tests: Counter[tuple[str, str]]
    code: int
    minutes: float

    def count(self, ended: str) -> int:
        return sum(number for (_, how), number in self.tests.items() if how == ended)

    @property
    def line(self) -> str:
        told = f"{self.count('passed')} passed, {self.count('skipped')} skipped"
        good = "" if self.code == 0 else f", {self.count('failed')} failed (code {self.code})"
        return f"diffusers {self.packages['diffusers']:<8} {told}{good}, {self.minutes:.0f} min"


def environment(version: str, cache: Path) -> Path:
    """The folder of a version, made if need be."""
    folder = cache / f"diffusers-{version}"
    if version != "newest" and (folder / "diffusers").is_dir():
        return folder
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith(FREE)
    ]
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "constraints.txt").write_text("\n".join(pins) + "\n")
    wanted = "diffusers" if version == "newest" else f"diffusers=={version}"
    words = ["install", "--quiet", "--upgrade", "--target", str(folder), "--constraint"]
    words += [str(cache / "constraints.txt"), wanted, "transformers"]
    made = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False
    )
    if made.returncode:
        sys.exit(f"pip could not install {wanted}: {made.stderr[-2000:]}")
    return folder


def run(folder: Path, chosen: str) -> Outcome:
    """pytest with the packages of a folder."""
    path = os.pathsep.join([str(folder), str(ROOT / "src")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    files = [f"tests/{file}.py" for file in NAMES]
    with tempfile.TemporaryDirectory() as kept:
        told = Path(kept) / "tests.xml"
        words = ["-m", "pytest", *files, "-p", "no:cacheprovider", "--tb=line"]
        words += [f"--junit-xml={told}", *(("-k", chosen) if chosen else ())]
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(done.stdout[-6000:], done.stderr[-2000:])
        suite = ElementTree.parse(told).getroot()[0] if told.exists() else ElementTree.Element("")
    tests: Counter[tuple[str, str]] = Counter()
    for case in suite.iter("testcase"):
        ends = [end.tag for end in case if end.tag in ("skipped", "failure", "error")]
        ended = "passed" if not ends else "skipped" if ends == ["skipped"] else "failed"
        tests[NAMES[case.get("classname", "").split(".")[1]], ended] += 1
    code = f"from importlib.metadata import version; print(*map(version, {SHOWN!r}))"
    versions = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout.split()
    minutes = float(suite.get("time", 0)) / 60
    return Outcome(dict(zip(SHOWN, versions, strict=True)), tests, done.returncode, minutes)


def page(outcomes: list[Outcome], old: str = "") -> str:
    """The counts as a page, a row a version. Rows of `old` for other versions stay."""
    rows = {
        line.split(" | ")[0].removeprefix("| "): line
        for line in old.splitlines()
        if re.match(r"\| \d", line)
    }
    for one in outcomes:
        cells = [*one.packages.values(), *(one.tests[name, "passed"] for name in TESTS)]
        cells += [one.count("passed"), one.count("failed"), one.count("skipped")]
        rows[one.packages["diffusers"]] = f"| {' | '.join(map(str, cells))} |"
    heads = [*SHOWN, *TESTS, "passed", "failed", "skipped"]
    lines = [
        "# Versions of diffusers",
        "",
        "`make matrix` runs the tests of all that uses diffusers on several versions, the newest",
        "included. `tools/diffusers_matrix.py --versions X --page PAGE` adds a row.",
        "",
        "| tests | what they check |",
        "|---|---|",
        *(f"| {name} | {what} |" for name, (_, what) in TESTS.items()),
        "",
        "How many passed, by name and in all:",
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(rows[key] for key in sorted(rows, key=lambda key: [*map(int, key.split("."))])),
        "",
        "A skipped test does not apply, such as guidance for a network that has none, or needs a",
        "file or package that is not there.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", nargs="+", default=VERSIONS)
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "matrix")
    parser.add_argument("--only", default="", help="as pytest's -k: a part of the tests")
    parser.add_argument("--page", type=Path, help="put the counts into this page")
    args = parser.parse_args()
    if args.page is not None and args.only:
        parser.error("--page: got --only as well; a page is written for all tests")
    outcomes = []
    for version in args.versions:
        outcomes.append(run(environment(version, args.cache), args.only))
        print(outcomes[-1].line, flush=True)
        if args.page is not None:
            old = args.page.read_text() if args.page.exists() else ""
            args.page.write_text(page(outcomes, old))
    sys.exit(0 if all(one.code == 0 for one in outcomes) else 1)


if __name__ == "__main__":
    main()
