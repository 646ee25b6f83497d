"""What a user gave to `fleet.batches`, read and checked."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data.distributed import DistributedSampler

from ownpace.core.choices import Sampling
from ownpace.core.contract.errors import InputError, unknown
from ownpace.core.settings import positive

Kind = Literal["map", "stream", "function"]
KINDS: Mapping[Kind, str] = {"map": "a data set", "stream": "a stream", "function": "a function"}
OF_A_LOADER = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)
"""What goes to torch's DataLoader as it is."""
_ONLY_WITH_WORKERS = ("timeout", "prefetch_factor", "persistent_workers", "multiprocessing_context")
_NUMBERS = ("n", "k", "b", "bs", "num", "size", "count", "samples", "batch_size", "num_samples", "n_samples", "batch")
"""What a function may call the number of samples that are wanted of it. `split`, say, is something else."""


@dataclass(frozen=True)
class Asked:
    """The arguments of `fleet.batches`, but for the data, in their order."""

    batch_size: int | None = None
    micro_batch: int | None = None
    epochs: int | None = None
    updates: int | None = None
    samples: int | None = None
    sampling: Sampling = "queue"
    shuffle: bool | None = None
    sampler: Any = None
    drop_last: bool | None = None
    sharded: bool = False
    loader: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise for what can never be right."""
        if self.sampling not in get_args(Sampling):
            raise unknown("sampling", self.sampling, get_args(Sampling))
        positive(batch_size=self.batch_size, micro_batch=self.micro_batch)
        positive(epochs=self.epochs, updates=self.updates, samples=self.samples)
        for name in self.loader:
            if name == "batch_sampler":
                raise InputError(
                    "fleet.batches was given a batch_sampler, but the algorithm decides how many samples a batch has; "
                    "give the order of the samples as sampler=…"
                )
            if name not in OF_A_LOADER:
                raise unknown("argument of fleet.batches", name, [*_arguments(), *OF_A_LOADER])
        if isinstance(self.sampler, BatchSampler):
            raise InputError("sampler is a BatchSampler, but it has to give one index at a time; give its sampler")
        if self.sampler is not None and self.shuffle is not None:
            raise InputError("fleet.batches was given both sampler and shuffle; a sampler decides the order: drop one")
        if self.sampling != "queue" and (self.sampler is not None or self.sharded):
            what = "sharded=True" if self.sharded else "a sampler"
            raise InputError(f"sampling is {self.sampling!r}, but {what} decides who gets which sample; drop one")
        if self.sampling == "iid" and self.shuffle is False:
            raise InputError("shuffle is False, but sampling='iid' draws at random; drop one of them")


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where batches come from, and how."""

    kind: Kind
    dataset: Any
    batch_size: int
    micro_batch: int | None
    """Samples of one batch at most, where several make up `batch_size`."""
    epochs: int | None
    """None: without end, until something else ends the loop."""
    updates: int | None
    samples: int | None
    sampling: Sampling
    shuffle: bool
    sampler: Any
    drop_last: bool
    sharded: bool
    loader: Mapping[str, Any]
    takes_number: bool = False
    """Whether a function is told how many samples are wanted."""

    @property
    def size(self) -> int | None:
        """Samples of an epoch, where that is known."""
        if self.kind == "function":
            return None
        return length(self.dataset if self.sampler is None else self.sampler)


def read_data(data: Any, asked: Asked) -> Data:
    """Make sense of what was given.

    Raises:
        InputError: It cannot be used; the message says what to give instead.
    """
    asked.check()
    if isinstance(asked.sampler, DistributedSampler):
        asked = replace(asked, sampler=None, **order_of(asked.sampler, data))
    if isinstance(data, DataLoader):
        data, asked = from_loader(data, asked)
    kind = kind_of(data, asked)
    if asked.batch_size is None:
        raise InputError(f"fleet.batches was given {KINDS[kind]} and no batch_size; add batch_size=…")
    epochs = asked.epochs
    ends = asked.updates is not None or asked.samples is not None or kind == "function"
    if epochs is None and (not ends or isinstance(data, Iterator)):
        epochs = 1
    read = Data(
        kind=kind,
        dataset=data,
        batch_size=asked.batch_size,
        micro_batch=asked.micro_batch,
        epochs=epochs,
        updates=asked.updates,
        samples=asked.samples,
        sampling=asked.sampling,
        shuffle=kind == "map" and asked.sampler is None and asked.shuffle is not False,
        sampler=asked.sampler,
        drop_last=bool(asked.drop_last),
        sharded=asked.sharded,
        loader=fitting(asked.loader),
    )
    if kind == "map":
        _check_map(read)
        return read
    _check_no_order(kind, asked)
    if kind == "stream":
        _check_stream(read)
        return read
    if asked.epochs is not None or asked.loader:
        name = "epochs" if asked.epochs is not None else next(iter(asked.loader))
        raise InputError(f"{name} does not go with a function, which makes its batches itself; say updates=… instead")
    return replace(read, takes_number=takes_number(data))


