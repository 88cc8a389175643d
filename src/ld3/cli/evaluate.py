"""`ld3 evaluate` and `ld3 reference`."""

from pathlib import Path
from typing import Any

import click

from ld3.cli import options as shared
from ld3.cli.options import FILE, flag, option, print_files, print_lines, together, working
from ld3.cli.say import say


@click.command()
@click.argument("what", nargs=-1, required=True)
@together(
    option("--model", shown="the plan's, or fashion",
           help="Model: a name of `ld3 models`, the FILE of a published checkpoint, "
           "diffusers:PATH_OR_HUB_ID or package.module:function."),
    option("--solvers", multiple=True, help="Solvers of grids: unipc,ipndm:3.", shown="dpmpp"),
    option("--nfe", multiple=True, help="Network evaluations of grids: 4,6 or 4-10.", shown="5"),
    option("--samples", type=int, help="Number of samples.", shown="50000"),
    shared.data_option,
    option("--metrics", multiple=True, shown="fid",
           help="Metrics: fid, fid-accurate, kid, cmmd, precision, recall, agreement, clip."),
    flag("--infinity", default=None,
         help="Also the FID of unboundedly many samples, extrapolated."),
    shared.network_options,
    option("--clip", type=FILE, help="Folder of a CLIP model, for the metric clip.", shown="none"),
    option("--keep", help="Keep samples: png, or npz in ADM's layout.", shown="none"),
    option("--guidance", type=float, shown="the plan's, or 1",
           help="Scale of classifier-free guidance."),
    option("--reference-steps", type=int, shown="40",
           help="Steps of the accurate run, UniPC-3 on logsnr."),
    flag("--force", default=None, help="Use plans with a model they were not learned for."),
    flag("--dry-run", help="Print samples, network calls, memory, disk and hours, and stop."),
    shared.model_options,
    option("--out", type=FILE, help="Folder of results and their cache.", shown="evaluate"),
    shared.spec_option,
)  # fmt: skip
def evaluate(
    what: tuple[str, ...], file: Path | None, dry_run: bool, rank_timeout: float, **options: Any
) -> None:
    """Measure FID and other metrics of plans and grids, as the field does.

    WHAT are files of plans, names of known grids, or accurate (the reference solution).
    """
    from ld3.report.evaluation import cost_lines, evaluation_lines, evaluation_markdown
    from ld3.runs.evaluation.cost import cost_of
    from ld3.runs.evaluation.evaluate import open_task, run_evaluate
    from ld3.runs.evaluation.spec import EvaluateSpec, with_plan
    from ld3.runs.spec import options_of
    from ld3.store import write_bytes

    options |= {name: options[name] or None for name in ("solvers", "nfe", "metrics")}
    options |= {"what": what, "pipeline": shared.read_pipeline(options)}
    spec = EvaluateSpec(**with_plan(options_of(options, file)))
    with working(spec.device, rank_timeout) as (ranks, bar):
        if dry_run:
            cost = cost_of(open_task(spec, bar))
            bar.clear()
            print_lines(cost_lines(cost) if ranks.is_first else ())
            return
        found = run_evaluate(spec, bar, ranks=ranks)
        bar.clear()
        if ranks.is_first:
            print_lines(evaluation_lines(found))
            found.save(spec.out / "evaluate.json")
            write_bytes(spec.out / "evaluate.md", evaluation_markdown(found).encode())
            print_files([spec.out / "evaluate.json", spec.out / "evaluate.md"])


@click.command()
@click.argument("images", type=FILE)
@click.argument("out", type=FILE)
@together(
    shared.network_options,
    option("--resolution", "side", type=click.IntRange(1, 16384), shown="as they are",
           help="Bring images to this size."),
    option("--crop", default="center-crop", help="How: center-crop or center-crop-dhariwal."),
    flag("--with-features", help="Store features, too: KID, precision and recall need them."),
    shared.device_option(),
)  # fmt: skip
def reference(images: Path, out: Path, **options: Any) -> None:
    """Make reference statistics of IMAGES: a folder, a zip or an .npz; OUT is an .npz."""
    from ld3.report.bar import Bar
    from ld3.runs.evaluation.references import run_reference

    with Bar() as bar:
        found = run_reference(images, out, report=bar, **options)
        bar.clear()
    assert found.size is not None
    say(
        f"{found.count:,} images of {found.size[0]}x{found.size[1]}, features of "
        f"{found.network_name} ({found.network})"
    )
    say(f"npz      {out}")


COMMANDS = (evaluate, reference)
