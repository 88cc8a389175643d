"""Pickles as data: a reader of the format that can neither import nor call anything.

A pickle is a program for a stack machine. This machine runs it on data alone: a global becomes its
:class:`Name`, a call becomes :class:`Made` (what would be called, and with what), bytes become a
:class:`Span` of the file. What a name means is up to the caller, who looks for the few it knows.

Python's own `pickle` is not used. Limits hold on instructions, nesting and lengths, and all memory
used is in proportion to bytes of the file.
"""

import codecs
import struct
from collections.abc import Callable

from ld3.zoo.checkpoints.regions import BadFile, Region, Span

MAX_INSTRUCTIONS = 5_000_000  # the largest published file has under a million
MAX_NESTING = 500
MAX_TEXT = 2**26
MAX_INTEGER = 1024  # bytes


class Name:
    """A global that the file mentions. It is never looked up."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Made:
    """What `maker(*args)` would have returned, with what the file then put into it."""

    __slots__ = ("args", "entries", "items", "maker", "state")

    def __init__(self, maker: object, args: tuple[object, ...]) -> None:
        self.maker = str(maker) if isinstance(maker, Name) else ""
        self.args = args
        self.state: object = None
        self.entries: dict[object, object] = {}
        self.items: list[object] = []


class Reference:
    """A persistent id: something that the file holds elsewhere, such as a storage."""

    __slots__ = ("key",)

    def __init__(self, key: object) -> None:
        self.key = key


class Machine:
    """Runs one pickle of a region; `names` are the globals it mentioned, `called` those it wanted
    to call, `references` what it holds elsewhere."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.stack: list[object] = []
        self.below: list[list[object]] = []  # stacks under the marks
        self.memo: dict[int, object] = {}
        self.names: set[str] = set()
        self.called: set[str] = set()
        self.references: list[Reference] = []

    def run(self) -> object:
        read = self.region.read
        for _ in range(MAX_INSTRUCTIONS):
            code = read(1)
            if code == b".":
                return self.pop()
            action = _ACTIONS.get(code)
            if action is None:
                raise BadFile(
                    f"got the byte {code!r} at {self.region.position - 1}, expected an instruction "
                    "of a pickle; the file is damaged or of another format"
                )
            action(self)
        raise BadFile(f"got a pickle of over {MAX_INSTRUCTIONS} instructions, expected fewer")

    # The stack

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> object:
        value = self.top()
        self.stack.pop()
        return value

    def top(self) -> object:
        if not self.stack:
            raise BadFile("got an instruction without its operands, expected a whole pickle")
        return self.stack[-1]

    def mark(self) -> None:
        if len(self.below) >= MAX_NESTING:
            raise BadFile(f"got data nested more than {MAX_NESTING} deep, expected less")
        self.below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[object]:
        if not self.below:
            raise BadFile("got the end of a list without its start, expected a whole pickle")
        found, self.stack = self.stack, self.below.pop()
        return found

    def remember(self, place: int) -> None:
        self.memo[place] = self.top()

    def recall(self, place: int) -> None:
        if place not in self.memo:
            raise BadFile(f"got a reference to value {place}, which does not exist")
        self.push(self.memo[place])

    # Values

    def text(self, size: int, encoding: str = "utf-8") -> None:
        """In Latin-1 it is a string of Python 2."""
        if size > MAX_TEXT:
            raise BadFile(f"got a text of {size} bytes, expected at most {MAX_TEXT}")
        self.push(self.region.read(size).decode(encoding, "surrogatepass"))

    def quoted(self) -> None:
        line = self.region.line()
        if len(line) < 2 or line[0] != line[-1] or line[0] not in "'\"":
            raise BadFile("got a string without quotes, expected a whole pickle")
        plain, _ = codecs.escape_decode(line[1:-1].encode())
        self.push(plain.decode("latin-1"))

    def long(self, size: int) -> None:
        if not 0 <= size <= MAX_INTEGER:
            raise BadFile(f"got an integer of {size} bytes, expected at most {MAX_INTEGER}")
        self.push(self.region.signed(size))

    def written(self) -> None:
        """An integer or truth value in digits."""
        digits = self.region.line()
        self.push({"00": False, "01": True}[digits] if digits in ("00", "01") else _int(digits))

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise BadFile("got an instruction without its operands, expected a whole pickle")
        split = len(self.stack) - count
        self.stack[split:] = [tuple(self.stack[split:])]

    def put_pairs(self, flat: list[object]) -> None:
        target = self.top()
        entries = target.entries if isinstance(target, Made) else target
        if not isinstance(entries, dict) or len(flat) % 2:
            raise BadFile("got entries for what is no dictionary, expected a whole pickle")
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            entries[checked_key(key)] = value

    def put_items(self, values: list[object]) -> None:
        target = self.top()
        items = target.items if isinstance(target, Made) else target
        if not isinstance(items, list):
            raise BadFile("got items for what is no list, expected a whole pickle")
        items.extend(values)

    # Globals and what would be made with them

    def mention(self, module: object, name: object) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise BadFile("got a global without a name, expected a whole pickle")
        found = Name(module[:200], name[:200])
        self.names.add(str(found))
        self.push(found)

    def make(self, maker: object, args: object) -> None:
        if not isinstance(args, tuple):
            raise BadFile("got a call without a tuple of arguments, expected a whole pickle")
        if isinstance(maker, Name):
            self.called.add(str(maker))
        self.push(Made(maker, args))

    def refer(self, key: object) -> None:
        found = Reference(key)
        self.references.append(found)
        self.push(found)

    def stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        self.mention(module, name)

    def reduce(self) -> None:
        args, maker = self.pop(), self.pop()
        self.make(maker, args)

    def new_with_keywords(self) -> None:
        _, args, maker = self.pop(), self.pop(), self.pop()
        self.make(maker, args)

    def instance(self) -> None:
        module, name = self.region.line(), self.region.line()
        args = tuple(self.since_mark())
        self.mention(module, name)
        self.make(self.pop(), args)

    def object(self) -> None:
        found = self.since_mark()
        if not found:
            raise BadFile("got an object without a class, expected a whole pickle")
        self.make(found[0], tuple(found[1:]))

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if isinstance(target, Made):
            target.state = state

    def set_pair(self) -> None:
        value, key = self.pop(), self.pop()
        self.put_pairs([key, value])

    def append(self) -> None:
        self.put_items([self.pop()])

    def pop_or_unmark(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()

    def dictionary(self) -> None:
        flat = self.since_mark()
        self.push({})
        self.put_pairs(flat)


def checked_key(key: object) -> object:
    """A key of a dictionary: nothing whose hash looks into what the file made."""
    if isinstance(key, tuple):
        for part in key:
            if isinstance(part, tuple):
                raise BadFile("got a nested tuple as a key, expected a name")
            checked_key(part)
        return key
    if key is None or isinstance(key, str | int | float | complex | Name | Made | Reference | Span):
        return key
    raise BadFile(f"got a {type(key).__name__} as a key, expected a name")


def _int(digits: str) -> int:
    return int(_number(int, digits.removesuffix("L") or "0", "an integer"))


def _number(kind: Callable[[str], float], digits: str, wanted: str) -> float:
    try:
        return kind(digits)
    except ValueError:
        raise BadFile(f"got {digits[:20]!r}, expected {wanted}; the file is damaged") from None


def _protocol(m: Machine) -> None:
    version = m.region.integer(1)
    if version > 5:
        raise BadFile(f"got a pickle of protocol {version}, expected at most 5")


_Action = Callable[[Machine], object]
_ACTIONS: dict[bytes, _Action] = {
    b"\x80": _protocol,
    b"\x95": lambda m: m.region.take(8),  # a frame: its length says nothing new
    # the stack and the memo
    b"(": Machine.mark,
    b"0": Machine.pop_or_unmark,
    b"1": Machine.since_mark,
    b"2": lambda m: m.push(m.top()),
    b"p": lambda m: m.remember(_int(m.region.line())),
    b"q": lambda m: m.remember(m.region.integer(1)),
    b"r": lambda m: m.remember(m.region.integer(4)),
    b"\x94": lambda m: m.remember(len(m.memo)),
    b"g": lambda m: m.recall(_int(m.region.line())),
    b"h": lambda m: m.recall(m.region.integer(1)),
    b"j": lambda m: m.recall(m.region.integer(4)),
    # plain values
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"I": Machine.written,
    b"L": lambda m: m.push(_int(m.region.line())),
    b"J": lambda m: m.push(m.region.signed(4)),
    b"K": lambda m: m.push(m.region.integer(1)),
    b"M": lambda m: m.push(m.region.integer(2)),
    b"\x8a": lambda m: m.long(m.region.integer(1)),
    b"\x8b": lambda m: m.long(m.region.signed(4)),
    b"F": lambda m: m.push(_number(float, m.region.line(), "a number")),
    b"G": lambda m: m.push(struct.unpack(">d", m.region.read(8))[0]),
    b"S": Machine.quoted,
    b"T": lambda m: m.text(m.region.integer(4), "latin-1"),
    b"U": lambda m: m.text(m.region.integer(1), "latin-1"),
    b"V": lambda m: m.push(m.region.line().encode().decode("raw-unicode-escape")),
    b"X": lambda m: m.text(m.region.integer(4)),
    b"\x8c": lambda m: m.text(m.region.integer(1)),
    b"\x8d": lambda m: m.text(m.region.integer(8)),
    b"B": lambda m: m.push(m.region.take(m.region.integer(4))),
    b"C": lambda m: m.push(m.region.take(m.region.integer(1))),
    b"\x8e": lambda m: m.push(m.region.take(m.region.integer(8))),
    b"\x96": lambda m: m.push(m.region.take(m.region.integer(8))),
    # containers; sets are lists, so that nothing is hashed
    b")": lambda m: m.push(()),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"]": lambda m: m.push([]),
    b"l": lambda m: m.push(m.since_mark()),
    b"a": Machine.append,
    b"e": lambda m: m.put_items(m.since_mark()),
    b"\x8f": lambda m: m.push([]),
    b"\x90": lambda m: m.put_items(m.since_mark()),
    b"\x91": lambda m: m.push(m.since_mark()),
    b"}": lambda m: m.push({}),
    b"d": Machine.dictionary,
    b"s": Machine.set_pair,
    b"u": lambda m: m.put_pairs(m.since_mark()),
    # names, and what the file would make with them
    b"c": lambda m: m.mention(m.region.line(), m.region.line()),
    b"\x93": Machine.stack_global,
    b"R": Machine.reduce,
    b"\x81": Machine.reduce,
    b"\x92": Machine.new_with_keywords,
    b"i": Machine.instance,
    b"o": Machine.object,
    b"b": Machine.build,
    b"P": lambda m: m.refer(m.region.line()),
    b"Q": lambda m: m.refer(m.pop()),
}
