"""Options that several commands have, and how their texts are read."""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ld3.cli.say import say
from ld3.errors import MissingPackage, SpecError

if TYPE_CHECKING:
    from ld3.report.bar import Bar
    from ld3.runs.ranks import Ranks


class Finite(click.FloatRange):
    """A number inside a range; `nan` is none."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


Command = Callable[..., None]
Decorator = Callable[[Command], Command]
FILE = click.Path(path_type=Path)
HELD_OUT = "Held-out seeds to score on."
MAX_SEEDS = 1_000_000
PIPELINE = (
    "negative_prompt", "frames", "tokens", "embedded_guidance", "rectified", "latents", "tiling",
    "net_time", "config", "clamp",
)  # fmt: skip
"""Options of pipelines that are taken as they are."""


def option(*names: str, help: str, shown: str | None = None, **settings: Any) -> Decorator:
    """An option whose help ends with its default: `shown`, or the default itself.

    Options of `learn` and `compare` have no default here, so that those of a TOML file count where
    none is given; `shown` says what their specs fall back to.
    """
    if not settings.get("required"):  # which click says by itself
        help += f"  [default: {settings['default'] if shown is None else shown}]"
    return click.option(*names, help=help, **settings)


def flag(*names: str, help: str, **settings: Any) -> Decorator:
    """An option without a value."""
    return option(*names, help=help, shown="off", is_flag=True, **settings)


old_samples = click.option(
    "--judged", type=int, hidden=True, help="--samples as it was called before."
)
old_image = click.option(
    "--picture", "old_image", type=FILE, hidden=True, help="--image as it was called before."
)


def together(*decorators: Decorator) -> Decorator:
    """Several options as one decorator, in the order of the help."""

    def decorate(command: Command) -> Command:
        for one in reversed(decorators):
            command = one(command)
        return command

    return decorate


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    from ld3.report.tables import table_lines

    print_lines(table_lines(rows))


def print_files(paths: Iterable[Path]) -> None:
    print_lines(f"{path.suffix[1:]:<9}{path}" for path in paths)


@contextmanager
def noted_if_missing(what: str) -> Iterator[None]:
    """Images come after the result: without their package, a line says so and the command ends
    well."""
    from ld3.report.tables import wrapped

    try:
        yield
    except MissingPackage as missing:
        print_lines(wrapped(f"{what}: {missing}"))


@contextmanager
def working(device: str, rank_timeout: float) -> Iterator[tuple["Ranks", "Bar"]]:
    """The ranks that run this command, and a bar, which rank 0 shows."""
    from ld3.report.bar import Bar
    from ld3.runs.ranks import joined

    with joined(device, rank_timeout) as ranks, Bar(shown=ranks.is_first) as bar:
        yield ranks, bar


# Options by name, for commands to pick from

model_option = option(
    "--model", shown="fashion",
    help="Model: a name of `ld3 models`, the FILE of a published checkpoint, "
    "diffusers:PATH_OR_HUB_ID or package.module:function.",
)  # fmt: skip
batch_option = option(
    "--batch", type=int, shown="64; 8 in one call of a pipeline",
    help="Samples that the network gets at a time.",
)  # fmt: skip
config_option = option(
    "--config", shown="recognised",
    help="Configuration of a checkpoint that does not hold it: a name such as "
    "imagenet64_uncond, or a JSON file with the flags of its training script.",
)  # fmt: skip
clamp_option = flag(
    "--clamp", default=None,
    help="Clamp x0 of an OpenAI checkpoint to [-1, 1], as its authors' sampler does.",
)  # fmt: skip
cell_options = together(
    option("--engine", type=click.Choice(["local", "ray"]), shown="local",
           help="Where cells run: processes of this machine, or a cluster of `ray start`."),
    option("--gpus-per-cell", type=float, shown="0",
           help="GPUs of each cell, with --engine ray; 0.5: two cells share one."),
)  # fmt: skip
rank_timeout_option = option(
    "--rank-timeout", type=Finite(0.01, 100_000), default=60.0,
    help="Minutes that the ranks of torchrun wait for each other.",
)  # fmt: skip
json_option = flag("--json", "json_", help="Print JSON for programs.")


def device_option(**settings: Any) -> Decorator:
    settings = settings or {"default": "cpu"}
    return option(
        "--device", **settings,
        help="Device of the network: cpu, cuda, cuda:1, mps, or auto: a GPU, one per rank.",
    )  # fmt: skip


def distance_option(shown: str, what: str) -> Decorator:
    return option(
        "--distance", shown=shown,
        help=f"{what}: auto, l1, l2, pseudo-huber, perceptual, lpips-vgg, lpips-alex, chamfer "
        "(point clouds); lpips-vgg:FILE takes the weights from a file. auto: perceptual for "
        "images, where weights are found, else l2.",
    )  # fmt: skip


def prompt_option(help: str, shown: str) -> Decorator:
    return option("--prompt", multiple=True, help=f"{help} Repeatable.", shown=shown)


def out_option(help: str, default: str) -> Decorator:
    return option("--out", type=FILE, help=help, default=Path(default))


model_options = together(
    prompt_option("Pipelines: a prompt.", "five captions of MS-COCO"),
    option("--prompts", type=FILE, help="Text file with one prompt per line.", shown="none"),
    option("--negative-prompt", help="Prompt that guidance leads away from.", shown="empty"),
    option("--label", multiple=True, help="Class labels: 1,2 or 0-9.", shown="all"),
    option("--resolution", help="Image size: 512, or HEIGHTxWIDTH.", shown="the pipeline's"),
    option("--frames", type=int, help="Frames of a video.", shown="the pipeline's"),
    option("--tokens", type=int, help="Tokens of a prompt.", shown="the pipeline's"),
    option("--embedded-guidance", type=float, shown="3.5",
           help="Guidance scale that networks such as Flux take as an input."),
    flag("--rectified", default=None,
         help="The network is a flow from noise to data, as InstaFlow."),
    flag("--latents", default=None, help="Compare latents instead of decoded images."),
    flag("--tiling", default=None, help="Decode in tiles."),
    option("--net-time", shown="float",
           help="Times as the network gets them: float, integer, bfloat16."),
    config_option,
    clamp_option,
    batch_option,
    device_option(shown="cpu"),
    rank_timeout_option,
    option("--dtype", help="Network dtype: float32, float64, bfloat16, float16.",
           shown="the model's"),
)  # fmt: skip
"""How a pipeline or a checkpoint is used, on which device and in which dtype."""

network_options = together(
    option("--features", type=FILE, shown="the package's own for `ld3 models`, else one found",
           help="Feature network of set metrics: weights of the FID Inception (.pt, .pth, "
           ".safetensors), other TorchScript, inception (finds an installed one) or package "
           "(the package's own, for 1x28x28 images)."),
    option("--resize", shown="tensorflow",
           help="Resize rule of the FID Inception: tensorflow (published statistics, "
           "torch-fidelity) or pytorch (pytorch-fid)."),
)  # fmt: skip
data_option = option(
    "--data", type=FILE, shown="the package's own for `ld3 models`, else none",
    help="Data for the Fréchet distance: statistics (.npz, .pkl), a folder or a zip of images.",
)  # fmt: skip
spec_option = option(
    "--spec", "file", type=FILE, shown="none",
    help="TOML file with these options, such as held_out = 128. Options given here win.",
)  # fmt: skip


def run_options(teacher: tuple[str, str, str], out: tuple[str, str]) -> Decorator:
    """What `learn` and `compare` share. `teacher`: defaults of solver, grid and steps; `out`: what
    the folder holds, and its default."""
    return together(
        distance_option("auto", "Distance between samples"),
        option("--preset", shown="standard",
               help="Recipe, training pairs and teacher by name: standard, fast, best, "
               "paper-pixel, paper-latent, paper-text-to-image."),
        option("--recipe", multiple=True, shown="the preset's",
               help="Settings of the recipe to change, as NAME=VALUE: epochs=2,rate=0.05."),
        option("--start", shown="best",
               help="Where learning starts: best (of the known grids), a plan.json, or any name of "
               "`ld3 methods` that is not learned."),
        option("--held-out", type=int, help=HELD_OUT, shown="64"),
        option("--teacher-solver", shown=teacher[0],
               help="Solver of the teacher: NAME, NAME:ORDER or NAME:ORDER:VARIANT."),
        option("--teacher-order", type=int, shown="the solver's",
               help="Order of the teacher's solver: alias of --teacher-solver NAME:ORDER."),
        option("--teacher-variant", shown="the solver's",
               help="Variant of the teacher's solver: alias of --teacher-solver "
               "NAME:ORDER:VARIANT."),
        option("--teacher-grid", shown=teacher[1],
               help="Grid of the teacher: a known grid of `ld3 methods`."),
        option("--teacher-steps", type=int, help="Steps of the teacher.", shown=teacher[2]),
        option("--reference-steps", type=int, shown="twice the teacher's",
               help="Steps of the reference solution, UniPC-3 on logsnr, in the scores."),
        model_options,
        option("--out", type=FILE, help=out[0], shown=out[1]),
        spec_option,
        click.option("--resume/--fresh", default=True,
                     help="--resume goes on with an unfinished run and reads finished ones. "
                     "--fresh starts again; training pairs and scores are made again, too.  "
                     "[default: --resume]"),
    )  # fmt: skip


# Texts


def given(options: dict[str, Any], *lists: str) -> dict[str, Any]:
    """Options of `learn` and `compare` as their specs take them; `lists` are None if not given."""
    options |= {name: options[name] or None for name in lists}
    options["recipe"] = read_recipe(options["recipe"]) or None
    options["pipeline"] = read_pipeline(options)
    return options


def read_pipeline(options: dict[str, Any]) -> dict[str, Any] | None:
    """Take the options of pipelines out of all options; None if none was given."""
    prompt, file = options.pop("prompt"), options.pop("prompts")
    if prompt and file:
        raise SpecError("--prompts: got --prompt as well; give one of them")
    found: dict[str, Any] = {
        "prompts": read_prompts(file) if file is not None else prompt or None,
        "classes": whole_numbers(options.pop("label"), "--label", "0,3 or 0-9") or None,
    }
    size = options.pop("resolution")
    if size:
        match = re.fullmatch(r"([0-9]+)(?:x([0-9]+))?", size)
        if match is None:
            raise SpecError(
                f"--resolution: got {size!r}, expected pixels such as 512, or 512x768: height and "
                "width"
            )
        found |= {"height": int(match[1]), "width": int(match[2] or match[1])}
    found |= {name: options.pop(name) for name in PIPELINE}
    return {name: value for name, value in found.items() if value is not None} or None


def read_prompts(path: Path) -> tuple[str, ...]:
    """The lines of a text file that are not empty."""
    from ld3.store import read_text

    prompts = tuple(filter(None, map(str.strip, read_text(path).splitlines())))
    if not prompts:
        raise SpecError(f"--prompts: got {path}, which is empty; expected one prompt per line")
    return prompts


def read_recipe(texts: Sequence[str]) -> dict[str, object]:
    """NAME=VALUE -> {name: value}, values as TOML reads them, else as text."""
    from ld3.runs.spec import listed

    settings: dict[str, object] = {}
    for pair in map(str, listed(list(texts))):
        name, equals, value = pair.partition("=")
        if not equals:
            raise SpecError(f"--recipe: got {pair!r}, expected NAME=VALUE such as gamma=0.001")
        try:
            settings[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            settings[name.strip()] = value.strip()
    return settings


def read_scales(texts: Sequence[str]) -> list[float]:
    """1,2.5 and 1-4 -> guidance scales."""
    from ld3.runs.spec import counted

    parts = counted(_parts(texts, "--guidance", "1,2.5,4"), "--guidance", "1-4")
    for text in map(str, parts):
        if not re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", text) or float(text) > 100:
            raise SpecError(
                f"--guidance: got {text!r}, expected scales from 0 to 100 such as 1,2.5,4"
            )
    return [float(str(part)) for part in parts]


def read_seeds(text: str) -> list[int]:
    """0-3,7 -> 0 1 2 3 7"""
    return whole_numbers([text], "--seeds", "0-63 or 1,5,9", MAX_SEEDS)


def whole_numbers(texts: Sequence[str], name: str, such_as: str, most: int = 1000) -> list[int]:
    """Lists and ranges of whole numbers from 0."""
    from ld3.runs.spec import counted

    parts = counted(_parts(texts, name, such_as), name, such_as, most)
    for text in map(str, parts):
        if not re.fullmatch("[0-9]{1,15}", text):
            raise SpecError(f"{name}: got {text[:50]!r}, expected whole numbers such as {such_as}")
    return [int(str(part)) for part in parts]


def _parts(texts: Sequence[str], name: str, such_as: str) -> list[str]:
    """What stands between commas."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    if not all(parts):
        raise SpecError(f"{name}: got {','.join(texts)!r} with an empty part, expected {such_as}")
    return parts
