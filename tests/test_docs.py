"""The documentation is true: its code runs, its output is real, its links and names exist.

Blocks of README.md, CONTRIBUTING.md, SECURITY.md and docs/**/*.md, by the word after the fence:

    python  runs; all blocks of a page in order, in one namespace and a temporary directory
    bash    lines that call `ld3` run through the command line; others are only looked at
    text    right below a block that ran: what that block printed

A block is left out only by a comment on the line above: <!-- not run: the reason -->
"""

import ast
import importlib
import importlib.util
import io
import math
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest import mock

import click
import pytest

import ld3
from ld3.cli import cli, main
from ld3.distances import DISTANCES
from ld3.known_grids import METHODS
from ld3.runs.compare.methods import LEARNED
from ld3.schedules import SCHEDULES
from ld3.searches.registry import SEARCHES
from ld3.solvers import SOLVERS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    page
    for page in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    )
    if page.is_file() and "_build" not in page.parts
]
REGISTRIES = {
    "solver": SOLVERS,
    "method": METHODS,
    "schedule": SCHEDULES,
    "distance": DISTANCES,
}
LPIPS = ("lpips-vgg", "lpips-alex")  # distances with weights from elsewhere
PLAIN = {"python", "bash", "text", "toml", "json"}
DIRECTIVES = {"{toctree}", "{include}", "{eval-rst}", "{note}", "{warning}"}
NOT_RUN = {"make", "pip", "git", "cd", "source", "python", "python3", ".venv/bin/python"}


@dataclass(frozen=True)
class Block:
    line: int  # of its first line of code, from 1
    kind: str  # what stands after the fence
    code: str
    excused: str | None  # why it does not run
    follows: bool  # only blank lines between the block before and this one


def read(text: str) -> tuple[list[Block], str]:
    """The fenced blocks of a page, and the rest of it."""
    blocks: list[Block] = []
    rest: list[str] = []
    lines = text.splitlines()
    i, follows = 0, False
    while i < len(lines):
        fence = re.match(r"( *)(`{3,}|~{3,}) *(.*)", lines[i])
        if not fence:
            follows = follows and not lines[i].strip()
            rest.append(lines[i])
            i += 1
            continue
        indent, ticks, kind = fence.groups()
        above = lines[i - 1] if i else ""
        reason = re.fullmatch(r"\s*<!-- not run: (.*\S) -->\s*", above)
        assert reason or "not run" not in above or "<!--" not in above, f"no reason: {above}"
        end = i + 1
        closing = re.compile(rf" *{ticks[0]}{{{len(ticks)},}} *")
        while end < len(lines) and not closing.fullmatch(lines[end]):
            end += 1
        assert end < len(lines), f"line {i + 1}: a fence that is never closed"
        code = "\n".join(line.removeprefix(indent) for line in lines[i + 1 : end])
        blocks.append(Block(i + 2, kind.strip(), code, reason and reason[1], follows))
        i, follows = end + 1, True
    return blocks, "\n".join(rest)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=name)


