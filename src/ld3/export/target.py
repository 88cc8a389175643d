"""What an exporter takes and what it returns."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wish:
    """Options of an export."""

    name: str | None = None  # what it is called; by default model and solver
    base_model: str | None = None  # the model's address on the hub
    licence: str = "apache-2.0"  # of the numbers
    pictures: tuple[Path, ...] = ()  # for the model card
    publisher: str = ""  # the publisher's id in ComfyUI's registry of nodes


@dataclass(frozen=True)
class Exported:
    """The files, and what there is to say about them, one line each."""

    files: list[Path]
    notes: list[str]
