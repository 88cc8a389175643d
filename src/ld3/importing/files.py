"""Files of numbers: lists, and tables of published methods. Nothing in a file is run.

A list is text (numbers with anything between them), or JSON: a list, or an object that has one as
`sigmas` or `timesteps`. Tables are

    DyWeight        a .pt file, read with weights_only: dyweight_weights_raw, dyweight_t_scales
    NeuralSolver    JSON or a Python file with step5=dict(timedeltas=[..], coeffs=[[..]]), and so on

Of a Python file only literals are read.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3.errors import SpecError, StoreError, unknown
from ld3.importing.tables import Multistep
from ld3.store import read_bytes, read_json

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
BETWEEN = re.compile(r"[\s,;\[\]()]*")
LARGEST = 1_000_000  # bytes
MOST = 1001  # numbers of a list


def read_numbers(source: str) -> list[float]:
    """The numbers of a list, or of the file that has one."""
    path = Path(source).expanduser()
    if path.is_file():
        if path.suffix.lower() == ".json":
            return _listed(read_json(path), source)
        text = _text(path)
    elif re.search(r"[A-Za-z]{2}", source):
        raise SpecError(
            f"source: got {source!r}, expected the name of a known grid (ld3 methods), a file, "
            "diffusers:CLASS, or a list such as 14.6,2.9,0.03"
        )
    else:
        text = source
    if BETWEEN.fullmatch(NUMBER.sub("", text)) is None:
        raise SpecError(f"{source[:80]}: got more than numbers, expected a list such as 14.6,2.9")
    return _checked([float(number) for number in NUMBER.findall(text)], source)


def read_table(path: Path, steps: int | None, name: str = "") -> Multistep | None:
    """The table of a published method; None if the file is a list. `name` is that of the variable,
    for files with several tables of as many steps."""
    suffix = path.suffix.lower()
    if suffix in (".pt", ".pth"):
        return _dyweight(path)
    if suffix == ".py":
        found = _literals(_text(path), str(path))
    elif suffix == ".json":
        found = read_json(path)
    else:
        return None
    if name:
        if not isinstance(found, Mapping) or name not in found:
            raise unknown("table", name, found if isinstance(found, Mapping) else ())
        found = found[name]
    pairs = _tables(found)
    tables = dict(pairs)
    if not tables:
        if suffix == ".py":
            raise SpecError(f"{path}: got no timedeltas and coeffs, expected those of NeuralSolver")
        return None
    count = next(iter(tables)) if steps is None and len(tables) == 1 else steps
    if count not in tables:
        known = ", ".join(map(str, sorted(tables)))
        raise SpecError(f"steps: got {steps} for {path}, expected one of {known}")
    if sum(one == count for one, _ in pairs) > 1:
        raise SpecError(
            f"{path}: got several tables of {count} steps in {', '.join(found)}; choose one with "
            f"{path}#NAME"
        )
    return tables[count]


def _dyweight(path: Path) -> Multistep:
    if path.stat().st_size > LARGEST:
        raise SpecError(f"{path}: got {path.stat().st_size} bytes, expected a small table")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has many, of several kinds
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise StoreError(f"{path}: cannot be read as tensors alone ({reason})") from None
    names = ("dyweight_weights_raw", "dyweight_t_scales")
    parts = [found.get(name) for name in names] if isinstance(found, Mapping) else [None, None]
    if not all(isinstance(part, Tensor) for part in parts):
        raise SpecError(f"{path}: got no {' and '.join(names)}, expected a table of DyWeight")
    weights, scales = (part.detach().double() for part in parts if part is not None)
    _check_square(weights, scales, str(path))
    return Multistep("DyWeight", weights.tril(), scales=scales)


def _tables(found: Any) -> list[tuple[int, Multistep]]:
    """All pairs of timedeltas and coeffs, by the number of steps."""
    if not isinstance(found, Mapping):
        return []
    if {"timedeltas", "coeffs"} <= set(found):
        try:
            widths, coeffs = (
                torch.tensor(found[name], dtype=torch.float64) for name in ("timedeltas", "coeffs")
            )
        except (TypeError, ValueError):
            raise SpecError("NeuralSolver: got a table that is not of numbers") from None
        _check_square(coeffs, widths, "NeuralSolver")
        weights = coeffs.tril(-1)
        weights = weights + torch.diag(1 - weights.sum(1))  # the newest has the rest
        return [(len(widths), Multistep("NeuralSolver", weights, widths=widths))]
    return [pair for part in found.values() for pair in _tables(part)]


def _check_square(square: Tensor, row: Tensor, name: str) -> None:
    count = len(row)
    good = row.ndim == 1 and square.shape == (count, count) and 0 < count <= MOST
    if not good or not bool(torch.isfinite(square).all() and torch.isfinite(row).all()):
        raise SpecError(
            f"{name}: got tables of shapes {tuple(square.shape)} and {tuple(row.shape)}, expected "
            "finite (N, N) and (N,)"
        )


def _literals(text: str, name: str) -> dict[str, Any]:
    """What is assigned in a Python file, where it is made of numbers, lists and dicts alone."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        raise SpecError(f"{name}: cannot be read as Python") from None
    found = {}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = _literal(node.value)
            if value is not None:
                found[node.targets[0].id] = value
    return found


def _literal(node: ast.expr) -> Any:
    """A literal, or dict(a=..) of literals; None for all else."""
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id != "dict" or node.args:
            return None
        return {key.arg: _literal(key.value) for key in node.keywords if key.arg is not None}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _listed(content: Any, source: str) -> list[float]:
    if isinstance(content, Mapping):
        names = [name for name in ("sigmas", "timesteps", "times") if name in content]
        content = content[names[0]] if names else content
    good = isinstance(content, list) and all(
        isinstance(n, int | float) and not isinstance(n, bool) for n in content
    )
    if not good:
        raise SpecError(f"{source}: got no list of numbers, expected one, or one named sigmas")
    return _checked([float(n) for n in content], source)


def _checked(numbers: list[float], source: str) -> list[float]:
    if not 0 < len(numbers) <= MOST:
        raise SpecError(f"{source[:80]}: got {len(numbers)} numbers, expected 1 to {MOST}")
    return numbers


def _text(path: Path) -> str:
    content = read_bytes(path)
    if len(content) > LARGEST:
        raise SpecError(f"{path}: got {len(content)} bytes, expected a small file")
    return content.decode(errors="replace")
