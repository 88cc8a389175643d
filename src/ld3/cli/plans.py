"""`ld3 sample`, `score`, `show`, `export`: commands that use a plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ld3.cli.options import (
    FILE,
    batch_option,
    device_option,
    force_option,
    held_out_option,
    option,
    out_option,
    plan_model_option,
    plan_nfe_option,
    print_lines,
    prompt_option,
    rank_timeout_option,
    read_scales,
    read_seeds,
    together,
    working,
)
from ld3.cli.say import say

if TYPE_CHECKING:
    from ld3.plan import Plan

use_options = together(
    plan_nfe_option, plan_model_option, batch_option, device_option(), rank_timeout_option,
    force_option,
)  # fmt: skip


@click.command()
@option("--plan", "path", required=True, type=FILE, help="The plan.json.")
@option("--seeds", default="0-63", help="Seeds of the noise: 0-63 or 1,5,9.")
@out_option("Folder of the samples.", "samples")
@option("--guidance", type=float, help="Scale of classifier-free guidance.", shown="the plan's")
@prompt_option("Prompt to use instead of the plan's.", "the plan's")
@use_options
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

    numbers = read_seeds(seeds)
    with working(options["device"], rank_timeout) as (ranks, bar):
        plan = _load(path, nfe)
        samples = run_sample(plan, numbers, prompts=prompt, ranks=ranks, report=bar, **options)
        bar.clear()
        if ranks.is_first:
            print_lines(str(file) for file in write_samples(out, numbers, samples))


@click.command()
@click.argument("path", type=FILE)
@option(
    "--guidance",
    multiple=True,
    shown="the plan's",
    help="Scales of classifier-free guidance: 1,2.5 or 1-4.",
)
@held_out_option(type=click.IntRange(2, 100_000), default=64)
@option(
    "--picture",
    type=FILE,
    help="Plot distances against guidance scales.",
    shown="guidance.png beside the plan, if there are several scales",
)
@out_option("Folder of the cache.", "runs")
@use_options
def score(
    path: Path,
    guidance: tuple[str, ...],
    picture: Path | None,
    nfe: int | None,
    rank_timeout: float,
    **options: Any,
) -> None:
    """Score a plan beside all known grids on held-out seeds, at any guidance scale."""
    from ld3.report.plans import draw_guidance, guidance_lines
    from ld3.runs.score import run_score

    scales = read_scales(guidance)
    plan = _load(path, nfe)
    with working(options["device"], rank_timeout) as (ranks, bar):
        rows = list(run_score(plan, scales, report=bar, ranks=ranks, **options))
        bar.clear()
    if not ranks.is_first:
        return
    print_lines(guidance_lines(plan, rows, options["held_out"]))
    if picture is not None or len(rows) > 1:
        picture = picture or path.parent / "guidance.png"
        draw_guidance(rows, picture)
        say(f"picture  {picture}")


@click.command()
@click.argument("path", type=FILE)
@option("--picture", type=FILE, help="Plot the times to this file.", shown="none")
@option(
    "--as",
    "tool",
    shown="none",
    help="Print the lines to paste into diffusers, comfyui, a1111, kdiffusion, text, sigmas.",
)
@plan_nfe_option
def show(path: Path, picture: Path | None, tool: str | None, nfe: int | None) -> None:
    """Print a plan, and plot its times beside the known grids."""
    from ld3.report.plans import draw_plan, plan_lines

    plan = _load(path, nfe)
    if tool is not None:
        from ld3.export import paste_lines

        print_lines(paste_lines(tool, plan))
        return
    print_lines(plan_lines(plan))
    if picture is not None:
        draw_plan(plan, picture)
        say(f"picture  {picture}")


@click.command()
@click.argument("paths", nargs=-1, required=True, type=FILE)
@option(
    "--to",
    "target",
    required=True,
    help="Tool: diffusers, comfyui, comfyui-pack, a1111, a1111-pack, kdiffusion, text, sigmas or "
    "hub.",
)
@out_option("Folder of the files.", "exported")
@option("--name", help="Name of the plan in the tool.", shown="model and solver")
@option("--base-model", help="hub: the model's address, owner/name.", shown="none")
@option("--licence", default="apache-2.0", help="hub, comfyui: licence of the plan.")
@option("--publisher", help="comfyui: your id in its registry of nodes.", shown="none")
def export(
    paths: tuple[Path, ...],
    target: str,
    out: Path,
    name: str | None,
    base_model: str | None,
    licence: str,
    publisher: str | None,
) -> None:
    """Write plans of one model for another tool, and check what was written."""
    from ld3.export import Wish, export_plans

    images = [path.parent / "samples.png" for path in paths]
    shown = tuple(file for file in images if file.is_file())
    wish = Wish(name, base_model, licence, shown, publisher or "")
    made = export_plans(target, [_load(path) for path in paths], out, wish)
    print_lines([*made.notes, *(f"wrote  {file}" for file in made.files)])


def _load(path: Path, nfe: int | None = None) -> "Plan":
    """The plan of a file, at a number of evaluations if one is given."""
    from ld3.plan import Plan

    plan = Plan.load(path)
    return plan if nfe is None else plan.at(nfe)


COMMANDS = (sample, score, show, export)
