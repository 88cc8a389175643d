"""The command line: options in, library calls out. torch loads only when a command needs it."""

import os
import sys
from collections.abc import Sequence

import click

from ld3 import __version__
from ld3.cli import checkpoints, compare, learn, lists, plans, reproduce
from ld3.errors import EndedElsewhere, Ld3Error, unknown


class Commands(click.Group):
    """A group that suggests the nearest command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ld3", help="Print the version.")
def cli() -> None:
    """Learn the few time steps at which your diffusion or flow model should be sampled.

    All commands share one notation: lists with commas (--nfe 4,6), ranges of whole numbers
    (--nfe 4-10), solvers as NAME, NAME:ORDER or NAME:ORDER:VARIANT (--solver unipc:3:bh2).
    """


for module in (learn, plans, compare, reproduce, checkpoints, lists):
    for command in module.COMMANDS:
        cli.add_command(command)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line: exit code 0, or 2 and one line for every error a user can fix.

    Of several ranks, one says it: before they have met (:mod:`ld3.runs.ranks`), one per machine.
    """
    try:
        code = cli.main(args=args, prog_name="ld3", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.ClickException as error:
        _fail(error.format_message().replace("\n", " "))
    except EndedElsewhere:
        sys.exit(2)
    except Ld3Error as error:
        _fail(str(error))
    except (click.Abort, KeyboardInterrupt) as stop:
        said = str(stop.__cause__ or stop)  # click wraps what was raised
        _say(f"interrupted{f'; {said}' if said else ''}")
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    _say(message)
    sys.exit(2)


def _say(message: str) -> None:
    rank = os.environ.get("LOCAL_RANK", "0") if "WORLD_SIZE" in os.environ else "0"
    if rank == "0":
        click.echo(f"ld3: {message}", err=True)
