"""Errors a user can act on.

Every message is one line that says what was got, what was wanted and how to fix it. The command
line prints it without a traceback and exits with code 2.
"""

import re
import traceback
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Args = ParamSpec("Args")
Answer = TypeVar("Answer")
LONGEST = 1000  # characters of an error


class Ld3Error(Exception):
    """Anything a user can fix: bad input, a broken file, a model that does not fit."""


class SpecError(Ld3Error):
    """A setting, name or number that cannot be used."""


class MissingPackage(SpecError):
    """An optional package that is not installed."""


class PlanError(Ld3Error):
    """A time grid or plan that is malformed or does not fit the model."""


class ModelError(Ld3Error):
    """A network that does not keep the contract of :class:`ld3.Model`, or its weights."""


class StoreError(Ld3Error):
    """A file that cannot be read or written."""


class ExportError(Ld3Error):
    """An exported plan that does not do, in the tool at hand, what it was learned to do."""


class EndedElsewhere(Ld3Error):
    """Another rank has said why all of them end."""


def printable(text: str) -> str:
    """Text without control characters, which could steer a terminal; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """An error as one line of bounded length, whatever is in it."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."


def text_of(error: BaseException) -> str:
    """The message of an exception, also of a class whose `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return "no message"


def first_line(error: BaseException, most: int = 100) -> str:
    """The begin of a message, or the name of an error without one."""
    return (text_of(error).strip().splitlines() or [type(error).__name__])[0][:most]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch's allocator on the CPU or one of a device had no memory left."""
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    text = text_of(error)
    return known or "can't allocate memory" in text or "out of memory" in text


NO_MEMORY = (
    "out of memory: run fewer samples at a time (--batch 8, --recipe batch=1), a smaller network "
    "dtype (--dtype bfloat16), or compare latents (--latents)"
)


def call_own(
    what: str, call: Callable[Args, Answer], *args: Args.args, **more: Args.kwargs
) -> Answer:
    """Run code that a user brought; what it raises becomes one line that says where."""
    try:
        return call(*args, **more)
    except (Ld3Error, KeyboardInterrupt):
        raise
    except BaseException as error:  # it may exit, too
        if is_out_of_memory(error):
            raise ModelError(f"{what}: {NO_MEMORY}") from error
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "importlib" not in frame.filename][-1]
        place = f" ({Path(own.filename).name}, line {own.lineno})" * (own.filename != __file__)
        got = f"{type(error).__name__}: {text_of(error)}{place}"
        raise ModelError(f"{what}: got {got}") from error


def unknown(kind: str, got: str, known: Iterable[str]) -> SpecError:
    """The error for a name that is not in a registry, with the nearest known one."""
    names = sorted(known)
    near = get_close_matches(got, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return SpecError(f"unknown {kind} {got!r}: {hint}known: {', '.join(names)}")


def bad_option(
    kind: "type[BaseModel]", error: "ValidationError", noun: str = "option"
) -> SpecError:
    """The error for what pydantic found in options."""
    first = error.errors()[0]
    option = str(first["loc"][0]) if first["loc"] else "options"
    if first["type"] == "extra_forbidden":
        return unknown(noun, option, kind.model_fields)
    reason = expectation(first["msg"])
    joint = "," if reason.startswith("expected") else ":"
    return SpecError(f"{option}: got {str(first['input'])[:200]!r}{joint} {reason}")


def import_extra(package: str, reason: str, extra: str = "diffusers") -> Any:
    """A package of one of our extras; without it one line says how to install it."""
    try:
        return import_module(package)
    except ImportError:
        raise SpecError(f"{reason}; pip install 'ld3[{extra}]'") from None


def wrong_part(error: "ValidationError") -> str:
    """Where a file is wrong and why, for what pydantic found."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole file"
    return f"{where}: {expectation(first['msg'])}"


def expectation(message: str) -> str:
    """A message of pydantic in our form: `expected 1 or more`."""
    text = message.removeprefix("Value error, ")
    for pattern, words in (
        (r"Input should be greater than or equal to (\S+)", r"expected \1 or more"),
        (r"Input should be less than or equal to (\S+)", r"expected at most \1"),
        (r"Input should be a valid (?:integer|int)\b.*", "expected a whole number"),
        (r"Input should be a valid number\b.*", "expected a number"),
        (r"\w+ should have (at (?:least|most) \S+ \w+).*", r"expected \1"),
        (r"Input should be a valid dictionary.*", "expected a JSON object"),
        (r"Field required", "got nothing, expected a value"),
        (r"Extra inputs are not permitted", "expected no field of this name"),
        (r"Input should be ", "expected "),
    ):
        text = re.sub(rf"^{pattern}", words, text)
    return text
