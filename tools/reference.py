"""Write the pages of reference that follow from the code: commands, presets, metrics and formats.

python tools/reference.py          # tests/test_docs.py says when it is due
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import click
import torch
from pydantic import BaseModel

import ld3.comparison
import ld3.evaluation
import ld3.metrics
import ld3.plan
from ld3.cli import cli
from ld3.export import TARGETS
from ld3.learner.presets import PRESETS, make_preset, without_gradients
from ld3.learner.recipes import GaussNewton, PaperRules, PreconditionedAdam
from ld3.options import PipelineOptions
from ld3.runs.compare.spec import CompareSpec
from ld3.runs.compare.statistics import metrics_of
from ld3.scores import FamilyScores, Scores

MADE = "`tools/reference.py` writes this page."
DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Commands

Every command and option, as `--help` prints them. `tools/reference.py` writes this page.

Lists have commas (`--nfe 4,6`), ranges of whole numbers a hyphen (`--nfe 4-10`). Solvers are
`NAME`, `NAME:ORDER` or `NAME:ORDER:VARIANT` (`--solver unipc:3:bh2`). `--spec FILE.toml` takes the
same options from a file.
"""


def commands() -> str:
    """Every command with its arguments, options and defaults."""
    return "\n".join([HEAD, *(_command(name, cli.commands[name]) for name in sorted(cli.commands))])


def _command(name: str, command: click.Command, before: str = "ld3") -> str:
    if isinstance(command, click.Group):
        parts = (
            _command(part, command.commands[part], f"{before} {name}")
            for part in sorted(command.commands)
        )
        return "\n".join(parts)
    arguments = [
        f"{p.make_metavar(click.Context(command))}"
        for p in command.params
        if isinstance(p, click.Argument)
    ]
    lines = [
        f"## {before} {name} {' '.join(arguments)}".rstrip(),
        "",
        _text(command.help or ""),
        "",
    ]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        lines += ["| option | what it does | default |", "|---|---|---|", *map(_row, options), ""]
    return "\n".join(lines)


def _row(option: click.Option) -> str:
    help, _, default = (option.help or "").partition("[default: ")
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = _text(default.rstrip().removesuffix("]")) or "-"
    if len(default) > 30 and " " not in default:
        default = default.replace(",", ", ")  # so that the cell can be wrapped
    return f"| {names} | {_text(help)} | {default} |"


def _text(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"(?<!\\)([|*])", r"\\\1", text)


def presets() -> str:
    """Every preset with its pairs, teacher and settings."""
    made = {name: make_preset(name, 5) for name in PRESETS}
    text = [
        "# Presets",
        "A preset is a recipe with the number of pairs and the teacher: "
        "`ld3 learn --preset NAME`.\n"
        "`--recipe NAME=VALUE` changes a setting. [Learning a plan](learn.md) explains "
        "the recipes.\n"
        f"Values are for 5 evaluations. {MADE}",
        _table(
            ("preset", "what", "training pairs", "validation pairs", "teacher", "starts"),
            (
                (f"`{name}`", PRESETS[name][1], p.train, p.valid, _teacher(name), p.starts)
                for name, p in made.items()
            ),
        ),
    ]
    free = {"--gradient-free": without_gradients(made["standard"])}
    for kind in (PreconditionedAdam, PaperRules, GaussNewton):
        shown = {n: p.recipe for n, p in (made | free).items() if isinstance(p.recipe, kind)}
        rows = [
            (f"`{field}`", meaning, _shared({n: _per_nfe(n, field, r) for n, r in shown.items()}))
            for field, meaning in _meanings(kind).items()
        ]
        first = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
        names = ", ".join(f"`{name}`" for name in shown)
        text += [f"## {kind.__name__}", f"{first} Used by {names}."]
        text += [_table(("setting", "meaning", "value"), rows)]
    return "\n\n".join(text) + "\n"


def _teacher(name: str) -> str:
    few, many = (make_preset(name, nfe).teacher for nfe in (5, 10))
    if few == many:
        return few.title
    return f"{few.title}; {many.steps} steps for 10 evaluations"


def _shared(values: dict[str, str]) -> str:
    """The value of most presets, then those that differ."""
    usual = max(values.values(), key=list(values.values()).count)
    others = [f"`{name}`: {value}" for name, value in values.items() if value != usual]
    return "; ".join([usual, *others])


def _per_nfe(name: str, field: str, recipe: object) -> str:
    value = getattr(recipe, field)
    if name in PRESETS and getattr(make_preset(name, 10).recipe, field) != value:
        return f"{5 * value:g} / NFE"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def metrics() -> str:
    """Names of metrics, and the functions that compute them."""
    text = [
        "# Names of metrics",
        "What `--metrics` takes, the columns of a comparison, and the functions behind them.\n"
        f"[Metrics](metrics.md) has the formulas and when to trust them. {MADE}",
        "## ld3 evaluate",
        _table(
            ("name", "meaning"),
            ((f"`{name}`", label) for name, label in ld3.evaluation.LABELS.items()),
        ),
    ]
    for title, shape in (("images", (1, 28, 28)), ("point clouds", (64, 3))):
        columns = _columns(torch.zeros(2, *shape))
        text += [f"## ld3 compare --full, {title}"]
        text += [_table(("name", "meaning", "better"), columns)]
    rows = ((f"`{name}`", _first(getattr(ld3.metrics, name))) for name in ld3.metrics.__all__)
    text += ["## ld3.metrics", _table(("name", "what it computes or holds"), rows)]
    return "\n\n".join(text) + "\n"


