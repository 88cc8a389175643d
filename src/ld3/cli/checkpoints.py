"""`ld3 inspect`, `ld3 convert`: commands on published checkpoints. Nothing in a file is run."""

import json
from pathlib import Path

import click

from ld3.cli.options import FILE, clamp_option, config_option, json_option, print_table
from ld3.cli.say import say


@click.command()
@click.argument("file", type=FILE)
@config_option
@clamp_option
@json_option
def inspect(file: Path, config: str | None, clamp: bool | None, json_: bool) -> None:
    """Print what a checkpoint FILE is, without running anything in it."""
    from ld3.options import PipelineOptions
    from ld3.zoo.checkpoints.load import inspect_checkpoint

    found = inspect_checkpoint(file, PipelineOptions(config=config, clamp=bool(clamp)))
    if json_:
        say(json.dumps(found, indent=2))
        return
    rows = [
        ("file", found["file"]),
        ("format", f"{found['format']}, {found['bytes']:,} bytes, {found['tensors']} tensors"),
        ("sha256", found["sha256"]),
        ("network", found["network"]),
        ("parameters", f"{found['parameters']:,} ({', '.join(found['dtypes'])})"),
        ("shape", "x".join(map(str, found["shape"]))),
        ("schedule", found["schedule"]),
        ("prediction", found["prediction"]),
        ("conditions", found["conditions"]),
        ("licence", found["licence"]),
        *(("note", note) for note in found["notes"]),
    ]
    if found["left_as_names"]:
        rows.append(("not run", ", ".join(found["left_as_names"][:8])))
    print_table(rows)


@click.command()
@click.argument("file", type=FILE)
@click.argument("out", type=FILE)
@config_option
def convert(file: Path, out: Path, config: str | None) -> None:
    """Write a checkpoint FILE as OUT.safetensors, with its configuration.

    The result is the same model, and holds nothing but numbers and text. A file of a latent
    model becomes a folder of diffusers if OUT has no suffix.
    """
    from ld3.options import PipelineOptions
    from ld3.zoo.checkpoints.load import convert_checkpoint

    say(f"wrote {convert_checkpoint(file, out, PipelineOptions(config=config))}")


COMMANDS = (inspect, convert)
