"""`ld3 reproduce`."""

from pathlib import Path

import click

from ld3.cli.options import FILE, device_option, flag, option, out_option
from ld3.cli.say import say
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
@option(
    "--features",
    type=FILE,
    shown="none",
    help="Feature network for a model of your own: Inception weights (.safetensors) or "
    "TorchScript (.pt).",
)
@device_option(default="cpu")
@option(
    "--jobs", type=click.IntRange(1, 256), default=1, help="Processes that run at the same time."
)
@out_option("Folder of results and their cache.", "reproduce")
@option("--docs", type=FILE, help="Copy page and images to this docs folder.", shown="none")
def reproduce(
    name: str | None,
    list_: bool,
    paper: bool,
    model: str | None,
    quick: bool,
    features: Path | None,
    device: str,
    jobs: int,
    out: Path,
    docs: Path | None,
) -> None:
    """Run an experiment of the paper or of the docs, on a small model or on your own."""
    from ld3.report.bar import Bar
    from ld3.report.experiments import about_lines, list_rows, result_lines
    from ld3.report.tables import table_lines
    from ld3.runs.experiments import (
        all_experiments,
        load_experiment,
        run_reproduce,
        write_result,
    )

    if list_:
        head = ("experiment", "in the paper", "what", "models")
        for line in table_lines([head, *list_rows(all_experiments())]):
            say(line)
        return
    if name is None:
        raise SpecError("experiment: got none, expected a name of `ld3 reproduce --list`")
    experiment = load_experiment(name)
    if paper:
        for line in about_lines(experiment):
            say(line)
        return
    with Bar() as bar:
        result = run_reproduce(
            experiment, model, quick=quick, out=out, jobs=jobs, report=bar, features=features,
            device=device,
        )  # fmt: skip
        bar.clear()
    for line in result_lines(result):
        say(line)
    for path in write_result(result, out, docs):
        say(f"{path.suffix[1:]:<9}{path}")


COMMANDS = (reproduce,)
