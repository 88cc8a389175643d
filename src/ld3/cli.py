"""The command line. Thin: words in, library calls out; torch loads only when a command needs it."""

import json
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from ld3 import __version__
from ld3.errors import Ld3Error, SpecError, unknown

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
    from ld3.searches import METHODS
    from ld3.searches.registry import SEARCHES

    rows: list[dict[str, object]] = [
        {"name": name, "even_in": method.variable, "needs": [], "source": method.source}
        for name, method in METHODS.items()
    ]
    rows += [
        {"name": name, "even_in": None, "needs": sorted(search.needs), "source": search.source}
        for name, search in SEARCHES.items()
    ]
    if json_:
        click.echo(json.dumps(rows, indent=2))
        return
    needs = {name: ", ".join(sorted(search.needs)) for name, search in SEARCHES.items()}
    _table(
        ("method", "even steps in", "needs", "where from"),
        [
            (
                name,
                str(row["even_in"] or "searched for"),
                needs.get(name) or "-",
                str(row["source"]),
            )
            for row in rows
            for name in (str(row["name"]),)
        ],
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


@cli.command()
@as_json
def models(json_: bool) -> None:
    """List the models inside the package."""
    from ld3.zoo import SHIPPED

    if json_:
        entries = [
            {
                "name": name,
                "summary": model.summary,
                "shape": list(model.shape),
                "parameters": model.parameters,
                "prediction": model.prediction,
                "conditions": model.conditions,
                "licence": model.licence,
            }
            for name, model in SHIPPED.items()
        ]
        click.echo(json.dumps(entries, indent=2))
        return
    _table(
        ("model", "what", "shape", "parameters", "predicts", "conditions", "licence"),
        [
            (
                name,
                model.summary,
                "x".join(map(str, model.shape)),
                f"{model.parameters / 1e6:.2f} M",
                model.prediction,
                model.conditions,
                model.licence,
            )
            for name, model in SHIPPED.items()
        ],
    )


def of_pipelines(command: Callable[..., None]) -> Callable[..., None]:
    """The options of `--model diffusers:...`, all of them, in the order of the help."""
    options = (
        click.option("--prompt", multiple=True, help="For pipelines: a prompt, repeatable."),
        click.option(
            "--prompts", type=click.Path(path_type=Path), help="A file with a prompt a line."
        ),
        click.option("--negative-prompt", help="What guidance leads away from.  [empty]"),
        click.option("--label", type=int, multiple=True, help="A class, repeatable.  [all]"),
        click.option("--resolution", help="Pixels: 512, or HEIGHTxWIDTH.  [the pipeline's]"),
        click.option("--frames", type=int, help="Of a video.  [the pipeline's]"),
        click.option("--tokens", type=int, help="Length of a prompt.  [the pipeline's]"),
        click.option(
            "--embedded-guidance", type=float, help="Of networks that take it, as Flux.  [3.5]"
        ),
        click.option(
            "--rectified", is_flag=True, default=None, help="A flow from noise to data: InstaFlow."
        ),
        click.option(
            "--latents", is_flag=True, default=None, help="Compare latents; decode nothing."
        ),
        click.option("--tiling", is_flag=True, default=None, help="Decode in tiles."),
        click.option("--net-time", help="float, integer, or bfloat16 as Flux rounds it.  [float]"),
        click.option("--batch", type=int, help="Samples in one call of the network.  [8]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


@cli.command()
@click.option(
    "--model",
    help="A model of `ld3 models`, diffusers:PATH_OR_HUB_ID or package.module:function.  [fashion]",
)
@click.option("--solver", help="A solver of `ld3 solvers`.  [dpmpp]")
@click.option("--order", type=int, help="Its order.")
@click.option("--variant", help="Its variant.")
@click.option("--nfe", multiple=True, help="Evaluations, repeatable; 4-10: one plan for all.  [5]")
@click.option("--refine", is_flag=True, default=None, help="Learn each of a range on by itself.")
@click.option(
    "--gradient-free", is_flag=True, default=None, help="From forward passes only, for any network."
)
@click.option(
    "--preset", help="standard, fast, best, paper-pixel, -latent, -text-to-image.  [standard]"
)
@click.option("--learn", help="times, times+net or times+net+coefficients; as the preset says.")
@click.option("--start", help="best, a grid of `ld3 methods`, or a plan.json.  [best]")
@click.option("--distance", help="auto, l1, l2, pseudo-huber, lpips-vgg, lpips-alex.  [auto]")
@click.option("--pairs", type=int, help="Learning pairs.")
@click.option("--guidance", help="Scale of classifier-free guidance; 1-4: a range.  [1]")
@click.option("--seed", type=int, help="Of the learning noise and the order of batches.  [0]")
@click.option("--held-out", type=int, help="Noises to score on.  [64]")
@click.option("--judged", type=int, help="Samples for the Fréchet distance; 0: none.  [200]")
@click.option("--recipe", multiple=True, help="WORD=VALUE: change a number of the preset's recipe.")
@click.option("--slope", help="In time: exact, secant, or auto to test the network.  [auto]")
@click.option("--teacher-solver", help="Solver of the teacher, instead of the preset's.")
@click.option("--teacher-order", type=int, help="Its order.")
@click.option("--teacher-variant", help="Its variant.")
@click.option("--teacher-grid", help="Its grid, of `ld3 methods`.")
@click.option("--teacher-steps", type=int, help="Its number of steps.")
@of_pipelines
@click.option("--device", help="Where the network runs.  [cpu]")
@click.option("--dtype", help="Of the network: float32, float64, bfloat16 or float16.")
@click.option("--tensorboard", is_flag=True, default=None, help="Write losses for TensorBoard.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for runs.  [runs]")
@click.option("--spec", "file", type=click.Path(path_type=Path), help="TOML with the same words.")
@click.option(
    "--resume/--fresh", default=True, show_default=True, help="Go on with a run, or begin anew."
)
def learn(file: Path | None, resume: bool, **words: object) -> None:
    """Learn at which times to sample: a plan for a model, a solver and few evaluations."""
    from ld3.families import run_family
    from ld3.runs import run_learn
    from ld3.show import family_table, learned_table, write_family_picture, write_pictures
    from ld3.spec import RunSpec

    words["nfe"] = words["nfe"] or None
    words["recipe"] = _settings(words["recipe"]) or None
    words["pipeline"] = _of_pipeline(words)
    spec = RunSpec.read(words, file)
    with Bar() as bar:
        if spec.family is not None:
            family = run_family(spec, bar, fresh=not resume)
            bar.clear()
            for line in family_table(family):
                click.echo(line)
            click.echo(f"picture  {write_family_picture(family)}")
            click.echo(f"plan     {family.folder / 'plan.json'}")
            return
        for result in run_learn(spec, bar, fresh=not resume):
            bar.clear()
            for line in learned_table(result):
                click.echo(line)
            for picture in write_pictures(result, spec.device):
                click.echo(f"picture  {picture}")
            click.echo(f"plan     {result.folder / 'plan.json'}")


@cli.command()
@click.option("--plan", "path", required=True, type=click.Path(path_type=Path), help="plan.json")
@click.option("--seeds", default="0-63", show_default=True, help="Such as 0-63 or 1,5,9.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("samples"), show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--force", is_flag=True, help="Use the plan with a model it was not learned for.")
@click.option("--nfe", type=int, help="Evaluations, for a plan that was learned for a range.")
@click.option("--guidance", type=float, help="Another scale than that of the plan.")
@click.option("--prompt", multiple=True, help="Other prompts than those of the plan, repeatable.")
def sample(
    path: Path,
    seeds: str,
    out: Path,
    device: str,
    force: bool,
    nfe: int | None,
    guidance: float | None,
    prompt: tuple[str, ...],
) -> None:
    """Draw samples with a plan."""
    from ld3.plan import Plan
    from ld3.runs import run_sample
    from ld3.show import write_samples

    numbers = _seeds(seeds)
    plan = Plan.load(path)
    plan = plan if nfe is None else plan.at(nfe)
    samples = run_sample(plan, numbers, device, force, guidance=guidance, prompts=prompt)
    for file in write_samples(out, numbers, samples):
        click.echo(str(file))


@cli.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--guidance", multiple=True, help="Scales, repeatable or with commas.  [the plan's own]"
)
@click.option("--nfe", type=int, help="Evaluations, for a plan that was learned for a range.")
@click.option("--held-out", type=click.IntRange(2, 100_000), default=64, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--force", is_flag=True, help="Use the plan with a model it was not learned for.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    help="Draw distances against scales.  [guidance.png beside the plan, if there are several]",
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
def score(
    path: Path,
    guidance: tuple[str, ...],
    nfe: int | None,
    held_out: int,
    device: str,
    force: bool,
    picture: Path | None,
    out: Path,
) -> None:
    """Score a plan beside all known grids on held-out noise, at any guidance scale."""
    from ld3.plan import Plan
    from ld3.runs import run_score
    from ld3.show import draw_scored, scored_table

    scales = _scales(guidance)
    plan = Plan.load(path)
    plan = plan if nfe is None else plan.at(nfe)
    with Bar() as bar:
        rows = list(run_score(plan, scales, held_out, device, out, force, bar))
        bar.clear()
    for line in scored_table(plan, rows, held_out):
        click.echo(line)
    if picture is not None or len(rows) > 1:
        picture = picture or path.parent / "guidance.png"
        draw_scored(rows, picture)
        click.echo(f"picture  {picture}")


@cli.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the times to this file.")
@click.option("--as", "tool", help="The lines to paste into diffusers, comfyui, a1111, ...")
@click.option("--nfe", type=int, help="Evaluations, for a plan that was learned for a range.")
def show(path: Path, picture: Path | None, tool: str | None, nfe: int | None) -> None:
    """Print a plan, and draw its times beside the known grids."""
    from ld3.plan import Plan
    from ld3.show import draw_plan, plan_lines

    plan = Plan.load(path)
    plan = plan if nfe is None else plan.at(nfe)
    if tool is not None:
        from ld3.export import paste_lines

        for line in paste_lines(tool, plan):
            click.echo(line)
        return
    for line in plan_lines(plan):
        click.echo(line)
    if picture is not None:
        draw_plan(plan, picture)
        click.echo(f"picture  {picture}")


@cli.command()
@click.option("--model", help="A name of `ld3 models`, or package.module:function.  [fashion]")
@click.option(
    "--methods",
    multiple=True,
    help="Names of `ld3 methods`, or handmade, published, searched, learned, all, variants; "
    "with commas or repeated.  [handmade,published,ld3]",
)
@click.option("--solvers", multiple=True, help="Such as unipc, ipndm:3 or unipc:3:bh2.  [dpmpp]")
@click.option("--nfe", multiple=True, help="Evaluations.  [4,6]")
@click.option("--seeds", type=int, help="How often methods with chance are run.  [1]")
@click.option("--pairs", type=int, help="Learning pairs a seed, the same for all.  [128]")
@click.option("--valid", type=int, help="Validation pairs a seed.  [32]")
@click.option("--held-out", type=int, help="Noises to compare on.  [64]")
@click.option("--guidance", type=float, help="Scale of classifier-free guidance.  [1]")
@click.option("--distance", help="auto, l1, l2, pseudo-huber, lpips-vgg, lpips-alex.  [auto]")
@click.option("--teacher-solver", help="Solver of the teacher.  [unipc]")
@click.option("--teacher-order", type=int, help="Its order.")
@click.option("--teacher-variant", help="Its variant.")
@click.option("--teacher-grid", help="Its grid, a method of `ld3 methods`.  [logsnr]")
@click.option("--teacher-steps", type=int, help="Its number of steps.  [40]")
@click.option("--full", is_flag=True, default=None, help="Fréchet, kernel and other set metrics.")
@click.option("--judged", type=int, help="Samples for --full.  [1000]")
@click.option(
    "--features", type=click.Path(path_type=Path), help="Feature network for --full, a file."
)
@click.option("--device", help="Where the network runs.  [cpu]")
@click.option("--dtype", help="Of the network: float32, float64, bfloat16 or float16.")
@click.option("--jobs", type=int, help="Cells side by side, a process each.  [1]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for all of it.  [compare]")
@click.option("--spec", "file", type=click.Path(path_type=Path), help="TOML with the same words.")
@click.option(
    "--resume/--fresh", default=True, show_default=True, help="Use finished cells, or none."
)
def compare(file: Path | None, resume: bool, **words: object) -> None:
    """Compare methods on one model, fairly: a table, CSV, JSON and a page to look at."""
    from ld3.compare import CompareSpec, compare_lines, run_compare, write_files
    from ld3.report import write_report

    lists = {word: words[word] or None for word in ("methods", "solvers", "nfe")}
    spec = CompareSpec.read(words | lists, file)
    with Bar() as bar:
        comparison = run_compare(spec, bar, fresh=not resume)
        bar.clear()
    for line in compare_lines(comparison):
        click.echo(line)
    for path in (*write_files(comparison, spec.out), write_report(comparison, spec.out)):
        click.echo(f"{path.suffix[1:]:<9}{path}")


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Make the page of a comparison again, from its compare.json."""
    from ld3.comparison import Comparison
    from ld3.report import write_report

    file = folder if folder.suffix == ".json" else folder / "compare.json"
    click.echo(str(write_report(Comparison.load(file), file.parent)))


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--to", "target", required=True, help="diffusers, comfyui, a1111, kdiffusion, text, hub"
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("exported"), show_default=True)
@click.option("--name", help="What it is called in the tool; by default model and solver.")
@click.option("--base-model", help="For the hub: the model's address, owner/name.")
@click.option("--licence", default="apache-2.0", show_default=True, help="For the hub.")
def export(
    paths: tuple[Path, ...],
    target: str,
    out: Path,
    name: str | None,
    base_model: str | None,
    licence: str,
) -> None:
    """Write plans of one model for another tool, and check what was written."""
    from ld3.export import Wish, export_plans
    from ld3.plan import Plan

    pictures = [path.parent / "samples.png" for path in paths]
    wish = Wish(name, base_model, licence, tuple(file for file in pictures if file.is_file()))
    made = export_plans(target, [Plan.load(path) for path in paths], out, wish)
    for note in made.notes:
        click.echo(note)
    for file in made.files:
        click.echo(f"wrote  {file}")


@cli.command()
@click.argument("name", required=False)
@click.option("--list", "list_", is_flag=True, help="All tables and figures of the paper.")
@click.option("--paper", is_flag=True, help="Print what the paper shows, and its own settings.")
@click.option("--model", help="fashion, fashion-flow, ..; or package.module:function for those.")
@click.option("--quick", is_flag=True, help="Smallest sizes: only to see that it runs.")
@click.option("--features", type=click.Path(path_type=Path), help="Feature network, a file.")
@click.option("--device", default="cpu", show_default=True, help="Where the network runs.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("reproduce"), show_default=True
)
@click.option(
    "--docs", type=click.Path(path_type=Path), help="Copy page and images to this docs folder."
)
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
    """Run an experiment of the paper or of these docs, on a small model or on your own."""
    from ld3.report.experiments import about_lines, list_rows, result_lines
    from ld3.runs.experiments import (
        all_experiments,
        load_experiment,
        run_reproduce,
        write_result,
    )

    if list_:
        rows = list(list_rows(all_experiments()))
        _table(("experiment", "in the paper", "what", "models"), rows)
        return
    if name is None:
        raise SpecError("experiment: got none, wanted a name of `ld3 reproduce --list`")
    experiment = load_experiment(name)
    if paper:
        for line in about_lines(experiment):
            click.echo(line)
        return
    with Bar() as bar:
        result = run_reproduce(
            experiment, model, quick=quick, out=out, jobs=jobs, report=bar, features=features,
            device=device,
        )  # fmt: skip
        bar.clear()
    for line in result_lines(result):
        click.echo(line)
    for path in write_result(result, out, docs):
        click.echo(f"{path.suffix[1:]:<9}{path}")


class Bar:
    """One progress bar that changes its text as the work goes on."""

    def __enter__(self) -> "Bar":
        from tqdm import tqdm

        self._bar = tqdm(total=1, disable=None, leave=False, file=sys.stderr, dynamic_ncols=True)
        self._what = ""
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def __call__(self, what: str, done: int, total: int) -> None:
        kind = what.split(" ")[0]
        if kind != self._what:
            self._what = kind
            self._bar.reset(total)
        self._bar.total = total
        self._bar.set_description_str(what, refresh=False)
        self._bar.n = done
        self._bar.refresh()

    def clear(self) -> None:
        self._bar.clear()


def _of_pipeline(words: dict[str, object]) -> dict[str, object] | None:
    """Take the options of pipelines out of the words; those that were given, None if none was."""
    prompt, file = words.pop("prompt"), words.pop("prompts")
    if prompt and file:
        raise SpecError("prompts: got --prompt and --prompts, wanted one of them")
    given: dict[str, object] = {
        "prompts": _lines(file) if isinstance(file, Path) else prompt or None,
        "classes": words.pop("label") or None,
    }
    size = str(words.pop("resolution") or "")
    if size:
        height, cross, width = size.partition("x")
        if not height.isdecimal() or (cross and not width.isdecimal()):
            raise SpecError(f"resolution: got {size!r}, wanted 512, or 512x768: height and width")
        given |= {"height": int(height), "width": int(width or height)}
    for word in (
        "negative_prompt", "frames", "tokens", "embedded_guidance", "rectified", "latents",
        "tiling", "net_time", "batch",
    ):  # fmt: skip
        given[word] = words.pop(word)
    return {word: value for word, value in given.items() if value is not None} or None


def _lines(path: Path) -> tuple[str, ...]:
    """The lines of a text file that are not empty."""
    from ld3.store import read_bytes

    try:
        lines = [line.strip() for line in read_bytes(path).decode().splitlines()]
    except UnicodeDecodeError:
        raise SpecError(f"prompts: got {path}, which is no text, wanted a prompt a line") from None
    prompts = tuple(line for line in lines if line)
    if not prompts:
        raise SpecError(f"prompts: got {path} without a line, wanted a prompt a line")
    return prompts


def _settings(pairs: object) -> dict[str, object]:
    """WORD=VALUE -> {word: value}, values as TOML reads them, else as text."""
    settings: dict[str, object] = {}
    for pair in pairs if isinstance(pairs, tuple) else ():
        word, equals, value = str(pair).partition("=")
        if not equals:
            raise SpecError(f"recipe: got {pair!r}, wanted WORD=VALUE such as gamma=0.001")
        try:
            settings[word] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[word] = value
    return settings


def _scales(texts: Sequence[str]) -> list[float]:
    """1,2.5 -> 1 2.5"""
    words = [word.strip() for text in texts for word in text.split(",")]
    for word in words:
        if not word.replace(".", "", 1).isdecimal() or not 0 <= float(word) <= 100:
            raise SpecError(f"guidance: got {word!r}, wanted scales from 0 to 100 such as 1,2.5,4")
    return [float(word) for word in words]


def _seeds(text: str) -> list[int]:
    """0-3,7 -> 0 1 2 3 7"""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise SpecError(f"seeds: got {text!r}, wanted numbers and ranges such as 0-63 or 1,5,9")
        seeds += range(int(first), int(last or first) + 1)
        if len(seeds) > 1_000_000:
            raise SpecError(f"seeds: got {text!r}, wanted at most a million")
    if not seeds:
        raise SpecError(f"seeds: got {text!r}, wanted rising ranges such as 0-63")
    return seeds


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
    except (click.Abort, KeyboardInterrupt) as stop:
        said = str(stop.__cause__ or stop)  # click wraps what was raised
        click.echo(f"ld3: interrupted{f'; {said}' if said else ''}", err=True)
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    click.echo(f"ld3: {message}", err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
