"""Exported Python files: a part of `files` behind the common ones, with numbers put in.

The code is always the same text; only literals are filled in, so that no name or number of a plan
can become code.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ld3 import __version__
from ld3.errors import ExportError

FILES = Path(__file__).parent / "files"
COMMON = ("ld3_plans", "ld3_model", "ld3_sampler")


def python_file(parts: Sequence[str], values: Mapping[str, object]) -> bytes:
    """The common parts and these as one file, `NAME = ...` lines of the last filled in."""
    *common, own = (_alone(FILES / f"{name}.py") for name in (*COMMON, *parts))
    for name, value in values.items():
        literal = json.dumps(value, allow_nan=False)
        before, mark, after = own.partition(f"\n{name} = ")
        if not mark or ast.literal_eval(literal) != value:
            raise ExportError(f"export: cannot put {name} into {parts[-1]}.py")
        own = f"{before}{mark}{literal}\n{after.partition(chr(10))[2]}"
    text = "\n\n".join([f"# Made by ld3 {__version__}.\n{common[0]}", *common[1:], own])
    ast.parse(text, feature_version=(3, 10))
    return text.encode()


def _alone(path: Path) -> str:
    """The text without its imports of the other parts, which will stand above it."""
    text = path.read_text("utf-8")
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ld3."):
            last = node.end_lineno or node.lineno
            lines[node.lineno - 1 : last] = [""] * (last - node.lineno + 1)
    return "".join(lines)
