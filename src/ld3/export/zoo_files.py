"""The files of a plan zoo: in a folder, or behind an https address with a copy on this machine.

Plans are named by their SHA-256, so that a copy with the right one is as good as the original and
no connection is made for it. The index is read anew, and from its copy when there is no connection.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from ld3.errors import SpecError, StoreError
from ld3.store import MAX_JSON, read_bytes, write_bytes

TIMEOUT = 20  # seconds
LOCAL = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class ZooFiles:
    """Where the files are; `address` is empty for a folder."""

    folder: Path  # of the files or of their copies
    address: str = ""

    @classmethod
    def at(cls, where: str, copies: Path | None = None) -> "ZooFiles":
        """A folder, or an address such as https://huggingface.co/owner/name/resolve/main."""
        parts = urlsplit(where)
        if parts.scheme in ("http", "https"):
            if parts.scheme == "http" and parts.hostname not in LOCAL:
                raise SpecError(f"zoo: got {where}, expected an https address or a folder")
            name = hashlib.sha256(where.rstrip("/").encode()).hexdigest()[:16]
            return cls((copies or copies_folder()) / name, where.rstrip("/"))
        folder = Path(where)
        if not folder.is_dir():
            raise SpecError(f"zoo: got {where}, expected a folder or an https address")
        return cls(folder)

    def read(self, name: str, sha256: str = "") -> tuple[bytes, str]:
        """The content, and a line to show if it is an older copy."""
        path = self.folder / safe(name)
        if not self.address:
            return read_bytes(path, MAX_JSON), ""
        if sha256 and path.is_file():
            content = read_bytes(path, MAX_JSON)
            if hashlib.sha256(content).hexdigest() == sha256:
                return content, ""
        try:
            with urlopen(f"{self.address}/{name}", timeout=TIMEOUT) as answer:
                final = urlsplit(answer.geturl())
                if final.scheme != "https" and final.hostname not in LOCAL:
                    raise StoreError(f"zoo: {self.address} leads to {final.scheme}, not to https")
                content = answer.read(MAX_JSON + 1)
        except (URLError, OSError, ValueError) as error:
            if path.is_file() and not sha256:
                copy = read_bytes(path, MAX_JSON)
                return copy, f"no connection to {self.address}: this is the copy of its last answer"
            raise StoreError(f"zoo: cannot read {self.address}/{name}: {error}") from None
        if len(content) > MAX_JSON:
            raise StoreError(f"zoo: {name} has more than {MAX_JSON} bytes, expected a plan")
        write_bytes(path, content)
        return content, ""


def safe(name: str) -> str:
    """A path inside of the zoo, with plain names; anything else is refused."""
    parts = name.split("/")
    if not all(re.fullmatch(r"[A-Za-z0-9_][\w.+-]*", part) for part in parts) or len(name) > 300:
        raise StoreError(f"zoo: got the path {name!r}, expected plain names inside of the zoo")
    return name


def copies_folder() -> Path:
    """Where copies stay: LD3_ZOO, or the user's cache."""
    named = os.environ.get("LD3_ZOO")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(cache) / "ld3" / "zoo"
