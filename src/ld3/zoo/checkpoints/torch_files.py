"""Files that torch wrote: a zip, or one stream of pickles and numbers, and EDM's bare pickles.

What the pickle would make is looked through for the few names that mean tensors; see
:mod:`ld3.zoo.checkpoints.pickles`.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from ld3.errors import one_line
from ld3.zoo.checkpoints.module_trees import (
    SCRIPT,
    edm_config,
    persistent,
    walk_modules,
    walk_script,
)
from ld3.zoo.checkpoints.pickled_values import mapping, plain, shown
from ld3.zoo.checkpoints.pickles import Machine, Made, Name, Reference
from ld3.zoo.checkpoints.regions import BadFile, Region, Span
from ld3.zoo.checkpoints.tensors import (
    MAX_TENSORS,
    Checkpoint,
    Entry,
    Kind,
    Tensors,
    is_count,
    sizes_of,
)

MAX_MEMBERS = 1_000_000  # of a zip
MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of torch.save before 1.6
LEGACY = 1001  # the second

DTYPES = {
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
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


class Reading:
    """One file while it is read: its storages, and the names it mentions."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self.file = file
        self.size = size
        self.storages: dict[str, Span] = {}  # by key: of the zip, or of the stream
        self.nested: dict[int, Storage] = {}  # by place: storages inside of the pickle
        self.names: set[str] = set()
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
                f"got version {shown(version)} of torch.save, expected {LEGACY} and little-endian "
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
        if isinstance(value, Made) and value.maker.startswith(SCRIPT):
            found = {name: self.entry(name, tensor) for name, tensor in walk_script(value, TENSORS)}
            return self.made("torchscript", found, {})
        top = mapping(value)
        if top is None:
            raise BadFile(
                f"got {shown(value)} in the file, expected a dictionary of tensors, or one with "
                "'ema' or 'state_dict'"
            )
        if isinstance(top.get("ema"), Made) and persistent(top["ema"]) is not None:
            entries = {name: self.entry(name, value) for name, value in walk_modules(top["ema"])}
            return self.made("edm", entries, edm_config(top["ema"], self.file))
        weights = mapping(top.get("state_dict"))
        if weights is None:
            return self.made("state-dict", self.entries(top), {})
        args = top.get("args")
        if isinstance(args, Made) and isinstance(args.state, dict):
            config = plain(args.state, self.file)
            return self.made("point-cloud", self.entries(weights), config)
        names = ("epoch", "global_step", "hyper_parameters", "pytorch-lightning_version")
        others = {key: item for key, item in top.items() if key in names}
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
        return Checkpoint(
            self.path,
            kind,
            Tensors(self.path, entries),
            config if isinstance(config, dict) else {},
            tuple(sorted(one_line(name) for name in self.names - KNOWN)),
            self.size,
        )

    def entries(self, weights: Mapping[object, object]) -> dict[str, Entry]:
        """Of a state dict. Whatever is no tensor is refused by name."""
        if len(weights) > MAX_TENSORS:
            raise BadFile(f"got {len(weights)} tensors, expected at most {MAX_TENSORS}")
        found: dict[str, Entry] = {}
        for name, value in weights.items():
            if not isinstance(name, str) or not name.isprintable():
                raise BadFile(f"got {shown(name)} as a name of a tensor, expected a plain text")
            found[name] = self.entry(name, value)
        return found

    # Tensors

    def entry(self, name: str, value: object) -> Entry:
        for _ in range(3):  # a parameter around a tensor
            if isinstance(value, Made) and value.maker in PARAMETERS and value.args:
                value = value.args[0]
        if not isinstance(value, Made) or value.maker not in TENSORS or len(value.args) < 4:
            raise BadFile(f"got {shown(value)} as {name[:80]!r}, expected a tensor")
        storage = self.storage(name, value.args[0])
        offset = value.args[1]
        shape, stride = (_tensor_sizes(sizes) for sizes in value.args[2:4])
        if not is_count(offset) or shape is None or stride is None or len(shape) != len(stride):
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
        found = _storage_key(value)
        if found is not None:
            return self._stored(name, *found)
        raise BadFile(f"got {shown(value)} as the storage of {name[:80]!r}, expected numbers")

    def _stored(
        self, name: str, key: str, dtype: torch.dtype, numel: object, view: object
    ) -> Storage:
        span = self.storages.get(key)
        if span is None:
            raise BadFile(f"got no storage {key[:40]!r} for {name[:80]!r}; the file is truncated")
        if not isinstance(numel, int) or span.size != numel * dtype.itemsize:
            raise BadFile(
                f"got a storage of {span.size} bytes for {name[:80]!r}, expected "
                f"{shown(numel)} numbers of {dtype}; the file is damaged"
            )
        if view is None:
            return Storage(span, dtype, numel)
        parts = view if isinstance(view, tuple) else ()
        if len(parts) != 3 or not is_count(parts[1]) or not is_count(parts[2]):
            raise BadFile(f"got a damaged view for {name[:80]!r}, expected whole numbers")
        offset, length = parts[1], parts[2]
        assert isinstance(offset, int) and isinstance(length, int)
        if offset + length > numel:
            raise BadFile(f"got a view outside of its storage for {name[:80]!r}")
        width = dtype.itemsize
        return Storage(Span(span.start + offset * width, length * width), dtype, length)

    def _nested(self, name: str, span: Span) -> Storage:
        """torch.save of one storage, in the form of before 1.6, as bytes inside of a pickle."""
        inner = Reading(self.path, self.file, self.size)
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
KNOWN = {
    *TENSORS, *PARAMETERS, *(f"torch.{name}" for name in DTYPES), "collections.OrderedDict",
    "torch.storage._load_from_bytes", "torch_utils.persistence._reconstruct_persistent_obj",
    "argparse.Namespace", "torch.Size",
}  # fmt: skip


def _storage_key(value: object) -> tuple[str, torch.dtype, object, object] | None:
    """A reference ('storage', type, key, place, numel, view) -> key, dtype, numel and view."""
    words = value.key if isinstance(value, Reference) else None
    if not isinstance(words, tuple) or len(words) < 5 or words[0] != "storage":
        return None
    _, kind, key, _, numel, view, *_ = (*words, None)
    if not isinstance(kind, Name) or not isinstance(key, str) or kind.name not in DTYPES:
        return None
    return key, DTYPES[kind.name], numel, view


def _tensor_sizes(value: object) -> tuple[int, ...] | None:
    if isinstance(value, Made) and value.maker == "torch.Size" and value.args:
        value = value.args[0]
    return sizes_of(value)
