"""`ld3 compare` and `ld3 report`."""

from pathlib import Path
from typing import Any

import click

from ld3.cli import options as shared
from ld3.cli.options import FILE, flag, given, option, print_files, print_lines, together, working
from ld3.cli.say import say

TEACHER = ("unipc:3:bh1", "logsnr", "40")  # solver, grid and steps, as the help shows them


@click.command()
@together(
    shared.model_option,
    option("--methods", multiple=True, shown="handmade,published,ld3",
           help="Names of `ld3 methods`, or groups: handmade, published, searched, learned, all, "
           "variants."),
    option("--solvers", multiple=True, shown="dpmpp",
           help="Solvers: NAME, NAME:ORDER or NAME:ORDER:VARIANT, such as unipc,ipndm:3."),
    option("--nfe", multiple=True, help="Numbers of network evaluations: 4,6 or 4-10.",
           shown="4,6"),
    option("--seeds", type=int, help="Random seeds per stochastic method: how many.", shown="1"),
    option("--pairs", type=int, shown="128",
           help="Training pairs per seed, the same for all methods."),
    option("--valid", type=int, help="Validation pairs per seed.", shown="32"),
    option("--guidance", help="Scale of classifier-free guidance.", shown="1"),
    flag("--full", default=None,
         help="Add set metrics: Fréchet distance, KID and others. --data asks for it, too."),
    option("--samples", type=int, help="Samples for --full.", shown="1000"),
    shared.old_samples,
    option("--metrics", multiple=True, help="Set metrics of --full: a list of these.",
           shown="frechet,frechet_accurate,kid,cmmd,precision,recall,agreement"),
    shared.data_option,
    shared.network_options,
    option("--jobs", type=int, help="Processes that run cells at the same time.", shown="1"),
    shared.cell_options,
)  # fmt: skip
@shared.run_options(TEACHER, ("Folder of results and their cache.", "compare"))
def compare(file: Path | None, resume: bool, rank_timeout: float, **options: Any) -> None:
    """Compare methods on one model: a table, CSV, JSON and a page."""
    from ld3.report import write_report
    from ld3.report.comparison import comparison_lines
    from ld3.runs.compare.run import run_compare, write_files
    from ld3.runs.compare.spec import CompareSpec

    spec = CompareSpec.read(given(options, "methods", "solvers", "nfe", "metrics"), file)
    with working(spec.device, rank_timeout) as (ranks, bar):
        comparison = run_compare(spec, bar, fresh=not resume, ranks=ranks)
        bar.clear()
        if ranks.is_first:
            print_lines(comparison_lines(comparison))
            print_files([*write_files(comparison, spec.out), write_report(comparison, spec.out)])


@click.command()
@click.argument("folder", type=FILE)
def report(folder: Path) -> None:
    """Make the page of a comparison again, from its compare.json."""
    from ld3.comparison import Comparison
    from ld3.report import write_report

    file = folder if folder.suffix == ".json" else folder / "compare.json"
    say(str(write_report(Comparison.load(file), file.parent)))


COMMANDS = (compare, report)
