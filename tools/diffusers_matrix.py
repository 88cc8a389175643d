"""The diffusers tests on several versions of diffusers, each in its own environment.

    python tools/diffusers_matrix.py                    # 0.39.0, 0.41.0, 0.42.0, the newest
    python tools/diffusers_matrix.py --versions 0.40.0

An environment is a folder with that diffusers and what it needs, put before the installed packages:
torch is not installed again. Folders are kept in `--cache` and used the next time. Ends with code 1
if any version fails.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("0.39.0", "0.41.0", "0.42.0", "newest")
TESTS = ("tests/test_diffusers_scheduler.py", "tests/test_export.py")
FREE = ("diffusers", "huggingface_hub", "transformers", "tokenizers", "hf-xet", "httpx", "httpcore")


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


def run(folder: Path, chosen: str) -> tuple[str, bool]:
    """The last line of pytest, and whether all is well."""
    path = os.pathsep.join([str(folder), str(ROOT / "src")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = ["-m", "pytest", *TESTS, "-q", "-p", "no:cacheprovider", "--tb=line"]
    if chosen:
        words += ["-k", chosen]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout[-6000:], done.stderr[-2000:])
    here = [sys.executable, "-c", "import diffusers; print(diffusers.__version__)"]
    told = subprocess.run(here, env=env, capture_output=True, text=True, check=True).stdout.strip()
    ended = "passed" if done.returncode == 0 else f"failed (pytest ended with {done.returncode})"
    return f"diffusers {told:<8} {ended}", done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", nargs="+", default=VERSIONS)
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "matrix")
    parser.add_argument("--only", default="", help="as pytest's -k: a part of the tests")
    args = parser.parse_args()
    fine = True
    for version in args.versions:
        line, good = run(environment(version, args.cache), args.only)
        print(line, flush=True)
        fine = fine and good
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
