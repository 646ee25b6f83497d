"""A few samples in a few digits: ranks whose data differ are found out before they train on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ownpace.core.learning.plain_state import bytes_of
from ownpace.drop_in.random_states import seeded

_SEED = 0


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def digest(value: object) -> str:
    """A few digits that differ where two samples do: tensors, arrays, numbers, texts, images, and collections of them.

    >>> digest({"x": 1.0}) == digest({"x": 1.0}), digest([1, 2]) == digest([2, 1])
    (True, False)
    """
    found = hashlib.sha256()
    _add(found, value)
    return found.hexdigest()[:8]


def _add(found: _Hash, value: object) -> None:
    found.update(type(value).__name__.encode())
    if isinstance(value, Tensor):
        found.update(f"{value.dtype}{tuple(value.shape)}".encode())
        if value.layout == torch.strided and not value.is_quantized and value.device.type != "meta":
            found.update(bytes_of(value).numpy().tobytes())
    elif isinstance(value, np.ndarray | np.generic):
        found.update(f"{value.dtype}{value.shape}".encode())
        if not value.dtype.hasobject:
            found.update(value.tobytes())
    elif isinstance(value, bytes | bytearray):
        found.update(bytes(value))
    elif value is None or isinstance(value, str | bool | int | float | complex):
        found.update(repr(value).encode())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _add(found, key)
            _add(found, item)
    elif isinstance(value, Sequence | set | frozenset):
        for item in value if isinstance(value, Sequence) else sorted(value, key=repr):
            _add(found, item)
        found.update(b".")
    elif hasattr(value, "tobytes") and hasattr(value, "mode"):  # an image of PIL's
        found.update(f"{value.mode}{getattr(value, 'size', '')}".encode())
        found.update(value.tobytes())
    # Anything else: its type is all that is known to be the same on every rank.


class _Probe(Dataset[str]):
    """The digests of some samples of a data set."""

    def __init__(self, dataset: Any, indices: Sequence[Any]) -> None:
        self._dataset = dataset
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> str:
        try:
            first, again = (self._read(self._indices[place]) for _ in range(2))
        except Exception:
            return "unreadable"
        # A random augmentation with a generator of its own: nothing can be said of such a sample.
        return first if first == again else "random"

    def _read(self, index: object) -> str:
        with seeded(_SEED):
            return digest(self._dataset[index])


def digest_of_samples(dataset: Any, indices: Sequence[Any], loader: Mapping[str, Any]) -> str:
    """Digests of the samples at these indices; the script's random numbers stay as they are."""
    probe = _Probe(dataset, indices)
    if not loader.get("num_workers"):
        return " ".join(probe[place] for place in range(len(probe)))
    # By a worker, as later: a file that a data set opens at its first sample must not be open when workers are forked.
    options = {name: loader[name] for name in ("worker_init_fn", "multiprocessing_context") if name in loader}
    generator = torch.Generator().manual_seed(_SEED)
    try:
        found = list(DataLoader(probe, None, num_workers=1, collate_fn=as_it_is, generator=generator, **options))
    except Exception:
        return "unreadable"
    return " ".join(found)


class SampleDigests:
    """Remembers the digest of the latest data set: a script may make its batches anew for every epoch."""

    def __init__(self) -> None:
        self._latest: tuple[object, str] | None = None

    def of(self, dataset: object, compute: Callable[[], str]) -> str:
        """That of a data set."""
        if self._latest is None or self._latest[0] is not dataset:
            self._latest = dataset, compute()
        return self._latest[1]


def as_it_is(value: Any) -> Any:
    """What a DataLoader does with samples that are not to be collated."""
    return value
