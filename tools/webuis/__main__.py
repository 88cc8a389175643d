"""Run exported plans in the tools themselves and compare the samples with ours.

    python tools/webuis --comfyui DIR --kdiffusion DIR --a1111 DIR --forge DIR \\
        --python PYTHON --out docs/tools/tested.md

Each DIR is a checkout; those that are not given are left out. PYTHON runs them and needs what they
need, and what ld3 needs. ComfyUI is started as a server on 127.0.0.1. Of AUTOMATIC1111 and Forge
the modules of their samplers run, with stand-ins for what these import of the user interface.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests")]

import torch  # noqa: E402
from comfyui import test_comfyui  # noqa: E402
from modules import test_modules  # noqa: E402


def main() -> None:
    about, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for tool in ("comfyui", "kdiffusion", "a1111", "forge"):
        parser.add_argument(f"--{tool}", type=Path, help=f"checkout of {tool}")
    parser.add_argument("--python", default=sys.executable, help="runs the tools (this one)")
    parser.add_argument("--out", type=Path, help="page to write (none: print)")
    words = parser.parse_args()
    rows = []
    if words.comfyui:
        rows += test_comfyui(words.comfyui.resolve(), words.python)
    kdiffusion = words.kdiffusion and words.kdiffusion.resolve()
    for tool in ("kdiffusion", "a1111", "forge"):
        if (checkout := getattr(words, tool)) is not None:
            rows += test_modules(tool, checkout.resolve(), words.python, kdiffusion)
    lines = ["| tool | what was run | compared with | relative difference |", "|---|---|---|---|"]
    lines += [row.line() for row in rows]
    print("\n".join(lines))
    if words.out is not None:
        head = words.out.read_text().partition("| tool |")[0]
        words.out.write_text(head + "\n".join(lines) + f"\n\nOn torch {torch.__version__}.\n")
    if not all(row.fine for row in rows):
        raise SystemExit("NOT the same: " + "; ".join(row.what for row in rows if not row.fine))


main()
