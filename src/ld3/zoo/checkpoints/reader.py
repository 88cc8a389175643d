"""Checkpoints of the paper's models, read without running them.

    found = read_checkpoint("edm-cifar10-32x32-uncond-vp.pkl")
    found.kind                    # "edm", "lightning", "state-dict", "point-cloud", "safetensors",
                                  # "torchscript"
    found.config                  # plain configuration in the file: numbers, texts, lists, dicts
    found.tensors                 # a mapping name -> tensor; each is read when it is asked for
    found.tensors.shape("name")   # without reading it

Six kinds of file become one: EDM's pickles, files of Lightning, state dicts that torch wrote (zip,
or one stream as before torch 1.6), files of DMPG, TorchScript, and safetensors. Reading makes no
class and calls no function of the file: see :mod:`ld3.zoo.checkpoints.pickles`. Tensors stay in the
file until they are asked for, and are then read once, into their own memory.
"""

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.zoo.checkpoints.pickles import (
    BadFile,
    Machine,
    Made,
    Name,
    Reference,
    Region,
    Span,
    mapping,
    plain,
)

Kind = Literal["edm", "lightning", "state-dict", "point-cloud", "safetensors", "torchscript"]

MAX_HEADER = 100_000_000  # bytes of a safetensors header, as safetensors itself limits it
MAX_MEMBERS = 1_000_000  # of a zip
MAX_DEPTH = 50  # of modules in modules
MAX_MODULES = 100_000
MAX_TENSORS = 1_000_000
MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of torch.save before 1.6
LEGACY = 1001  # the second

DTYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
SAFE_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip

REFUSED_MODULES = frozenset(
    {
        "os", "posix", "nt", "subprocess", "pty", "shutil", "socket", "sys", "runpy", "importlib",
        "ctypes", "code", "codeop", "pickle", "_pickle", "cloudpickle", "dill", "marshal", "types",
        "multiprocessing", "asyncio", "webbrowser", "commands", "pip", "timeit", "platform",
        "signal", "threading", "tempfile", "urllib", "http", "requests",
    }
)  # fmt: skip
REFUSED_BUILTINS = frozenset(
    {"eval", "exec", "compile", "__import__", "open", "input", "breakpoint", "execfile"}
)
"""Calls that no checkpoint has a use for. They could not run here; a file with them is refused,
because it was made to harm."""


@dataclass(frozen=True)
class Storage:
    """Numbers of one dtype in the file."""

    span: Span
    dtype: torch.dtype
    numel: int


@dataclass(frozen=True)
class Entry:
    """A tensor in the file: where it is, and its form."""

    start: int  # byte of its first number
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """Numbers from its first to its last."""
        if self.numel == 0:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))


