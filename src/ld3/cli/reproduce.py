"""`ld3 reproduce`."""

from pathlib import Path
from typing import Any

import click

from ld3.cli.options import (
    FILE,
    cell_options,
    data_option,
    device_option,
    flag,
    network_options,
    option,
    out_option,
    print_files,
    print_lines,
    print_table,
    rank_timeout_option,
    working,
)
from ld3.errors import SpecError


@click.command()
@click.argument("name", required=False)
@flag("--list", "list_", help="List all tables and figures of the paper.")
@flag("--paper", help="Print what the paper shows, and its own settings.")
@option(
    "--model",
    shown="the experiment's first",
    help="Model: one of the experiment's, or package.module:function with the paper's settings.",
)
@flag("--quick", help="Smallest sizes: only a check that it runs.")
@data_option
@network_options
@device_option()
@rank_timeout_option
@option(
    "--jobs", type=click.IntRange(1, 256), default=1, help="Processes that run at the same time."
)
@cell_options
@out_option("Folder of results and their cache.", "reproduce")
@option("--docs", type=FILE, help="Copy page and images to this docs folder.", shown="none")
def reproduce(
    name: str | None,
    list_: bool,
    paper: bool,
    out: Path,
    docs: Path | None,
    rank_timeout: float,
    **options: Any,
) -> None:
    """Run an experiment of the paper or of the docs, on a small model or on your own."""
    from ld3.report.experiments import about_lines, list_rows, result_lines
    from ld3.runs.experiments import (
        all_experiments,
        load_experiment,
        run_reproduce,
        write_result,
    )

    if list_:
        head = ("experiment", "in the paper", "what", "models")
        print_table([head, *list_rows(all_experiments())])
        return
    if name is None:
        raise SpecError("experiment: got none, expected a name of `ld3 reproduce --list`")
    experiment = load_experiment(name)
    if paper:
        print_lines(about_lines(experiment))
        return
    with working(options["device"], rank_timeout) as (ranks, bar):
        given = {name: value for name, value in options.items() if value is not None}
        result = run_reproduce(experiment, out=out, report=bar, ranks=ranks, **given)
        bar.clear()
        if ranks.is_first:
            print_lines(result_lines(result))
            print_files(write_result(result, out, docs))


COMMANDS = (reproduce,)