def kind_of(data: Any, asked: Asked) -> Kind:
    """What was given."""
    if isinstance(data, tuple | Mapping | str | bytes):
        hint = "TensorDataset(x, y)" if isinstance(data, tuple) else "the data itself"
        hint = "one of its values" if isinstance(data, Mapping) else hint
        raise InputError(f"fleet.batches was given a {type(data).__name__}, which is no data set; give {hint}")
    if isinstance(data, IterableDataset):
        return "stream"
    if hasattr(data, "__getitem__") and not isinstance(data, type):
        if length(data) is not None or asked.sampler is not None:
            return "map"
        raise InputError(f"{type(data).__name__} has no length; give it a __len__, or say sampler=…")
    if hasattr(data, "__iter__") and not isinstance(data, type):
        return "stream"
    if callable(data) and not isinstance(data, Dataset | type):
        return "function"
    raise InputError(
        f"fleet.batches was given {name_of(data)}; give a data set, a DataLoader, something iterable, or a function "
        "that makes a batch"
    )


def from_loader(loader: DataLoader[Any], asked: Asked) -> tuple[Any, Asked]:
    """The data and the arguments of a DataLoader; what the user says besides counts more."""
    sampler, batch_size, drop_last = loader.sampler, loader.batch_size, loader.drop_last
    own = loader.batch_sampler if batch_size is None else None
    if type(own) is BatchSampler:
        sampler, batch_size, drop_last = own.sampler, own.batch_size, own.drop_last
    elif own is not None:
        raise InputError(
            f"the DataLoader has a batch_sampler of its own ({type(own).__name__}), but the algorithm decides how many "
            "samples a batch has; give its dataset to fleet.batches, and the order of the samples as sampler=…"
        )
    theirs = {name: getattr(loader, name) for name in OF_A_LOADER if name != "collate_fn"}
    if batch_size is not None:  # without, its function does not put samples together, but converts each
        theirs["collate_fn"] = loader.collate_fn
    order: dict[str, Any] = {}
    if asked.sampler is None and asked.shuffle is None and not isinstance(loader.dataset, IterableDataset):
        order = order_of(sampler, loader.dataset)
    return loader.dataset, replace(
        asked,
        batch_size=batch_size if asked.batch_size is None else asked.batch_size,
        drop_last=drop_last if asked.drop_last is None else asked.drop_last,
        loader={**fitting(theirs), **asked.loader},
        **order,
    )


def order_of(sampler: Any, dataset: Any) -> dict[str, Any]:
    """What a DataLoader's sampler means here."""
    if isinstance(sampler, DistributedSampler):  # dealing samples out to the ranks is what the fleet does
        return {"shuffle": sampler.shuffle}
    if type(sampler) is SequentialSampler:
        return {"shuffle": False}
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == length(dataset):
        return {"shuffle": True}
    return {"sampler": sampler}


def fitting(loader: Mapping[str, Any]) -> dict[str, Any]:
    """Without what means nothing to a DataLoader that has no workers, or is what it has anyway."""
    left_out = () if loader.get("num_workers") else _ONLY_WITH_WORKERS
    return {name: value for name, value in loader.items() if value is not None and name not in left_out}


def _check_map(data: Data) -> None:
    if data.sharded:
        raise InputError("sharded is True, but a data set is the same on every rank; say sampling='shards'")
    if data.size == 0:
        raise InputError("fleet.batches was given data without any samples; every rank needs the same, whole data set")


def _check_no_order(kind: Kind, asked: Asked) -> None:
    for name, given in (("shuffle", asked.shuffle), ("sampler", asked.sampler is not None)):
        if given:
            raise InputError(f"{name} does not go with {KINDS[kind]}, which has an order of its own; drop it")
    if asked.sampling != "queue":
        raise InputError(f"sampling={asked.sampling!r} does not go with {KINDS[kind]}; drop it")
    if kind == "function" and asked.sharded:
        raise InputError("sharded does not go with a function, which draws other samples on every rank; drop it")


def _check_stream(data: Data) -> None:
    if isinstance(data.dataset, Iterator) and (data.loader.get("num_workers") or data.epochs != 1):
        raise InputError(
            "fleet.batches was given an iterator, which can be read once, and by this process only; for several epochs "
            "or num_workers, give what it is made from"
        )


def takes_number(function: Callable[..., object]) -> bool:
    """Whether a function is to be told how many samples are wanted."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built into Python
        return False
    needed = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if not needed:
        return False
    if len(needed) == 1 and needed[0] in _NUMBERS:
        return True
    raise InputError(
        f"fleet.batches was given the function {name_of(function)}({', '.join(needed)}), but can tell it a number of "
        f"samples only, as batch_size; give a function without arguments: lambda: {name_of(function)}(…)"
    )


def length(data: Any) -> int | None:
    """How long something is, if it can tell."""
    try:
        return len(data)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def name_of(thing: Any) -> str:
    """A function's name, or that of a thing's class."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    return str(getattr(thing, "__name__", type(thing).__name__))


def _arguments() -> list[str]:
    return [name for name in Asked.__dataclass_fields__ if name != "loader"]
