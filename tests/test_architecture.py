"""The rules of the house that code can check. (That imports point one way: tests/test_docs.py.)"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "ld3"

FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


PAGE = SOURCE.parent.parent / "docs" / "architecture.md"
CORE = [
    "schedules",
    "predictions",
    "seeds",
    "grids",
    "density",
    "solvers",
    "sampling",
    "table",
    "guidance",
    "teacher",
    "distances",
    "problem",
    "parameters",
    "learner",
]
CORE_LINES = 2500


def lines_of_code(text: str) -> int:
    """Lines with code on them: not blank, not a comment, not part of a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        value = getattr(node, "value", None) if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            docstrings |= set(range(value.lineno, (value.end_lineno or 0) + 1))
    layout = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER,
    }  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def test_lines_of_code_by_hand() -> None:
    text = """'''Two
    lines.'''

# a comment
VALUE = (
    1,  # one
)


def nothing() -> None: ...


def call(x: str) -> None:
    'One line.'
    print('''
    counted: not a docstring
    ''', x)
"""
    assert lines_of_code(text) == 3 + 1 + 1 + 3


def test_the_core_is_short_enough_to_read() -> None:
    """The page names the rooms of the core, and the number of lines they have at most."""
    count = 0
    for room in CORE:
        paths = sorted((SOURCE / room).rglob("*.py")) or [SOURCE / f"{room}.py"]
        count += sum(lines_of_code(path.read_text()) for path in paths)
    assert count <= CORE_LINES, f"the core has {count} lines of code"
    section = PAGE.read_text().split("## The core")[1].split("\n## ")[0]
    assert f"at most {CORE_LINES:,} lines of code" in section
    rows = re.findall(r"^\d\. (`.*?`):", section, flags=re.MULTILINE)
    assert sorted(re.findall("`(.+?)`", " ".join(rows))) == sorted(CORE)


def test_every_file_has_a_docstring_that_says_what_it_is() -> None:
    for path in FILES:
        assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_unsafe(path: Path) -> None:
    """No unpickling, no eval, and every torch.load says weights_only=True."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            assert not names & {"pickle", "dill", "cloudpickle", "shelve", "marshal"}
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "compile", "__import__"}
            if called == "torch.load":
                safe = [k for k in node.keywords if k.arg == "weights_only"]
                assert safe and ast.unparse(safe[0].value) == "True"


def test_the_core_needs_torch_and_numpy_alone() -> None:
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torchvision', 'scipy', 'matplotlib', 'diffusers',"
        " 'lpips', 'torchmetrics', 'PIL'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import ld3\n"
        "for name in ld3.__all__: getattr(ld3, name)\n"
        "import ld3.distances, ld3.zoo.lpips, ld3.zoo.toy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_imports_have_no_cycles() -> None:
    """Neither between rooms nor inside them, also not through imports inside of functions."""
    names = {}
    for path in FILES:
        if "files" not in path.parts:  # parts of exported files
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            names[".".join(parts).removesuffix(".__init__")] = path
    uses = {name: _used(path, set(names)) - {name} for name, path in names.items()}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in sorted(uses[name]):
                visit(other, (*way, name))
            done.add(name)

    for name in names:
        visit(name, ())


def _used(path: Path, known: set[str]) -> set[str]:
    """The modules of ld3 that a file imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known


def test_public_names_are_what_they_say() -> None:
    import ld3

    for name in ld3.__all__:
        value = getattr(ld3, name)
        assert not isinstance(value, type(ast)), f"ld3.{name} is a module"
    with pytest.raises(AttributeError, match="no attribute"):
        _ = ld3.nothing