def commands(block: Block) -> Iterator[list[str]]:
    """The command lines of a bash block as words, without comments, prompts and settings."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words:
            yield words


def all_commands(page: Path) -> Iterator[list[str]]:
    """Those of the bash blocks and those that stand in the text between backticks."""
    blocks, rest = read(page.read_text())
    for block in blocks:
        if block.kind == "bash":
            yield from commands(block)
    for span in code_spans(rest):
        if re.match(r"(ld3|make|pip|python) |-", span):
            yield shlex.split(span)


def code_spans(text: str) -> list[str]:
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


# ---- what runs


def run_bash(block: Block) -> bool:
    """Run the `ld3` lines; whether all lines were such."""
    ran = []
    for words in commands(block):
        ran.append(words[0] == "ld3")
        if words[0] != "ld3":
            assert words[0] in NOT_RUN, f"cannot run {words[0]!r}: mark the block with a reason"
            continue
        assert not {"|", ">", "<", "&&", ";"} & set(words), f"only plain calls can run: {words}"
        with pytest.raises(SystemExit) as end:
            main(words[1:])
        assert not end.value.code, f"`{' '.join(words)}` ended with code {end.value.code}"
    return all(ran)


def same_output(shown: str, printed: str) -> bool:
    """Words and whole numbers agree, others to 2 percent or one in the last digit.

    A last line `...` stands for the rest.
    """
    if shown.rstrip().endswith("\n..."):
        shown = shown.rstrip().removesuffix("...").rstrip()
        printed = "\n".join(printed.splitlines()[: len(shown.splitlines())])
    number = r"(-?\d+\.?\d*(?:e[-+]?\d+)?)"
    wanted, got = (re.split(number, " ".join(text.split())) for text in (shown, printed))
    return len(wanted) == len(got) and all(
        w == g or (i % 2 == 1 and "." in w and close(w, g))
        for i, (w, g) in enumerate(zip(wanted, got, strict=True))
    )


def close(wanted: str, got: str) -> bool:
    digits = 0 if "e" in wanted else 1.01 * 10.0 ** -len(wanted.partition(".")[2])
    return math.isclose(float(wanted), float(got), rel_tol=0.02, abs_tol=digits)


@every_page
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    printed: str | None = None  # by the block before, if it ran
    with ExitStack() as stack:
        for registry in (*REGISTRIES.values(), SEARCHES):
            stack.enter_context(mock.patch.dict(registry))  # undoes what a page adds
        for block in read(page.read_text())[0]:
            here = f"{name(page)}:{block.line}"
            out = io.StringIO()
            ran = False
            with redirect_stdout(out):
                if block.kind == "python" and not block.excused:
                    source = "\n" * (block.line - 1) + block.code
                    exec(compile(source, str(page), "exec"), module.__dict__)
                    ran = True
                elif block.kind == "bash" and not block.excused:
                    ran = run_bash(block)
            if block.kind == "text" and block.follows and printed is not None:
                assert same_output(block.code, printed), f"{here}: it printed\n{printed}"
            printed = out.getvalue() if ran else None


@every_page
def test_every_block_is_of_a_known_kind(page: Path) -> None:
    """So that none escapes by another spelling."""
    for block in read(page.read_text())[0]:
        kind = block.kind.split()[0] if block.kind else "nothing"
        assert kind in PLAIN | DIRECTIVES, f"{name(page)}:{block.line}: a block of {kind}"
        assert not block.excused or kind in {"python", "bash"}, f"{name(page)}:{block.line}"


def test_the_reader_itself() -> None:
    page = "a\n<!-- not run: slow -->\n```python\n1/0\n```\n\n````text\n```\n````\nb `ld3 x`\n"
    blocks, rest = read(page)
    assert [(b.line, b.kind, b.code, b.excused, b.follows) for b in blocks] == [
        (4, "python", "1/0", "slow", False),
        (8, "text", "```", None, True),
    ]
    assert code_spans(rest) == ["ld3 x"]
    with pytest.raises(AssertionError, match="no reason"):
        read("<!-- not run -->\n```python\n```\n")
    with pytest.raises(AssertionError, match="never closed"):
        read("```python\n")


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("error 0.100", "error  0.101\n", True),
        ("error 0.100", "error 0.11", False),
        ("error 0.01", "error 0.02", True),
        ("4 steps", "5 steps", False),
        ("a 1\n...", "a 1\nb 2\n", True),
        ("a 2\n...", "a 1\nb 2\n", False),
        ("tensor([-1.0e-03])", "tensor([-1.001e-03])", True),
    ],
)
def test_output_is_compared(shown: str, printed: str, same: bool) -> None:
    assert same_output(shown, printed) is same


# ---- what is named


def anchors(page: Path) -> set[str]:
    """The places of a page a link can name, as GitHub and MyST spell them."""
    headings = re.findall(r"^#{1,6} +(.+?) *$", read(page.read_text())[1], flags=re.MULTILINE)
    plain = (re.sub(r"[`*]", "", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`]+`", "", read(page.read_text())[1])
    links = re.findall(r"\]\(([^)\s]+)[^)]*\)", text)
    links += re.findall(r"^\[[^\]]+\]: *(\S+)", text, flags=re.MULTILINE)
    links += re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    for link in links:
        if re.match(r"(https?|mailto):", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: no file for the link {link}"
        assert target.is_relative_to(ROOT), f"{name(page)}: {link} leads out of the repository"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name(page)}: no heading for the link {link}"


@every_page
def test_commands_exist(page: Path) -> None:
    """Targets of make, commands and options of ld3, names given to options, extras, scripts."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, flags=re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for words in all_commands(page):
        here = f"{name(page)}: {' '.join(words)}"
        if words[0] == "make":
            for target in words[1:]:
                assert target in targets or "=" in target, f"{here}: no such target"
        if words[0] == "ld3":
            check_ld3(words, here)
        if words[0] == "pip":
            for extra in re.findall(r"\[([\w,-]+)\]", " ".join(words)):
                assert set(extra.split(",")) <= set(project["optional-dependencies"]), here
        made = words[:2] == ["ld3", "init"]
        for script in (word for word in words if word.endswith(".py") and not made):
            assert (ROOT / script).is_file(), f"{here}: no such file"
        for option, value in re.findall(r"--(\w+)[ =]([\w-]+)", " ".join(words)):
            known = REGISTRIES.get(option)
            assert known is None or value.isupper() or value in (*known, *LPIPS), (
                f"{here}: unknown {option}"
            )


