"""A framework's training data, as its loop sees them: each iteration is a loop of the whole fleet."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler

from ownpace.core.contract.errors import InputError
from ownpace.drop_in import Joined
from ownpace.drop_in.data import length


class TrainingData:
    """Stands in for a DataLoader; `len()` is how many updates a loop would have if all workers were equally fast."""

    def __init__(
        self,
        loader: object,
        num_workers: int,
        fleet: Callable[[], Joined],
        *,
        accumulated: int = 1,
        limit: float = 1.0,
        updates: Callable[[], int | None] = lambda: None,
        unknown_length: int | None = None,
        **options: Any,
    ) -> None:
        """Data for the loops of a framework.

        Args:
            loader: What the user made.
            num_workers: In the fleet.
            fleet: Gives the fleet; called when a loop begins, since some frameworks load data before they have a model.
            accumulated: How many batches each worker contributes to an update.
            limit: After what a loop ends: a share of the data, or (an int) a number of batches of each worker.
            updates: Gives the number of updates that the next loop ends after, if there is one.
            unknown_length: What `len()` is where the data has none (None: that raises TypeError).
            **options: For `fleet.batches`.
        """
        if not isinstance(loader, DataLoader):
            raise InputError(f"the training data are a {type(loader).__name__}; a fleet needs a torch DataLoader")
        if loader.batch_size is None:
            raise InputError("the training DataLoader has no batch_size; a fleet needs one, to begin with")
        self.loader = loader
        self.dataset = loader.dataset
        self._fleet = fleet
        self._updates = updates
        batch_size = accumulated * loader.batch_size
        self._options = {"batch_size": batch_size, "micro_batch": loader.batch_size, **order_of(loader), **options}
        self._samples, known = _limited(length(loader.dataset), limit, num_workers * loader.batch_size)
        self._length = unknown_length if known is None else math.ceil(known / (num_workers * batch_size))
        self._iterator: Generator[Any, None, None] | None = None
        self._begun = False
        self.is_running = False
        """Whether a loop of the fleet runs: its ranks are at different batches."""
        self.batches = 0
        """Of the latest loop, on this rank."""
        self._made_before = 0

    def go_on(self, state: Mapping[str, Any]) -> None:
        """The next loop may have begun in an earlier run: `state` is that of the fleet."""
        if state["left"] is not None:
            self._made_before = int(state["progress"]["updates"]) - int(state["began"]["updates"])

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("data of unknown length has no len()")
        return self._length

    def __iter__(self) -> Iterator[Any]:
        self._iterator = self._go_through()
        return self._iterator

    def _go_through(self) -> Generator[Any, None, None]:
        self.batches = 0
        self._begun = self.is_running = True
        # The fleet counts from the beginning of the loop, the framework from where it goes on.
        updates, made_before = self._updates(), self._made_before
        self._made_before = 0
        updates = None if updates is None else updates + made_before
        options = {"epochs": 1, "updates": updates, "samples": self._samples, **self._options}
        try:
            for batch in self._fleet().batches(self.loader, **options):
                self.batches += 1
                yield batch
        finally:
            # Also where the framework has left the loop: the fleet's loop has ended on all ranks by now.
            self.is_running = False

    def end(self) -> bool:
        """End the loop of the fleet, if this rank has left it before its end. False: none was begun."""
        begun, self._begun = self._begun, False
        if begun and self._iterator is not None:
            self._iterator.close()
        return begun


def _limited(size: int | None, limit: float, batches: int) -> tuple[int | None, int | None]:
    """The number of samples that a loop ends after, if it is limited; and how many it has, if that is known.

    `batches` is the number of samples of one batch of each worker.
    """
    if isinstance(limit, int):
        most = limit * batches if size is None else min(size, limit * batches)
        return most, most
    if size is not None and limit < 1.0:
        return max(1, int(limit * size)), max(1, int(limit * size))
    return None, size


def order_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """In which order the samples are to come, where a framework has put a sampler of its own around the user's."""
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler) and hasattr(sampler.dataset, "_sampler"):
        return {"sampler": sampler.dataset._sampler}
    return {}
