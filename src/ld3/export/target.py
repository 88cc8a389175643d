"""What an exporter is asked for and what it gives back."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wish:
    """What a user may say about an export."""

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