class Tensors(Mapping[str, Tensor]):
    """Names and tensors of a file; a tensor is read each time it is asked for."""

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self._path = path
        self.entries = dict(entries)

    def __getitem__(self, name: str) -> Tensor:
        entry = self.entries[name]
        return self._read(
            name, torch.empty(entry.extent * entry.dtype.itemsize, dtype=torch.uint8, device="cpu")
        )

    def each(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors in the order of their names, in one buffer: each lives until the next.

        Memory then holds the largest tensor once, and nothing is left in pieces.
        """
        sizes = {name: e.extent * e.dtype.itemsize for name, e in self.entries.items()}
        buffer = torch.empty(max(sizes.values(), default=0), dtype=torch.uint8, device="cpu")
        for name in sorted(self.entries):
            yield name, self._read(name, buffer[: sizes[name]])

    def _read(self, name: str, raw: Tensor) -> Tensor:
        """A tensor whose bytes are read into `raw`."""
        entry = self.entries[name]
        if len(raw):
            try:
                with self._path.open("rb", buffering=0) as file:
                    file.seek(entry.start)
                    _read_into(file, raw.numpy().data)
            except (OSError, BadFile) as error:
                raise ModelError(
                    f"{self._path}: cannot read {name} ({error}), expected the file to stay as it "
                    "was; try again"
                ) from None
        flat = raw.ne(0) if entry.dtype == torch.bool else raw.view(entry.dtype)
        return flat.as_strided(entry.shape, entry.stride).contiguous()

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self.entries[name].dtype

    @property
    def numel(self) -> int:
        return sum(entry.numel for entry in self.entries.values())

    def under(self, prefix: str) -> "Tensors":
        """Those whose names begin with a prefix, without it."""
        return self.renamed(
            {name: name[len(prefix) :] for name in self.entries if name.startswith(prefix)}
        )

    def renamed(self, names: Mapping[str, str]) -> "Tensors":
        """Some of the tensors under other names: old -> new."""
        return Tensors(self._path, {new: self.entries[old] for old, new in names.items()})


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds."""

    path: Path
    kind: Kind
    tensors: Tensors
    config: dict[str, Any]
    ignored: tuple[str, ...] = ()  # globals that the file mentions and that stayed names
    size: int = 0  # bytes
    metadata: dict[str, str] = field(default_factory=dict)  # of safetensors, as it stands

    @cached_property
    def sha256(self) -> str:
        """Of the whole file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Names, shapes and configuration of a checkpoint; tensors are read when they are asked for.

    Anything that is wrong with the file is a :class:`ModelError` of one line.
    """
    path = Path(path)
    try:
        with path.open("rb", buffering=0) as file:
            return _read(path, file)
    except OSError as error:
        raise ModelError(f"{path}: cannot read: {error.strerror or error}") from None
    except BadFile as error:
        raise ModelError(f"{path}: {printable(str(error))}") from None
    except (
        ValueError, TypeError, KeyError, IndexError, ArithmeticError, EOFError, RecursionError,
        MemoryError, NotImplementedError, zipfile.BadZipFile,
    ) as error:  # fmt: skip
        reason = printable(str(error))[:120]
        raise ModelError(
            f"{path}: got a damaged file ({type(error).__name__}: {reason}), expected a whole "
            "checkpoint; download it again"
        ) from None


def _read(path: Path, file: BinaryIO) -> Checkpoint:
    size = file.seek(0, os.SEEK_END)
    head = Region(file).read(min(size, 16))
    if head[:4] == b"PK\x03\x04":
        return _Reading(path, file, size).zipped()
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size:
        return _safetensors(path, file, size)
    if _is_tar(file, size):
        raise BadFile(
            "got a tar, as torch wrote before 0.1.10, expected a zip or a pickle; load it with an "
            "old torch and save it again"
        )
    if head[:1] not in (b"\x80", b"(", b"}", b"c", b"]"):
        raise BadFile(
            f"got a file that begins with {head[:8]!r}, expected a pickle, a zip of torch.save or "
            "safetensors"
        )
    return _Reading(path, file, size).stream()


def _is_tar(file: BinaryIO, size: int) -> bool:
    return size > 262 and Region(file, Span(257, 5)).read(5) == b"ustar"


class _Reading:
    """One file while it is read: its storages, and the names it mentions."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self.file = file
        self.size = size
        self.storages: dict[str, Span] = {}  # by key: of the zip, or of the stream
        self.nested: dict[int, Storage] = {}  # by place: storages inside of the pickle
        self.names: set[str] = set()
        self.modules = 0
        self.widths: dict[str, int] = {}  # bytes of a number, by key of its storage

    # Containers

    def zipped(self) -> Checkpoint:
        """A zip of torch.save: NAME/data.pkl, and NAME/data/KEY for each storage."""
        with zipfile.ZipFile(self.file) as archive:
            members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise BadFile(f"got a zip of {len(members)} members, expected at most {MAX_MEMBERS}")
        pickles = [m for m in members if m.filename.endswith("data.pkl") and "/" in m.filename]
        if len(pickles) != 1:
            raise BadFile(
                f"got a zip with {len(pickles)} members data.pkl, expected one, as torch.save "
                "writes it"
            )
        folder = pickles[0].filename.removesuffix("data.pkl")
        for member in members:
            key = member.filename.removeprefix(f"{folder}data/")
            if key != member.filename and key:
                self.storages[key] = self._member(member)
            elif member.filename == f"{folder}byteorder":
                span = self._member(member)
                if Region(self.file, span).read(min(span.size, 16)) != b"little":
                    raise BadFile("got numbers in big-endian order, expected little-endian")
        return self.found(self.unpickle(Region(self.file, self._member(pickles[0]))))

    def _member(self, member: zipfile.ZipInfo) -> Span:
        """Where a member's bytes are; it must not be compressed."""
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise BadFile(
                f"got a compressed or encrypted member {member.filename[:100]!r} that unpacks to "
                f"{member.file_size} bytes, expected plain ones, as torch.save writes them"
            )
        header = Region(self.file, Span(member.header_offset, 30)).read(30)
        if header[:4] != b"PK\x03\x04" or member.file_size != member.compress_size:
            raise BadFile("got a zip whose parts do not fit together; download it again")
        skip = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        span = Span(member.header_offset + 30 + skip, member.file_size)
        Region(self.file, span)  # inside of the file
        return span

    def stream(self) -> Checkpoint:
        """A bare pickle (EDM), or torch.save of before 1.6: pickles, then storages."""
        region = Region(self.file)
        first = self.unpickle(region)
        if first != MAGIC:
            return self.found(first)
        value = self._legacy(region)
        if region.position != region.end:
            raise BadFile(
                f"got {region.end - region.position} bytes after the last storage, expected none; "
                "the file is damaged"
            )
        return self.found(value)

    def _legacy(self, region: Region) -> object:
        """After the magic number: version, machine, object, keys, storages in order of the keys."""
        version, machine = self.unpickle(region), mapping(self.unpickle(region)) or {}
        if version != LEGACY or machine.get("little_endian") is not True:
            raise BadFile(
                f"got version {_shown(version)} of torch.save, expected {LEGACY} and little-endian "
                "numbers"
            )
        value, keys = self.unpickle(region), self.unpickle(region)
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise BadFile("got no list of storages, expected one; the file is damaged")
        for key in keys:
            if key not in self.widths:
                raise BadFile(f"got a storage {key[:40]!r} that nothing uses, expected none")
            self.storages[key] = region.take(region.integer(8) * self.widths[key])
        return value

    def unpickle(self, region: Region) -> object:
        """One pickle as data."""
        machine = Machine(region)
        value = machine.run()
        for name in sorted(machine.called):
            module, _, attribute = name.rpartition(".")
            if module.split(".")[0] in REFUSED_MODULES or (
                module in ("builtins", "__builtin__") and attribute in REFUSED_BUILTINS
            ):
                raise BadFile(
                    f"got a pickle that calls {name[:80]}, expected weights; nothing was run: "
                    "delete the file and download it from its publisher"
                )
        self.names |= machine.names
        for reference in machine.references:
            stored = _storage_key(reference)
            if stored is not None:
                self.widths[stored[0]] = stored[1].itemsize
        return value

    # Contents

    def found(self, value: object) -> Checkpoint:
        """What the unpickled value is."""
        if isinstance(value, Made) and value.maker.startswith("__torch__."):
            entries: dict[str, Entry] = {}
            self._walk_script(value, "", entries, 0)
            return self.made("torchscript", entries, {})
        top = mapping(value)
        if top is None:
            raise BadFile(
                f"got {_shown(value)} in the file, expected a dictionary of tensors, or one with "
                "'ema' or 'state_dict'"
            )
        if isinstance(top.get("ema"), Made) and _persistent(top["ema"]) is not None:
            return self.edm(top["ema"])
        weights = mapping(top.get("state_dict"))
        if weights is None:
            return self.made("state-dict", self.entries(top), {})
        args = top.get("args")
        if isinstance(args, Made) and isinstance(args.state, dict):
            config = plain(args.state, self.file)
            return self.made("point-cloud", self.entries(weights), config)
        others = {
            key: item
            for key, item in top.items()
            if key in ("epoch", "global_step", "hyper_parameters", "pytorch-lightning_version")
        }
        return self.made("lightning", self.entries(weights), plain(others, self.file))

    def made(self, kind: Kind, entries: dict[str, Entry], config: object) -> Checkpoint:
        total = sum(entry.numel * entry.dtype.itemsize for entry in entries.values())
        if not entries:
            raise BadFile("got no tensors in the file, expected weights")
        if total > 2 * self.size:
            raise BadFile(
                f"got tensors of {total} bytes in a file of {self.size}, expected no more than the "
                "file has"
            )
        known = {f"torch.{name}" for name in DTYPES} | KNOWN
        return Checkpoint(
            self.path,
            kind,
            Tensors(self.path, entries),
            config if isinstance(config, dict) else {},
            tuple(sorted(printable(name) for name in self.names - known)),
            self.size,
        )

    def entries(self, weights: Mapping[object, object]) -> dict[str, Entry]:
        """Of a state dict. Whatever is no tensor is refused by name."""
        if len(weights) > MAX_TENSORS:
            raise BadFile(f"got {len(weights)} tensors, expected at most {MAX_TENSORS}")
        found: dict[str, Entry] = {}
        for name, value in weights.items():
            if not isinstance(name, str) or not name.isprintable():
                raise BadFile(f"got {_shown(name)} as a name of a tensor, expected a plain text")
            found[name] = self.entry(name, value)
        return found

    def edm(self, network: object) -> Checkpoint:
        """A module that EDM's training code wrote with its source text, which stays text."""
        entries: dict[str, Entry] = {}
        self._walk(network, "", entries, 0)
        name, state = _persistent(network) or ("", {})
        inner = _persistent((mapping(state.get("_modules")) or {}).get("model"))
        words = plain(
            {
                key: item
                for key, item in state.items()
                if isinstance(key, str) and not key.startswith("_") and key != "training"
            },
            self.file,
        )
        given = plain(state.get("_init_kwargs"), self.file)
        config: dict[str, Any] = {
            **(words if isinstance(words, dict) else {}),
            **(given if isinstance(given, dict) else {}),
            "precond": name,
        }
        if inner is not None:
            config.setdefault("model_type", inner[0])
            config["model"] = plain(inner[1].get("_init_kwargs"), self.file)
        return self.made("edm", entries, config)

    def _walk(self, module: object, prefix: str, entries: dict[str, Entry], depth: int) -> None:
        """Parameters and buffers of a module and of those inside it, names joined by dots."""
        self.modules += 1
        if depth > MAX_DEPTH or self.modules > MAX_MODULES:
            raise BadFile(
                f"got over {MAX_MODULES} modules, or some nested more than {MAX_DEPTH} deep, "
                "expected fewer"
            )
        found = _persistent(module)
        if found is not None:
            state = found[1]
        elif isinstance(module, Made) and isinstance(module.state, dict):
            state = module.state
        else:
            raise BadFile(
                f"got {_shown(module)} as module {prefix[:80] or 'ema'!r}, expected a network"
            )
        hidden = state.get("_non_persistent_buffers_set")
        for group in ("_parameters", "_buffers"):
            for name, value in (mapping(state.get(group)) or {}).items():
                skipped = group == "_buffers" and isinstance(hidden, list) and name in hidden
                if value is not None and not skipped:
                    full = f"{prefix}{name}" if isinstance(name, str) else ""
                    if not full.isprintable() or not full or full in entries:
                        raise BadFile(f"got the name {full[:80]!r}, expected each name once")
                    entries[full] = self.entry(full, value)
        for name, inner in (mapping(state.get("_modules")) or {}).items():
            if inner is not None:
                if not isinstance(name, str):
                    raise BadFile(f"got {_shown(name)} as a name of a module, expected a text")
                self._walk(inner, f"{prefix}{name}.", entries, depth + 1)

    def _walk_script(
        self, module: Made, prefix: str, entries: dict[str, Entry], depth: int
    ) -> None:
        """Tensors of a TorchScript module and of those inside it; its code is left alone."""
        self.modules += 1
        if depth > MAX_DEPTH or self.modules > MAX_MODULES:
            raise BadFile(
                f"got over {MAX_MODULES} modules, or some nested more than {MAX_DEPTH} deep, "
                "expected fewer"
            )
        for name, value in (module.state if isinstance(module.state, dict) else {}).items():
            full = f"{prefix}{name}"
            if not isinstance(value, Made) or not full.isprintable():
                continue
            if value.maker.startswith("__torch__."):
                self._walk_script(value, f"{full}.", entries, depth + 1)
            elif value.maker in TENSORS:
                entries[full] = self.entry(full, value)

    # Tensors

    def entry(self, name: str, value: object) -> Entry:
        for _ in range(3):  # a parameter around a tensor
            if isinstance(value, Made) and value.maker in PARAMETERS and value.args:
                value = value.args[0]
        if not isinstance(value, Made) or value.maker not in TENSORS or len(value.args) < 4:
            raise BadFile(f"got {_shown(value)} as {name[:80]!r}, expected a tensor")
        storage = self.storage(name, value.args[0])
        offset, shape, stride = value.args[1], _sizes(value.args[2]), _sizes(value.args[3])
        if not _is_count(offset) or shape is None or stride is None or len(shape) != len(stride):
            raise BadFile(f"got a damaged shape of {name[:80]!r}, expected whole numbers")
        assert isinstance(offset, int)
        width = storage.dtype.itemsize
        entry = Entry(storage.span.start + offset * width, storage.dtype, shape, stride)
        if entry.numel > entry.extent or offset + entry.extent > storage.numel:
            raise BadFile(
                f"got {name[:80]!r} of shape {list(shape)}, which needs "
                f"{offset + max(entry.numel, entry.extent)} numbers, but {storage.numel} are "
                "stored; the file is damaged"
            )
        return entry

    def storage(self, name: str, value: object) -> Storage:
        """Of a tensor: by key in the container, or inside of the pickle."""
        if isinstance(value, Made) and value.maker == "torch.storage._load_from_bytes":
            span = value.args[0] if value.args else None
            if not isinstance(span, Span):
                raise BadFile(f"got no bytes for {name[:80]!r}, expected a storage")
            if span.start not in self.nested:
                self.nested[span.start] = self._nested(name, span)
            return self.nested[span.start]
        if isinstance(value, Reference):
            found = _storage_key(value)
            key = value.key
            if found is not None and isinstance(key, tuple):
                return self._stored(name, found[0], found[1], key)
        raise BadFile(f"got {_shown(value)} as the storage of {name[:80]!r}, expected numbers")

    def _stored(
        self, name: str, key: str, dtype: torch.dtype, words: tuple[object, ...]
    ) -> Storage:
        span, numel = self.storages.get(key), words[4]
        if span is None:
            raise BadFile(f"got no storage {key[:40]!r} for {name[:80]!r}; the file is truncated")
        if not isinstance(numel, int) or span.size != numel * dtype.itemsize:
            raise BadFile(
                f"got a storage of {span.size} bytes for {name[:80]!r}, expected "
                f"{_shown(numel)} numbers of {dtype}; the file is damaged"
            )
        view = words[5] if len(words) > 5 else None
        if view is None:
            return Storage(span, dtype, numel)
        parts = view if isinstance(view, tuple) else ()
        if len(parts) != 3 or not _is_count(parts[1]) or not _is_count(parts[2]):
            raise BadFile(f"got a damaged view for {name[:80]!r}, expected whole numbers")
        offset, length = parts[1], parts[2]
        assert isinstance(offset, int) and isinstance(length, int)
        if offset + length > numel:
            raise BadFile(f"got a view outside of its storage for {name[:80]!r}")
        width = dtype.itemsize
        return Storage(Span(span.start + offset * width, length * width), dtype, length)

    def _nested(self, name: str, span: Span) -> Storage:
        """torch.save of one storage, in the form of before 1.6, as bytes inside of a pickle."""
        inner = _Reading(self.path, self.file, self.size)
        region = Region(self.file, span)
        if inner.unpickle(region) != MAGIC:
            raise BadFile(f"got other bytes than torch.save writes for {name[:80]!r}")
        value = inner._legacy(region)
        self.names |= inner.names
        if region.position != region.end:
            raise BadFile(f"got bytes after the storage of {name[:80]!r}, expected none")
        return inner.storage(name, value)


TENSORS = frozenset({"torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"})
PARAMETERS = frozenset(
    {"torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"}
)
KNOWN = (
    TENSORS
    | PARAMETERS
    | {
        "collections.OrderedDict",
        "torch.storage._load_from_bytes",
        "torch_utils.persistence._reconstruct_persistent_obj",
        "argparse.Namespace",
        "torch.Size",
    }
)


def _persistent(value: object) -> tuple[str, dict[object, object]] | None:
    """Class and state of an object that EDM's code wrote with its source; the source is dropped."""
    if not isinstance(value, Made) or not value.maker.endswith("._reconstruct_persistent_obj"):
        return None
    meta = mapping(value.args[0]) if value.args else None
    if meta is None:
        return None
    name, state = meta.get("class_name"), mapping(meta.get("state"))
    return (name, state) if isinstance(name, str) and state is not None else None


def _storage_key(reference: Reference) -> tuple[str, torch.dtype] | None:
    """('storage', type, key, place, numel, ...) -> key and dtype."""
    words = reference.key
    if not isinstance(words, tuple) or len(words) < 5 or words[0] != "storage":
        return None
    kind, key = words[1], words[2]
    if not isinstance(kind, Name) or not isinstance(key, str) or kind.name not in DTYPES:
        return None
    return key, DTYPES[kind.name]


def _sizes(value: object) -> tuple[int, ...] | None:
    if isinstance(value, Made) and value.maker == "torch.Size" and value.args:
        value = value.args[0]
    if not isinstance(value, tuple | list) or len(value) > 16 or not all(map(_is_count, value)):
        return None
    return tuple(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**48


def printable(text: str) -> str:
    """A text of the file for a terminal: on one line, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _shown(value: object) -> str:
    """A value of the file in a message."""
    if isinstance(value, Made):
        return f"a {value.maker[:80] or 'nameless'} object"
    if isinstance(value, Name):
        return f"the name {str(value)[:80]}"
    if isinstance(value, int | float | str):
        return repr(value)[:40]
    return f"a {type(value).__name__}"


def _read_into(file: Any, target: memoryview) -> None:
    while len(target):
        count = file.readinto(target)
        if not count:
            raise BadFile("got the end of the file")
        target = target[count:]


# Safetensors


def _safetensors(path: Path, file: BinaryIO, size: int) -> Checkpoint:
    region = Region(file)
    length = region.integer(8)
    if length > min(size - 8, MAX_HEADER):
        raise BadFile(f"got a header of {length} bytes, expected at most {min(size, MAX_HEADER)}")
    header = json.loads(region.read(length))
    if not isinstance(header, dict):
        raise BadFile("got a header that is no dictionary, expected safetensors")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or len(header) > MAX_TENSORS:
        raise BadFile("got a damaged header, expected safetensors")
    entries: dict[str, Entry] = {}
    for name, words in header.items():
        if not name.isprintable():
            raise BadFile(f"got {name[:80]!r} as a name of a tensor, expected a plain text")
        dtype, shape = SAFE_DTYPES.get(words["dtype"]), _sizes(words["shape"])
        first, last = words["data_offsets"]
        if dtype is None or shape is None or not _is_count(first) or not _is_count(last):
            raise BadFile(f"got {name[:80]!r} as {str(words)[:80]}, expected a plain tensor")
        stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        entry = Entry(8 + length + first, dtype, shape, stride)
        if last - first != entry.numel * dtype.itemsize or 8 + length + last > size:
            raise BadFile(
                f"got {last - first} bytes for {name[:80]!r} of shape {list(shape)} that end at "
                f"{8 + length + last} of {size}, expected a whole tensor; the file is truncated or "
                "damaged: download it again"
            )
        entries[name] = entry
    if not entries or sum(e.numel * e.dtype.itemsize for e in entries.values()) > 2 * size:
        raise BadFile("got no tensors, or more than the file has, expected weights")
    texts = {str(key): item for key, item in metadata.items() if isinstance(item, str)}
    return Checkpoint(
        path, "safetensors", Tensors(path, entries), _json_config(texts), (), size, texts
    )


CONFIG = "ld3"  # the entry of metadata that holds the configuration of a converted file


def _json_config(metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        config = json.loads(metadata.get(CONFIG, "{}"))
    except ValueError:
        raise BadFile(
            "got a configuration that is not JSON, expected what ld3 convert writes"
        ) from None
    return config if isinstance(config, dict) else {}
