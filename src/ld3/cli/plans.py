"""`ld3 sample`, `score`, `show`, `export`: commands that use a plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ld3.cli import options as shared
from ld3.cli.options import (
    FILE,
    Finite,
    flag,
    noted_if_missing,
    option,
    print_lines,
    together,
    working,
)
from ld3.cli.say import say

if TYPE_CHECKING:
    from ld3.plan import Plan

plan_nfe_option = option(
    "--nfe", type=int, shown="the plan's",
    help="Number of network evaluations, for a plan that was learned for a range.",
)  # fmt: skip
use_options = together(
    plan_nfe_option,
    option("--model", help="Model to use instead of the plan's.", shown="the plan's"),
    shared.batch_option,
    shared.device_option(),
    shared.rank_timeout_option,
    flag("--force", help="Use the plan with a model it was not learned for."),
)


@click.command()
@together(
    option("--plan", "path", required=True, type=FILE, help="The plan.json."),
    option("--seeds", default="0-63", help="Seeds of the noise: 0-63 or 1,5,9."),
    shared.out_option("Folder of the samples.", "samples"),
    option("--guidance", type=Finite(0, 100), shown="the plan's",
           help="Scale of classifier-free guidance, 0 to 100."),
    shared.prompt_option("Prompt to use instead of the plan's.", "the plan's"),
    use_options,
)  # fmt: skip
def sample(
    path: Path,
    seeds: str,
    out: Path,
    prompt: tuple[str, ...],
    nfe: int | None,
    rank_timeout: float,
    **options: Any,
) -> None:
    """Draw samples with a plan."""
    from ld3.report.plans import write_samples
    from ld3.runs.sample import run_sample
    from ld3.store import check_writable

    numbers, plan = shared.read_seeds(seeds), _load(path, nfe)
    with working(options["device"], rank_timeout) as (ranks, bar):
        if ranks.is_first:
            check_writable(out / "samples.safetensors")
        samples = run_sample(plan, numbers, prompts=prompt, ranks=ranks, report=bar, **options)
        bar.clear()
        if ranks.is_first:
            with noted_if_missing("no sheet"):
                print_lines(str(file) for file in write_samples(out, numbers, samples))


@click.command()
@click.argument("path", metavar="PLAN", type=FILE)
@together(
    option("--guidance", multiple=True, shown="the plan's",
           help="Scales of classifier-free guidance: 1,2.5 or 1-4."),
    option("--held-out", type=click.IntRange(2, 100_000), default=64, help=shared.HELD_OUT),
    option("--image", type=FILE, help="Plot distances against guidance scales to this file.",
           shown="guidance.png beside the plan, if there are several scales"),
    shared.old_image,
    shared.out_option("Folder of the cache.", "runs"),
    use_options,
)  # fmt: skip
def score(
    path: Path,
    guidance: tuple[str, ...],
    image: Path | None,
    old_image: Path | None,
    nfe: int | None,
    rank_timeout: float,
    **options: Any,
) -> None:
    """Score the plan of a file beside all known grids on held-out seeds, at any guidance scale."""
    from ld3.report.plans import draw_guidance, guidance_lines
    from ld3.runs.score import run_score
    from ld3.store import check_writable

    scales, image = shared.read_scales(guidance), image or old_image
    plan = _load(path, nfe)
    if image is not None:
        check_writable(image)
    with working(options["device"], rank_timeout) as (ranks, bar):
        rows = list(run_score(plan, scales, report=bar, ranks=ranks, **options))
        bar.clear()
    if not ranks.is_first:
        return
    print_lines(guidance_lines(plan, rows, options["held_out"]))
    if image is not None or len(rows) > 1:
        image = image or path.parent / "guidance.png"
        with noted_if_missing("no image"):
            draw_guidance(rows, image)
            say(f"image    {image}")


@click.command()
@click.argument("path", metavar="PLAN", type=FILE)
@together(
    option("--image", type=FILE, help="Plot the times to this file.", shown="none"),
    shared.old_image,
    option("--as", "tool", shown="none",
           help="Print the lines to paste into diffusers, comfyui, a1111, kdiffusion, text, "
           "sigmas."),
    plan_nfe_option,
)  # fmt: skip
def show(
    path: Path, image: Path | None, old_image: Path | None, tool: str | None, nfe: int | None
) -> None:
    """Print the plan of a file, and plot its times beside the known grids."""
    from ld3.report.plans import draw_plan, plan_lines

    plan = _load(path, nfe)
    if tool is not None:
        from ld3.export import paste_lines

        print_lines(paste_lines(tool, plan))
        return
    print_lines(plan_lines(plan))
    if (image := image or old_image) is not None:
        draw_plan(plan, image)
        say(f"image    {image}")


@click.command()
@click.argument("paths", metavar="PLAN...", nargs=-1, required=True, type=FILE)
@together(
    option("--to", "target", required=True,
           help="Tool: diffusers, comfyui, comfyui-pack, a1111, a1111-pack, kdiffusion, text, "
           "sigmas or hub."),
    shared.out_option("Folder of the files.", "exported"),
    option("--name", help="Name of the plan in the tool.", shown="model and solver"),
    option("--base-model", help="hub: the model's address, owner/name.", shown="none"),
    option("--licence", default="apache-2.0", help="hub, comfyui: licence of the plan."),
    option("--publisher", default="", shown="none",
           help="comfyui: your id in its registry of nodes."),
)  # fmt: skip
def export(paths: tuple[Path, ...], target: str, out: Path, **wishes: Any) -> None:
    """Write plan files of one model for another tool, and check what was written."""
    from ld3.export import Wish, export_plans

    images = [path.parent / "samples.png" for path in paths]
    shown = tuple(file for file in images if file.is_file())
    plans, wish = [_load(path) for path in paths], Wish(pictures=shown, **wishes)
    made = export_plans(target, plans, out, wish)
    print_lines([*made.notes, *(f"wrote  {file}" for file in made.files)])


def _load(path: Path, nfe: int | None = None) -> "Plan":
    """The plan of a file, at a number of evaluations if one is given."""
    from ld3.plan import Plan

    plan = Plan.load(path)
    return plan if nfe is None else plan.at(nfe)


COMMANDS = (sample, score, show, export)
