"""Exported Python files: a part of `files` behind the common sampler, with numbers put in.

The code is always the same text; only literals are filled in, so that no name or number of a plan
can become code.
"""

import ast
import json
from collections.abc import Mapping
from pathlib import Path

from ld3 import __version__
from ld3.errors import ExportError

FILES = Path(__file__).parent / "files"


def python_file(part: str, values: Mapping[str, object]) -> bytes:
    """`files/ld3_sampler.py` and `files/<part>.py` as one file, `NAME = ...` lines filled in."""
    common, own = ((FILES / f"{name}.py").read_text("utf-8") for name in ("ld3_sampler", part))
    for name, value in values.items():
        literal = json.dumps(value, allow_nan=False)
        before, mark, after = own.partition(f"\n{name} = ")
        if not mark or ast.literal_eval(literal) != value:
            raise ExportError(f"export: cannot put {name} into {part}.py")
        own = f"{before}{mark}{literal}\n{after.partition(chr(10))[2]}"
    text = f"# Made by ld3 {__version__}.\n{common}\n\n{own}"
    ast.parse(text, feature_version=(3, 10))
    return text.encode()
