"""How samples become batches: by torch's DataLoader out of a data set, out of a stream, or by a user's function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.claims import ENDLESS
from ownpace.core.learning.orders import InOrder, Order, Shuffled, WithReplacement, share_of_stream, shares_of_data
from ownpace.core.learning.seeds import Purpose, seed_for
from ownpace.drop_in.data import Data, Kind, name_of
from ownpace.drop_in.digest import as_it_is
from ownpace.drop_in.random_states import seeded
from ownpace.drop_in.replayed import Replayed
from ownpace.drop_in.rows import rows_of
from ownpace.engines.process.node.batch_source import BatchSource

_OF_LOADER_ALONE = ("num_workers", "pin_memory", "generator")
"""What a DataLoader does for batches besides asking for them; from a generator of the script's it draws a seed."""


class Member(NamedTuple):
    """This worker's place in the fleet as it was started, and the fleet's seed: what a sample is does not depend on who
    is there now.
    """

    rank: int
    num_workers: int
    seed: int


class Feed(Protocol):
    """One kind of data."""

    def order(self, number: int) -> Order:
        """What is at which place, in the loop of that number."""

    def batches(self, source: BatchSource, number: int) -> Iterator[Any]:
        """A batch for each that the source draws, in the same order."""


def make_feed(data: Data, member: Member) -> Feed:
    """The feed for that kind of data."""
    feeds: dict[Kind, Callable[[Data, Member], Feed]] = {"map": MapFeed, "stream": StreamFeed, "function": FunctionFeed}
    return feeds[data.kind](data, member)


class _Relay:
    """The batch sampler of a DataLoader that outlives a loop, as its workers may: hands on what the loop's gives."""

    def __init__(self) -> None:
        self.source: BatchSource | None = None

    def __iter__(self) -> Iterator[list[object]]:
        assert self.source is not None
        return iter(self.source)


class MapFeed:
    """A data set whose samples have indices."""

    def __init__(self, data: Data, member: Member) -> None:
        self._data = data
        self._member = member
        self._relay = _Relay()
        # Not the global one: ranks are often seeded alike, and their workers would all augment alike.
        self._generator = torch.Generator()
        options = {"generator": self._generator, **data.loader}
        rows = rows_of(data)
        if rows is not None:
            options["collate_fn"] = as_it_is
        self._loader = make_loader(data.dataset if rows is None else rows, batch_sampler=self._relay, **options)
        # For rows, a DataLoader in between takes longer than they do, and does nothing else for them.
        self._rows = None if any(map(data.loader.get, _OF_LOADER_ALONE)) else rows

    def order(self, number: int) -> Order:
        data, (rank, num_workers, seed) = self._data, self._member
        if data.sampler is not None:
            own = getattr(data.sampler, "generator", None)
            seed_of = partial(seed_for, seed, Purpose.LOOP_SAMPLER, number)
            own = own if isinstance(own, torch.Generator) else None
            return Replayed(self._begin_sampler, data.epochs, seed_of, own)
        assert data.size is not None
        if data.sampling == "iid":
            return WithReplacement(data.size, seed, number)
        if data.sampling == "shards":
            return shares_of_data(data.size, data.epochs, (rank, num_workers), (seed, number), shuffle=data.shuffle)
        return Shuffled(data.size, seed, Purpose.LOOP_QUEUE, number) if data.shuffle else InOrder(data.size)

    def _begin_sampler(self, epoch: int) -> Iterator[object]:
        if hasattr(self._data.sampler, "set_epoch"):
            self._data.sampler.set_epoch(epoch)
        return iter(self._data.sampler)

    def batches(self, source: BatchSource, number: int) -> Iterator[Any]:
        if self._rows is not None:
            return map(self._rows.__getitems__, source)
        self._relay.source = source
        self._generator.manual_seed(seed_for(self._member.seed, Purpose.LOOP_WORKERS, number, self._member.rank))
        return iter(self._loader)


