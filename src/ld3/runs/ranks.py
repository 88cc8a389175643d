"""Ranks: the processes that `torchrun` or `srun` starts for one command.

Every rank runs the same program. Three things differ:

- Pieces of work are shared: piece i is made by rank i mod world, and every rank gets all of them in
  order. A piece is a fixed chunk of seeds, a part of a batch or a table, whatever the world size.
- Only rank 0 reads and writes files and shows progress. What it reads, it sends to the others, so
  that all take the same decisions.
- An error ends all ranks. One that a piece raises is raised on every rank; any other is announced
  in the store of the process group, which each rank watches.

Rank and world size come from the environment: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT, as torchrun sets them. With one rank nothing is started and nothing is sent. Messages
are JSON and safetensors; nothing is unpickled.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import load as decode_tensors
from safetensors.torch import save as encode_tensors
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from ld3 import errors
from ld3.errors import EndedElsewhere, Ld3Error, SpecError, first_line, one_line
from ld3.share import Tensors

Item = TypeVar("Item")
MINUTES = 60.0  # that ranks wait for each other
POLL = 0.25  # seconds between two looks for an error of another rank
FAILED = "ld3-failed"  # counts the ranks that failed, in the store
ERROR = "error"  # the name of an error among the tensors of a message
EXPECTED = (Ld3Error, KeyboardInterrupt)  # ends with one line, not with a traceback
NOTHING = b"-"  # the message for None


@dataclass(frozen=True)
class Ranks:
    """This process among all of them; by default it is the only one."""

    rank: int = 0
    world: int = 1
    wire: str = "cpu"  # the device that messages are sent from

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, make: Callable[[Item], Tensors], items: Sequence[Item], /) -> Iterator[Tensors]:
        """make(item) for each item, in order, on every rank; an :class:`Ld3Error` too."""
        if self.world == 1:
            yield from map(make, items)
            return
        for first in range(0, len(items), self.world):
            mine = first + self.rank
            sent = _packed(_tried(make, items[mine])) if mine < len(items) else b""
            for made in self._gathered(sent)[: len(items) - first]:
                yield self._unpacked(made) or {}

    def first(self, make: Callable[[], Any]) -> Any:
        """What `make` gives on rank 0, on every rank: anything that JSON can hold."""
        if self.world == 1:
            return make()

        def encoded() -> Tensors:
            return {"json": _bytes(json.dumps(make()).encode())}

        return json.loads(_text(self.first_tensors(encoded)["json"]))

    def first_tensors(self, make: Callable[[], Tensors | None]) -> Any:
        """The same for tensors, or None."""
        if self.world == 1:
            return make()
        sent = _packed(_tried(lambda _: make(), None)) if self.is_first else b""
        return self._unpacked(self._broadcast(sent))

    def _unpacked(self, message: bytes) -> Tensors | None:
        """The tensors of a message, each on the device it was on; an error is raised."""
        if message == NOTHING:
            return None
        tensors = decode_tensors(message)
        if ERROR in tensors:
            kind, said = json.loads(_text(tensors[ERROR]))
            raise getattr(errors, kind, Ld3Error)(said)
        places = {"cpu": "cpu", "gpu": self.wire}
        return {name[4:]: tensor.to(places[name[:3]]) for name, tensor in tensors.items()}

    def _gathered(self, message: bytes) -> list[bytes]:
        """The messages of all ranks."""
        with _reached():
            sizes = [torch.zeros(1, dtype=torch.int64, device=self.wire) for _ in range(self.world)]
            dist.all_gather(sizes, torch.tensor([len(message)], device=self.wire))
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8, device="cpu")
            padded[: len(message)] = _bytes(message)
            parts = [
                torch.empty(longest, dtype=torch.uint8, device=self.wire) for _ in range(self.world)
            ]
            dist.all_gather(parts, padded.to(self.wire))
        return [_text(part[: int(size)]) for part, size in zip(parts, sizes, strict=True)]

    def _broadcast(self, message: bytes) -> bytes:
        """The message of rank 0."""
        with _reached():
            size = torch.tensor([len(message)], device=self.wire)
            dist.broadcast(size, 0)
            content = torch.empty(int(size), dtype=torch.uint8, device=self.wire)
            if self.is_first:
                content = _bytes(message).to(self.wire)
            dist.broadcast(content, 0)
        return _text(content)


ALONE = Ranks()


def rank_of_environment(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int]:
    """Rank, world size and rank on this machine; 0, 1, 0 without a launcher."""
    if "WORLD_SIZE" not in environment:
        return 0, 1, 0
    try:
        rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local = int(environment.get("LOCAL_RANK", rank))
    except (KeyError, ValueError) as error:
        raise SpecError(
            f"ranks: got WORLD_SIZE with RANK or LOCAL_RANK missing or no number ({error}); start "
            "with torchrun, or export RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT"
        ) from None
    if not 0 <= rank < world:
        raise SpecError(f"ranks: got RANK {rank} of WORLD_SIZE {world}, expected 0 to {world - 1}")
    return rank, world, local


@contextmanager
def joined(device: str = "cpu", minutes: float = MINUTES) -> Iterator[Ranks]:
    """The ranks of this command, until it ends: gloo on CPUs, nccl on CUDA.

    `minutes` is how long a rank waits for the others before it gives up.
    """
    rank, world, local = rank_of_environment()
    if world == 1:
        yield ALONE
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise SpecError(
            f"ranks: got no {' and no '.join(missing)}; start with torchrun, or export it"
        )
    cuda = device_of(device).startswith("cuda")
    wire, limit = own_gpu(local) if cuda else "cpu", timedelta(minutes=minutes)
    with _reached():
        store, _, _ = next(rendezvous("env://", timeout=limit))
        dist.init_process_group(
            "nccl" if cuda else "gloo", store=store, rank=rank, world_size=world, timeout=limit
        )
    ended = threading.Event()
    threading.Thread(target=_watch, args=(store, rank, ended), daemon=True).start()
    try:
        yield Ranks(rank, world, wire)
        with _reached():
            dist.barrier()
        ended.set()
    except BaseException as error:
        ended.set()
        if not rank:
            _outlive_the_others()
        first, expected = _is_first_to_fail(store, rank), isinstance(error, EXPECTED)
        if first and rank and expected:
            _say(rank, str(error))
        if first:
            time.sleep(4 * POLL)  # so that the others see it while the store is there
        if expected and (rank or not first):
            raise EndedElsewhere(str(error)) from None
        raise
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def device_of(name: str) -> str:
    """A device by name; `auto` is the GPU of this rank, or the CPU where there is none."""
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return own_gpu(rank_of_environment()[2])
    return "mps" if torch.backends.mps.is_available() else "cpu"


def own_gpu(local: int) -> str:
    """The GPU of a rank, which becomes torch's current one."""
    count, ranks = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))
    if ranks > count:
        raise SpecError(
            f"device: got {ranks} ranks on a machine with {count} GPUs, expected one GPU per rank; "
            f"start {count} ranks per machine, or give --device cpu"
        )
    torch.cuda.set_device(local)
    return f"cuda:{local}"


