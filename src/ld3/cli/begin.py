"""`ld3 init`: a file to begin with. `ld3 --version --verbose`: what is installed."""

import platform
from importlib import metadata
from importlib.resources import files
from keyword import iskeyword
from pathlib import Path

import click

from ld3 import __version__
from ld3.cli.options import FILE, print_table
from ld3.cli.say import say
from ld3.errors import SpecError

PACKAGES = (
    "torch", "numpy", "safetensors", "pydantic", "click", "diffusers", "transformers",
    "accelerate", "matplotlib", "torchmetrics", "tensorboard", "rdkit", "ray",
)  # fmt: skip


@click.command()
@click.argument("file", type=FILE)
def init(file: Path) -> None:
    """Write FILE, such as my_model.py: a model of your own to fill in. It runs as it is."""
    from ld3.store import write_bytes

    if file.suffix != ".py" or not file.stem.isidentifier() or iskeyword(file.stem):
        raise SpecError(f"FILE: got {file}, expected a Python module name such as my_model.py")
    if file.exists():
        raise SpecError(f"FILE: got {file}, which exists; expected a new name")
    text = (files("ld3.cli") / "template.py").read_text("utf-8")
    write_bytes(file, text.replace("MODULE", file.stem).encode())
    say(f"wrote  {file}")
    say(f"try    ld3 learn --model {file.stem}:make --nfe 5 --preset fast")


def print_versions(verbose: bool) -> None:
    """The version; with `verbose` also what a bug report should say."""
    say(f"ld3, version {__version__}")
    if not verbose:
        return
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    devices += ["mps"] * torch.backends.mps.is_available()
    rows = [
        ("python", platform.python_version()),
        ("system", platform.platform()),
        ("devices", ", ".join(["cpu", *devices])),
        ("threads", str(torch.get_num_threads())),
    ]
    for name in PACKAGES:
        try:
            rows.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            rows.append((name, "not installed"))
    print_table(rows)


COMMANDS = (init,)