def check_ld3(words: list[str], here: str) -> None:
    command = cli.commands.get(words[1]) if len(words) > 1 else None
    if isinstance(command, click.Group) and len(words) > 2:
        assert words[2] in command.commands, f"{here}: no such command"
        command = command.commands[words[2]]
    assert command or len(words) < 2 or words[1].startswith("-"), f"{here}: no such command"
    known = {"-h", "--help"} | {opt for p in (command or cli).params for opt in p.opts}
    for word in words[1:]:
        option = word.partition("=")[0]
        assert not option.startswith("-") or option in known, f"{here}: no option {option}"


@every_page
def test_names_of_the_library_exist(page: Path) -> None:
    """Every `ld3.a.b` in the text can be imported."""
    for span in code_spans(read(page.read_text())[1]):
        dotted = re.match(r"ld3(?:\.[A-Za-z_]\w*)+", span)
        if not dotted or span.endswith((".css", ".py")):
            continue
        found: object = importlib.import_module("ld3")
        path = "ld3"
        for part in dotted[0].split(".")[1:]:
            path = f"{path}.{part}"
            if not hasattr(found, part):
                importlib.import_module(path)  # a module not loaded so far
            assert hasattr(found, part), f"{name(page)}: there is no {path}"
            found = getattr(found, part)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_registries_are_documented(kind: str) -> None:
    """Each name has its row on the page of its kind, and no row names an unknown one."""
    page = {"solver": "solvers", "method": "grids", "schedule": "schedules"}.get(kind, "distances")
    text = (ROOT / "docs" / f"{page}.md").read_text()
    text = re.sub(r"^\| (setting|method) \|.*\n(\|.*\n)*", "", text, flags=re.MULTILINE)  # of one
    rows = re.findall(r"^\| `([\w-]+)` \|", text, flags=re.MULTILINE)
    assert rows == [*REGISTRIES[kind], *((*SEARCHES, *LEARNED) if kind == "method" else ())]


# ---- the picture of the architecture


