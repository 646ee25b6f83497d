"""What must be the same on all ranks for a loop over some data."""

from __future__ import annotations

from collections.abc import Sequence

from ownpace.core.learning.orders import Order
from ownpace.drop_in.data import KINDS, Data, name_of
from ownpace.drop_in.digest import SampleDigests, digest, digest_of_samples
from ownpace.drop_in.replayed import Replayed

_COMPARED = 4096
"""How many of a sampler's indices are compared between the ranks."""


def fingerprint_of(data: Data, order: Order, digests: SampleDigests) -> dict[str, str]:
    """All of it, in words that an error can quote; `order` is that of the loop that is about to begin."""
    size = None if data.sharded else data.size
    return {
        "kind of data": KINDS[data.kind],
        "number of samples": "unknown" if size is None else str(size),
        "batch size": str(data.batch_size),
        "micro-batch": str(data.micro_batch or data.batch_size),
        "epochs": "no number" if data.epochs is None else str(data.epochs),
        "sampling": "sharded" if data.sharded else data.sampling,
        "order": _order_in_words(data, order),
        "last batch": "left out" if data.drop_last else "kept",
        "end of the loop": f"{data.updates} updates, {data.samples} samples",
        "collate function": name_of(data.loader["collate_fn"]) if "collate_fn" in data.loader else "the usual one",
        "digest of some samples": _digest(data, order, digests),
    }


def _order_in_words(data: Data, order: Order) -> str:
    if data.sampler is None:
        return "shuffled" if data.shuffle else "as it comes"
    assert isinstance(order, Replayed)
    return f"that of {name_of(data.sampler)} ({digest(order.first(_COMPARED))})"


def _digest(data: Data, order: Order, digests: SampleDigests) -> str:
    if data.kind == "function" or data.sharded:
        return "none"
    if data.kind == "stream":
        assert isinstance(order, Replayed)
        return " ".join(map(digest, order.first(1))) or "unreadable"
    if isinstance(order, Replayed):
        indices: Sequence[object] = order.first(3)
    else:
        assert data.size is not None
        indices = sorted({0, data.size // 2, data.size - 1})
    return digests.of(data.dataset, lambda: digest_of_samples(data.dataset, indices, data.loader))