def _columns(target: torch.Tensor) -> Iterator[tuple[str, str, str]]:
    session: Any = SimpleNamespace(
        measure=SimpleNamespace(name=""),
        reference=SimpleNamespace(title="twice the teacher's steps"),
        loaded=SimpleNamespace(name="fashion"),
        held_out=lambda count: SimpleNamespace(target=target),
    )
    for metric in metrics_of(session, CompareSpec(full=True), "the network"):
        unit = f", {metric.unit}" if re.match(r"%|times", metric.unit) else ""
        better = metric.better if "best at" not in unit else "50"
        yield f"`{metric.key}`", metric.label + unit, better


def _first(thing: object) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].replace("``", "`").split())
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", re.split(r"(?<=[.]) ", text)[0])


def formats() -> str:
    """The fields of every file that ld3 writes for others to read."""
    text = [
        "# File formats",
        "The fields of the JSON files that `ld3` writes. Reading a file checks every field, and "
        "refuses unknown ones, except in `learned` of a plan.\n"
        "A field without a default must be there. "
        f"The options in TOML files of `--spec` are those of the [commands](commands.md). {MADE}",
        "## Exports",
        "What `ld3 export --to` writes.",
        _table(("`--to`", "what"), ((f"`{n}`", t.summary) for n, t in TARGETS.items())),
    ]
    plan, compared, evaluated = ld3.plan, ld3.comparison, ld3.evaluation
    parts: dict[str, Sequence[type]] = {
        "plan.json": (
            plan.Plan, plan.SolverPart, plan.TablePart, plan.GuidancePart, plan.ModelPart,
            PipelineOptions, plan.Member, plan.FamilyPart, plan.Provenance, plan.StartsPart,
            plan.CandidatePart, Scores, FamilyScores,
        ),
        "compare.json": (
            compared.Comparison, compared.Metric, compared.Method, compared.Block, compared.Row,
            compared.Range, compared.Pictures, compared.Sheet,
        ),
        "evaluate.json": (evaluated.Evaluation, evaluated.EvaluatedRow, evaluated.Estimate),
    }  # fmt: skip
    for file, kinds in parts.items():
        text.append(f"## {file}")
        for kind in kinds:
            rows = (
                (f"`{name}`", type_, default, comment)
                for name, type_, default, comment in _fields(kind)
            )
            text += [f"### `{kind.__name__}`", _first(kind)]
            text += [_table(("field", "type", "default", "meaning"), rows)]
    return "\n\n".join(text) + "\n"


def _meanings(kind: type) -> dict[str, str]:
    """Each setting of a recipe with its comment, those of the classes below it first."""
    comments = {n: c for k in reversed(kind.__mro__[:-1]) for n, _, _, c in _fields(k) if c}
    return {field.name: comments.get(field.name, "") for field in fields(kind)}


def _fields(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and comment of the fields that a class itself has."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = "" if node.value is None else f"`{ast.unparse(node.value)}`"
            line = lines[(node.end_lineno or 1) - 1].encode()
            comment = line[node.end_col_offset or 0 :].decode().strip(" #")
            above = lines[node.lineno - 2].strip()
            if not comment and above.startswith("#"):
                comment = above.strip(" #")
            words = _type(node.annotation, vars(sys.modules[kind.__module__]))
            yield node.target.id, words, default, comment


NAMES = {
    "Text": "text", "str": "text", "Number": "number", "float": "number", "int": "whole number",
    "Count": "whole number", "bool": "true or false", "Times": "list of numbers", "Png": "text",
    "Row": "list of numbers", "Knot": "number", "Any": "anything", "None": "null",
    "Corrections": "list of lists of numbers, or null",
    "Prediction": "a [prediction](models.md#prediction)", "Kind": "text", "Gain": "text",
    "Prompt": "text", "Size": "whole number",
}  # fmt: skip


def _type(node: ast.AST, known: Mapping[str, object]) -> str:
    """A type as a reader knows it; a class of the module by its name."""
    if isinstance(node, ast.BinOp):
        return f"{_type(node.left, known)} or {_type(node.right, known)}"
    if isinstance(node, ast.Subscript):
        outer = ast.unparse(node.value)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer == "Literal":
            return " or ".join(f"`{ast.unparse(e)}`" for e in inner)
        if outer == "Annotated":
            return _type(inner[0], known)
        part = _type(inner[0 if outer == "tuple" else -1], known)
        part = re.sub(r"^(list|text|(whole )?number)\b", r"\1s", part)
        return f"{'object' if outer == 'dict' else 'list'} of {part}"
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _type(ast.parse(node.value, mode="eval").body, known)
    name = ast.unparse(node)
    thing = known.get(name)
    if isinstance(thing, type) and issubclass(thing, BaseModel):
        return f"`{name}`"
    return NAMES.get(name) or " or ".join(f"`{choice!r}`" for choice in get_args(thing))


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_text(str(c)) for c in row)} |" for row in cells)


PAGES = {
    "commands": commands,
    "presets": presets,
    "metric-names": metrics,
    "formats": formats,
}


if __name__ == "__main__":
    for name, made in PAGES.items():
        (DOCS / f"{name}.md").write_text(made(), encoding="utf-8")
        print(DOCS / f"{name}.md")
