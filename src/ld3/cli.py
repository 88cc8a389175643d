"""The command line. Thin: words in, library calls out; torch loads only when a command needs it."""

import json
import sys
from collections.abc import Sequence

import click

from ld3 import __version__
from ld3.errors import Ld3Error, unknown

as_json = click.option("--json", "json_", is_flag=True, help="Print JSON for programs.")


class Commands(click.Group):
    """A group that suggests the nearest command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ld3")
def cli() -> None:
    """Learn the few time steps at which your diffusion or flow model should be sampled."""


@cli.command()
@as_json
def solvers(json_: bool) -> None:
    """List the ODE solvers."""
    from ld3.solvers import SOLVERS

    rows = [
        {
            "name": name,
            "orders": list(kind.orders),
            "default_order": kind().order,
            "variants": list(kind.variants),
            "nfe_per_step": kind().nfe(1),
            "summary": kind.summary,
        }
        for name, kind in SOLVERS.items()
    ]
    if json_:
        click.echo(json.dumps(rows, indent=2))
        return
    _table(
        ("solver", "orders", "variants", "what"),
        [
            (
                str(row["name"]),
                _span(SOLVERS[str(row["name"])].orders),
                ", ".join(SOLVERS[str(row["name"])].variants) or "-",
                str(row["summary"]),
            )
            for row in rows
        ],
    )


@cli.command()
@as_json
def methods(json_: bool) -> None:
    """List the ways to choose the times."""
    from ld3.discretizers import METHODS

    if json_:
        rows = [
            {"name": name, "even_in": method.variable, "source": method.source}
            for name, method in METHODS.items()
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    _table(
        ("method", "even steps in", "where from"),
        [(name, method.variable, method.source) for name, method in METHODS.items()],
    )


@cli.command()
@as_json
def schedules(json_: bool) -> None:
    """List the noise schedules."""
    from ld3.schedules import SCHEDULES, make_schedule

    rows = [(name, make_schedule(name), summary) for name, (_, summary) in SCHEDULES.items()]
    if json_:
        entries = [
            {"name": name, "t_min": s.t_min, "t_max": s.t_max, "summary": summary}
            for name, s, summary in rows
        ]
        click.echo(json.dumps(entries, indent=2))
        return
    _table(
        ("schedule", "times", "what"),
        [(name, f"{s.t_min:g} to {s.t_max:g}", summary) for name, s, summary in rows],
    )


def _span(orders: Sequence[int]) -> str:
    return f"{orders[0]}-{orders[-1]}" if len(orders) > 1 else str(orders[0])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[c]) for row in (head, *rows)) for c in range(len(head))]
    for row in (head, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line: exit code 0, or 2 and one line for anything a user can mend."""
    try:
        code = cli.main(args=args, prog_name="ld3", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.ClickException as error:
        _fail(error.format_message().replace("\n", " "))
    except Ld3Error as error:
        _fail(str(error))
    except (click.Abort, KeyboardInterrupt):
        click.echo("ld3: interrupted", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    click.echo(f"ld3: {message}", err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