def _outlive_the_others() -> None:
    """Rank 0 says what was wrong at its end. torchrun sends it SIGTERM as soon as another rank has
    ended, which would be before that."""
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _is_first_to_fail(store: Any, rank: int) -> bool:
    """Whether no rank failed before; an error on all ranks is left to rank 0."""
    time.sleep(POLL if rank else 0.0)
    try:
        return bool(store.add(FAILED, 1) == 1)
    except RuntimeError:
        return True  # the rank that holds the store is gone


def _watch(store: Any, rank: int, ended: threading.Event) -> None:
    """Ends this process when another rank failed."""
    while not ended.wait(POLL):
        try:
            failed = store.check([FAILED])
        except RuntimeError:
            if ended.wait(4 * POLL):
                return
            _say(rank, "ranks: lost the one that holds the store; the same command goes on")
            failed = True
        if failed:
            os._exit(2)


def _say(rank: int, message: str) -> None:
    sys.stderr.write(f"ld3: rank {rank}: {one_line(message)}\n")
    sys.stderr.flush()


@contextmanager
def _reached() -> Iterator[None]:
    """What torch says when a rank does not answer, in one line."""
    try:
        yield
    except RuntimeError as error:
        reason = first_line(error, 160)
        raise Ld3Error(
            f"ranks: got no answer from another rank ({reason}), expected all of them to run; the "
            "same command with any number of ranks goes on from what was finished"
        ) from None


def _tried(make: Callable[[Item], Tensors | None], item: Item) -> Tensors | None:
    """What is made, or the error that was raised instead."""
    try:
        return make(item)
    except Ld3Error as error:
        return {ERROR: _bytes(json.dumps([type(error).__name__, str(error)]).encode())}


def _packed(tensors: Tensors | None) -> bytes:
    """Tensors as safetensors, with `cpu` or `gpu` before their names."""
    if tensors is None or ERROR in tensors:
        return NOTHING if tensors is None else encode_tensors(tensors)
    return encode_tensors(
        {
            f"{'cpu' if tensor.device.type == 'cpu' else 'gpu'} {name}": (
                tensor.detach().cpu().contiguous().clone()
            )
            for name, tensor in tensors.items()
        }
    )


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content or b" "), dtype=torch.uint8)[: len(content)]


def _text(tensor: Tensor) -> bytes:
    return bytes(tensor.cpu().numpy())