def test_architecture_is_the_real_one() -> None:
    """The table of rooms is complete, and imports point up in it."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", text, flags=re.MULTILINE)
    floors = [re.findall(r"`(\w+)`", row) for row in rows]
    level = {room: number for number, rooms in enumerate(floors) for room in rooms}
    package = ROOT / "src" / "ld3"
    files = [file for file in package.rglob("*.py") if file != package / "__init__.py"]
    rooms = {file: file.relative_to(package).with_suffix("").parts[0] for file in files}
    assert set(level) == set(rooms.values())
    for file, room in rooms.items():
        for node in ast.walk(ast.parse(file.read_text())):
            for used in imported(node) - {room}:
                assert level[used] < level[room], f"{file.name}: {room} must not import {used}"


def imported(node: ast.AST) -> set[str]:
    """The rooms of ld3 that an import statement names."""
    paths = []
    if isinstance(node, ast.Import):
        paths = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        assert node.level == 0, "relative imports hide where they lead"
        paths = [f"{node.module}.{alias.name}" for alias in node.names]
    parts = [path.split(".") for path in paths]
    return {path[1] for path in parts if path[0] == "ld3" and len(path) > 1} - {"__version__"}


@pytest.mark.parametrize("page", ["commands", "presets", "metric-names", "formats"])
def test_pages_made_from_the_code_are_new(page: str) -> None:
    """`python tools/reference.py` writes them."""
    found = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert found is not None and found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    assert (ROOT / "docs" / f"{page}.md").read_text("utf-8") == made.PAGES[page]()


# Prose: README, tutorials, how-to pages and reference; help texts and messages

DENSE = ("architecture", "reproduce")  # for developers; a list of results
EASY = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "tools").glob("*.md")),
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem not in DENSE),
]
PRIVATE = re.compile(
    r"\b(judges?|judged|judging|doors?|told|asked|mend(?:s|ed|ing)?|noises|pictures?|words|laws?|"
    r"what one gets|with chance)\b",
    re.I,
)
SCRIPTS = ("examples", "tools", "training", "benchmarks")
MORE_PAGES = [ROOT / "CHANGELOG.md", *sorted((ROOT / "training").glob("*.md"))]


def sentences(page: Path) -> list[str]:
    """Sentences of running text and of cells; code and comments left out."""
    left_out = re.compile(r"```.*?```|<!--.*?-->|`[^`]*`|\$[^$]*\$", flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", left_out.sub(" code ", page.read_text("utf-8")))
    paragraphs = re.split(r"\n\s*\n|\n(?=[-*|#\d])|\|", text)
    return [s for p in paragraphs for s in re.split(r"(?<=[.!?:]) ", " ".join(p.split())) if s]


@pytest.mark.parametrize("page", [p for p in EASY if p.is_file()], ids=lambda page: page.stem)
def test_prose_is_easy_to_read(page: Path) -> None:
    found = sentences(page)
    assert found and not [s for s in found if len(s.split()) > 35]


@pytest.mark.parametrize("page", [*PAGES, *MORE_PAGES], ids=name)
def test_pages_use_the_terms_of_the_field(page: Path) -> None:
    assert not [s for s in sentences(page) if PRIVATE.search(s)]


def test_help_texts_are_easy_to_read() -> None:
    for name, command in all_helps():
        shown = [param for param in command.params if not getattr(param, "hidden", False)]
        texts = [command.help or "", *(getattr(p, "help", None) or "" for p in shown)]
        options = [opt for param in shown for opt in param.opts]
        for text in (*texts, *options):
            assert not PRIVATE.search(re.sub("`[^`]*`", "", text)), (name, text)
            for sentence in re.split(r"(?<=[.!?:]) ", " ".join(text.split())):
                assert len(sentence.split()) <= 35, (name, sentence)


def all_helps() -> Iterator[tuple[str, click.Command]]:
    for name, command in cli.commands.items():
        yield name, command
        for inner in command.commands.values() if isinstance(command, click.Group) else ():
            yield f"{name} {inner.name}", inner


def test_lists_of_commands_cut_no_sentence() -> None:
    for group in (cli, *(c for c in cli.commands.values() if isinstance(c, click.Group))):
        with click.Context(group, info_name="ld3", terminal_width=80) as context:
            text = group.get_help(context)
        assert "..." not in text.partition("Commands:")[2], text


def private_docstrings(folder: Path) -> list[str]:
    """Lines with a private word outside of code, in docstrings and below attributes."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
                continue
            text = re.sub(
                r"``?[^`]*``?", lambda code: "\n" * code[0].count("\n"), str(node.value.value)
            )
            for number, line in enumerate(text.splitlines(), node.lineno):
                if PRIVATE.search(line):
                    found.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()}")
    return found


@pytest.mark.parametrize("folder", SCRIPTS)
def test_scripts_use_the_terms_of_the_field(folder: str) -> None:
    assert not private_docstrings(ROOT / folder)


def test_docstrings_have_no_private_words() -> None:
    """All of the package: the API page shows them."""
    found = private_docstrings(ROOT / "src" / "ld3")
    assert not found, "\n".join(found)


def test_messages_use_the_terms_of_the_field() -> None:
    """Texts in the code with a space in them, but for docstrings: what is printed or raised."""
    found = []
    for file in sorted((ROOT / "src" / "ld3").rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        silent = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if id(node) not in silent and " " in text.strip() and PRIVATE.search(text):
                    found.append(f"{file.name}:{node.lineno}: {text}")
    assert not found


def test_the_tutorials_were_all_done() -> None:
    """`make tutorials` writes the table: every page, none with a fault."""
    text = (ROOT / "docs" / "results" / "tutorials.md").read_text("utf-8")
    rows = re.findall(r"^\| ([a-z-]+) \|.*\| ([^|]+) \|$", text, flags=re.MULTILINE)
    pages = {page.stem for page in (ROOT / "docs" / "tutorials").glob("*.md")}
    assert {row[0] for row in rows} - {"tutorial"} == pages
    assert {row[1] for row in rows} == {"result", "as written"}


def test_the_release_has_one_version_and_date() -> None:
    """The package, the citation and the newest entry of the changelog agree."""
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    newest = re.search(r"^## (\S+) - (\S+)$", MORE_PAGES[0].read_text("utf-8"), flags=re.MULTILINE)
    assert newest is not None
    assert re.findall(r"^(?:version|date-released): (\S+)$", cited, re.MULTILINE) == [
        *newest.groups()
    ]
    assert newest[1] == ld3.__version__