class _Items(IterableDataset[Any]):
    """Anything iterable, as torch wants it."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)


class StreamFeed:
    """Something that can only be read from its beginning. Every rank reads it all, and collates its own part."""

    def __init__(self, data: Data, member: Member) -> None:
        self._data = data
        self._member = member
        self._generator = torch.Generator()
        self._loader: DataLoader[Any] | None = None
        options = {"generator": self._generator, **data.loader}
        self._collate = options.pop("collate_fn", default_collate)
        self._pin_memory = options.pop("pin_memory", False)
        if options.get("num_workers"):
            items = data.dataset if isinstance(data.dataset, IterableDataset) else _Items(data.dataset)
            self._loader = make_loader(items, batch_size=None, collate_fn=as_it_is, **options)
        self._begun: int | None = None
        """The loop in which it was read, if it can be only once."""

    def order(self, number: int) -> Order:
        if isinstance(self._data.dataset, Iterator):
            if self._begun == number:
                raise InputError(
                    "a rank has gone or come, and what is left is to be read from the beginning, but fleet.batches was "
                    "given an iterator, which can be read once; give what it is made from, such as a list or an "
                    "IterableDataset, and the loop goes on when ranks die"
                )
            if self._begun is not None:
                raise InputError("fleet.batches was given an iterator, which is read by now; give what it is made from")
            self._begun = number
        # The same on all ranks, so that they read the same; each of a stream's parts has draws of its own.
        whose = (self._member.rank + 1,) if self._data.sharded else (0,)
        seed_of = partial(seed_for, self._member.seed, Purpose.LOOP_STREAM, number, *whose)

        def begin(epoch: int) -> Iterator[object]:
            if self._loader is None:
                return iter(self._data.dataset)
            self._generator.manual_seed(seed_of(epoch))
            return iter(self._loader)

        order = Replayed(begin, self._data.epochs, seed_of)
        return share_of_stream(order, *self._member[:2]) if self._data.sharded else order

    def batches(self, source: BatchSource, number: int) -> Iterator[Any]:
        # A DataLoader without workers, for what it does to whole batches.
        collated = make_loader(
            _Items(source),
            batch_size=None,
            collate_fn=self._collate,
            pin_memory=self._pin_memory,
            generator=torch.Generator(),
        )
        return iter(collated)


class FunctionFeed:
    """A function that makes a batch out of random numbers. It draws others for every batch, on whichever rank."""

    def __init__(self, data: Data, member: Member) -> None:
        self._data = data
        self._member = member

    def order(self, number: int) -> Order:
        return InOrder(ENDLESS)

    def batches(self, source: BatchSource, number: int) -> Iterator[Any]:
        function = self._data.dataset
        for places in source:
            first = places[0]
            assert isinstance(first, int)
            # From the place of its first sample: no two batches share it, and no state is left to be saved.
            with seeded(seed_for(self._member.seed, Purpose.LOOP_FUNCTION, number, first)):
                batch = function(len(places)) if self._data.takes_number else function()
            check_size(batch, len(places), name_of(function))
            yield batch


def make_loader(dataset: Any, **options: Any) -> DataLoader[Any]:
    """A DataLoader."""
    try:
        return DataLoader(dataset, **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"torch's DataLoader refuses what fleet.batches was given: {error}") from None


def check_size(batch: Any, samples: int, name: str) -> None:
    """Raise if no dimension of any tensor of a batch is its number of samples: the weight of its gradient is wrong."""
    shapes = [tuple(tensor.shape) for tensor in tensors_of(batch)]
    if shapes and not any(samples in shape for shape in shapes):
        raise InputError(
            f"{name} was to give {samples} samples, but gave tensors of shape {', '.join(map(str, shapes))}; "
            "let it make as many as batch_size says, or as its argument does"
        )


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """All tensors of a batch."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        yield from tensors_of(list(batch.values()))
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from tensors_of(part)
