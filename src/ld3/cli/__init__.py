"""The command line: options in, library calls out. torch loads only when a command needs it."""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence

import click

from ld3 import __version__
from ld3.cli import (
    begin,
    checkpoints,
    compare,
    evaluate,
    importing,
    learn,
    lists,
    plans,
    reproduce,
    zoo,
)
from ld3.cli.examples import EXAMPLES, FIRST
from ld3.cli.say import say
from ld3.errors import (
    NO_MEMORY,
    EndedElsewhere,
    Ld3Error,
    is_out_of_memory,
    one_line,
    text_of,
    unknown,
)


class Commands(click.Group):
    """A group that suggests the nearest command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--version", is_flag=True, help="Print the version.")
@click.option("--verbose", is_flag=True, help="With --version: print versions of all parts, too.")
@click.pass_context
def cli(ctx: click.Context, version: bool, verbose: bool) -> None:
    """Learn the few time steps at which your diffusion or flow model should be sampled.

    All commands share one notation: lists with commas (--nfe 4,6), ranges of whole numbers
    (--nfe 4-10), solvers as NAME, NAME:ORDER or NAME:ORDER:VARIANT (--solver unipc:3:bh2).
    """
    if version or verbose:
        begin.print_versions(verbose)
        ctx.exit()
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


def _epilog(lines: Sequence[str]) -> str:
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


cli.epilog = _epilog(FIRST)
for module in (
    begin, learn, plans, importing, evaluate, compare, reproduce, checkpoints, lists, zoo,
):  # fmt: skip
    for command in module.COMMANDS:
        own = {command.name: command}
        own |= {f"{command.name} {name}": c for name, c in getattr(command, "commands", {}).items()}
        for name, one in own.items():
            one.epilog = _epilog(EXAMPLES[name or ""])
            one.short_help = " ".join((one.help or "").partition("\n\n")[0].split())  # click cuts
        cli.add_command(command)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line: exit code 0, or 2 and one line for every error a user can fix.

    Of several ranks, one says it: before they have met (:mod:`ld3.runs.ranks`), one per machine.
    """
    try:
        code = cli.main(args=args, prog_name="ld3", standalone_mode=False)
    except click.ClickException as error:
        _fail(error.format_message().replace("\n", " "))
    except EndedElsewhere:
        sys.exit(2)
    except Ld3Error as error:
        _fail(str(error))
    except (click.Abort, KeyboardInterrupt) as stop:
        said = str(stop.__cause__ or stop)  # click wraps what was raised
        _end_with_130()
        _fail(f"interrupted{f'; {said}' if said else ''}", 130)
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        _fail(*((known,) if (known := _known(error)) else (_unexpected(error), 1)))
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int = 2) -> None:
    rank = os.environ.get("LOCAL_RANK", "0") if "WORLD_SIZE" in os.environ else "0"
    if rank == "0" or code == 1:
        say(f"ld3: {one_line(message)}", err=True)
    sys.exit(code)


def _end_with_130() -> None:
    """Keep Python from killing itself at its end, which it does after a Ctrl-C inside of `exec` or
    `eval` of text (imports of torch have some), whoever caught it. With the signal blocked it ends
    with 130 all the same, and a second Ctrl-C comes too late to do harm."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _known(error: Exception) -> str:
    """What is said of errors of Python that a user can fix, wherever they were raised."""
    if is_out_of_memory(error):
        return NO_MEMORY
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}; expected a file that can be used"
    text = text_of(error) if isinstance(error, ValueError) else ""
    if "null byte" in text or "null character" in text:  # the latter from Python 3.13 on
        return "path: got a name with a NUL character, expected one without"
    if "surrogates not allowed" in text:
        return "options: got bytes that are not UTF-8, expected text in UTF-8"
    return ""


def _unexpected(error: Exception) -> str:
    """What is said of an error that is ours, or that nobody thought of."""
    text = "".join(traceback.format_exception(error))
    said = f"unexpected {type(error).__name__}: {text_of(error)}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="ld3-error-", suffix=".txt", delete=False, encoding="utf-8",
            errors="replace",
        ) as file:  # fmt: skip
            file.write(f"ld3 {__version__}, Python {sys.version}\nld3 {sys.argv[1:]!r}\n\n{text}")
    except OSError as full:
        return f"{said}; its details cannot be written ({full.strerror}); please report this"
    return (
        f"{said}; the details are in {file.name}; please report this with that file as an issue "
        "of the project"
    )
