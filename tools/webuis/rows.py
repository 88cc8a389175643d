"""What was run, what it was compared with, and how far apart they are."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    tool: str
    what: str
    against: str
    found: float | bool  # a relative difference, or whether it is so
    limit: float | None = 1e-4  # None: measured, not held to anything

    @property
    def fine(self) -> bool:
        if isinstance(self.found, bool):
            return self.found
        return self.limit is None or self.found <= self.limit

    def line(self) -> str:
        shown = ("yes" if self.found else "NO") if isinstance(self.found, bool) else None
        return f"| {self.tool} | {self.what} | {self.against} | {shown or f'{self.found:.1e}'} |"


def apart(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted|."""
    found, wanted = found.double().flatten(), wanted.double().flatten()
    return float((found - wanted).norm() / wanted.norm())


def commit(checkout: Path) -> str:
    """Of a git checkout, in brackets; else nothing."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=7", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return f" ({found.stdout.strip()})" if found.returncode == 0 else ""
