"""Write docs/commands.md: every command with its arguments, options and defaults.

python tools/reference.py          # tests/test_docs.py says when it is due
"""

import re
from pathlib import Path

import click

from ld3.cli import cli

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
HEAD = """# Commands

Every command and option, as `--help` prints them. `tools/reference.py` writes this page.

Lists have commas (`--nfe 4,6`), ranges of whole numbers a hyphen (`--nfe 4-10`). Solvers are
`NAME`, `NAME:ORDER` or `NAME:ORDER:VARIANT` (`--solver unipc:3:bh2`). `--spec FILE.toml` takes the
same options from a file.
"""


def page() -> str:
    """The whole page."""
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
    return f"| {names} | {_text(help)} | {_text(default.rstrip().removesuffix(']')) or '-'} |"


def _text(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
