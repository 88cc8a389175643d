"""Numbers that took a while, kept by content."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ld3.errors import StoreError
from ld3.store import digest, read_json, write_json


def kept(cache: Path, key: dict[str, Any], compute: Callable[[], Any]) -> Any:
    """What `compute` gives, from disk if it was computed before for the same key."""
    file = cache / "kept" / f"{digest(key)}.json"
    if file.exists():
        with suppress(StoreError, KeyError, TypeError):
            return read_json(file)["content"]
    content = compute()
    write_json(file, {"key": key, "content": content})
    return content
