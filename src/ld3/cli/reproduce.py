"""`ld3 reproduce`."""

from pathlib import Path
from typing import Any

import click

from ld3.cli import options as shared
from ld3.cli.options import FILE, flag, option, print_files, print_lines, together, working
from ld3.errors import SpecError


@click.command()
@click.argument("name", required=False)
@together(
    flag("--list", "list_", help="List all tables and figures of the paper."),
    flag("--paper", help="Print what the paper shows, and its own settings."),
    option("--model", shown="the experiment's first",
           help="Model: one of the experiment's; or the FILE of a published checkpoint or "
           "package.module:function, with the paper's settings."),
    flag("--quick", help="Smallest sizes, one number of evaluations: only a check that it runs."),
    shared.distance_option("the experiment's", "Distance in place of the experiment's LPIPS"),
    option("--nfe", shown="the experiment's", help="Numbers of network evaluations: 4,6 or 4-10."),
    option("--samples", type=click.IntRange(40, 100_000), shown="the experiment's",
           help="Samples of each method for the Fréchet distance and other set metrics."),
    shared.data_option,
    shared.network_options,
    shared.model_options,
    option("--jobs", type=click.IntRange(1, 256), default=1,
           help="Processes that run at the same time."),
    shared.cell_options,
    shared.out_option("Folder of results and their cache.", "reproduce"),
    option("--docs", type=FILE, help="Copy page and images to this docs folder.", shown="none"),
)  # fmt: skip
def reproduce(
    name: str | None,
    list_: bool,
    paper: bool,
    out: Path,
    docs: Path | None,
    nfe: str | None,
    rank_timeout: float,
    **options: Any,
) -> None:
    """Run an experiment of the paper or of the docs, on a small model or on your own."""
    from ld3.report.experiments import about_lines, list_rows, result_lines
    from ld3.runs.experiments import all_experiments, load_experiment, run_reproduce, write_result

    if list_:
        head = ("experiment", "in the paper", "what (model, if not fashion)")
        shared.print_table([head, *list_rows(all_experiments())])
        return
    if name is None:
        raise SpecError("experiment: got none, expected a name of `ld3 reproduce --list`")
    experiment = load_experiment(name)
    if paper:
        print_lines(about_lines(experiment))
        return
    options["device"] = options["device"] or "cpu"
    options["pipeline"] = shared.read_pipeline(options)
    with working(options["device"], rank_timeout) as (ranks, bar):
        options["nfe"] = nfe and shared.whole_numbers([nfe], "--nfe", "4,6 or 4-10")
        given = {name: value for name, value in options.items() if value is not None}
        result = run_reproduce(experiment, out=out, report=bar, ranks=ranks, **given)
        bar.clear()
        if ranks.is_first:
            print_lines(result_lines(result))
            print_files(write_result(result, out, docs))


COMMANDS = (reproduce,)
