"""Chunks of samples: the unit of work of everything that looks at whole sets.

Samples are numbered from 0. Number i has the noise of seed i in the range of its purpose
(:mod:`ld3.seeds`) and condition number i of the model, so that classes are equally frequent
and prompts come in their order. Numbers are cut into chunks of 250, always at the same places:

    chunk, view  ->  rows (n, D)                    a pure function with a key

A *view* is what is computed from images: features of a network, whether the class is that of the
condition, the pixels themselves. Rows are stored under a digest of all they depend on. So work can
be stopped, resumed and shared between processes, and nothing depends on who made which chunk.
Images are rounded to 8 bits first, as in the EDM protocol: x -> clip(127.5 x + 128), cut to whole
numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache as once
from functools import partial
from itertools import pairwise, takewhile
from typing import Any

import torch
from torch import Tensor

from ld3.errors import SpecError
from ld3.metrics.inception import to_uint8
from ld3.metrics.kernel import Block, FeatureSet
from ld3.runs.session import Session, batches, slices, table_key
from ld3.seeds import Purpose, seeds_for
from ld3.share import Tensors
from ld3.table import Table
from ld3.teacher import sample_table

CHUNK = 250
GROUPS = 10  # tenths of the samples, for intervals


class NotFinite(Exception):
    """A sample has values that are not finite; nothing of its chunk was stored."""


@dataclass(frozen=True)
class View:
    """`of(images, numbers)`: images (B, C, H, W) in [-1, 1] -> rows (B, D)."""

    digest: str
    of: Callable[[Tensor, Sequence[int]], Tensor]


PIXELS = View("pixels", lambda images, numbers: to_uint8(images))


@dataclass(frozen=True)
class Samples:
    """The first `count` samples of a table, from the seeds of a purpose."""

    table: Table
    count: int
    purpose: Purpose = "evaluation"
    name: str = ""  # in reports of progress

    @property
    def chunks(self) -> list[range]:
        """Numbers of samples; the last chunk may be shorter."""
        return batches(range(self.count), CHUNK)

    def group(self, number: int) -> int:
        """Which tenth a sample belongs to. A tenth is a run of numbers, in which each class has its
        share."""
        return number * GROUPS // self.count

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each tenth."""
        ends = [-(-g * self.count // GROUPS) for g in range(GROUPS + 1)]
        return tuple(b - a for a, b in pairwise(ends))


def chunk_key(session: Session, samples: Samples, numbers: range, view: View) -> dict[str, Any]:
    """All that the rows of a chunk depend on."""
    seeds = [samples.purpose, numbers[0], numbers[-1]]
    table = table_key(samples.table)
    return {**session.source, "table": table, "seeds": seeds, "view": view.digest}


def read_chunk(
    session: Session, samples: Samples, numbers: range, views: Sequence[View]
) -> list[Tensor]:
    """Rows of each view: from the cache, or from one run of the sampler for all that are missing.

    Rows depend on nothing but :func:`chunk_key`; making them twice gives the same.
    """
    pixels = once(lambda: _pixels(session, samples, numbers))

    def rows(view: View) -> Tensor:
        def make() -> dict[str, Tensor]:
            found = [
                view.of(pixels()[part].float() / 127.5 - 1, numbers[part])
                for part in slices(len(numbers), session.batch)
            ]
            joined = torch.cat([each.cpu() for each in found])
            return {"rows": joined.float() if joined.is_floating_point() else joined}

        return session.stored("features", chunk_key(session, samples, numbers, view), make)["rows"]

    return [rows(view) for view in views]


def read_all(
    session: Session, samples: Samples, views: Sequence[View]
) -> Iterator[tuple[range, list[Tensor]]]:
    """Chunk after chunk, in the order of numbers; one of them in memory at a time."""
    before = 0  # samples of an earlier run, which are no part of this one's speed
    if samples.name:
        made = takewhile(lambda n: _is_stored(session, samples, n, views), samples.chunks)
        before = sum(map(len, made))
        session.report(samples.name, before, samples.count)
    for numbers in samples.chunks:
        yield numbers, read_chunk(session, samples, numbers, views)
        if samples.name and numbers[-1] >= before:
            session.report(samples.name, numbers[-1] + 1, samples.count)


def make_all(session: Session, samples: Samples, views: Sequence[View]) -> None:
    """Make what is missing, by all ranks if there are several."""
    if session.ranks.world > 1:
        fill(session, samples, views)
        return
    for _ in read_all(session, samples, views):
        pass


def fill(session: Session, samples: Samples, views: Sequence[View]) -> None:
    """Make all chunks that are missing; ranks share them, and rank 0 stores them.

    It ends early where a sample is not finite; reading that chunk raises :class:`NotFinite`.
    """
    chunks = samples.chunks

    def missing() -> list[int]:
        stored = [_is_stored(session, samples, numbers, views) for numbers in chunks]
        return [n for n, found in enumerate(stored) if not found]

    def make(n: int) -> Tensors:
        try:
            rows = read_chunk(session.without_folder(), samples, chunks[n], views)
        except NotFinite:
            return {}
        return {view.digest: found for view, found in zip(views, rows, strict=True)}

    todo = session.ranks.first(missing)
    own, done = session.alone(), samples.count - sum(len(chunks[n]) for n in todo)
    for n, found in zip(todo, session.ranks.share(make, todo), strict=True):
        if not found:
            return
        for view in views if session.ranks.is_first else ():
            key, rows = chunk_key(session, samples, chunks[n], view), {"rows": found[view.digest]}
            own.stored("features", key, partial(dict, rows))
        done += len(chunks[n])
        if samples.name:
            session.report(samples.name, done, samples.count)


def _is_stored(session: Session, samples: Samples, numbers: range, views: Sequence[View]) -> bool:
    keys = [chunk_key(session, samples, numbers, view) for view in views]
    return all(session.cache.has("features", key) for key in keys)


def feature_set(session: Session, samples: Samples, view: View) -> FeatureSet:
    """The rows of a view in tenths, read from the cache each time."""

    def blocks() -> Iterator[Block]:
        for numbers, (rows,) in read_all(session, samples, [view]):
            groups = [samples.group(number) for number in numbers]
            for g in sorted(set(groups)):
                first = groups.index(g)
                yield g, rows[first : first + groups.count(g)]

    return FeatureSet(samples.sizes, blocks)


@torch.no_grad()
def _pixels(session: Session, samples: Samples, numbers: range) -> Tensor:
    """uint8 (n, C, H, W); a batch at a time."""
    seeds = seeds_for(samples.purpose, samples.count)
    parts = []
    for part in slices(len(numbers), session.batch):
        some = numbers[part]
        found = sample_table(
            session.model, samples.table, seeds[some[0] : some[-1] + 1],
            guidance=session.guidance, device=session.device,
            cond=session.model.conditions(some),
        )  # fmt: skip
        if not bool(torch.isfinite(found).all()):
            raise NotFinite
        if found.ndim != 4 or found.shape[1] not in (1, 3):
            raise SpecError(
                f"samples: got shape {tuple(found.shape[1:])}, expected images (1 or 3, H, W)"
            )
        parts.append(to_uint8(found).cpu())
    return torch.cat(parts)
