"""A framework's training data, as its loop sees them: each iteration is a loop of the whole fleet."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import Any

from torch.utils.data import DataLoader

from ownpace.core.contract.errors import InputError
from ownpace.drop_in import Joined


class TrainingData:
    """Stands in for a DataLoader; `len()` is how many batches each worker would get if all were equally fast."""

    def __init__(
        self,
        loader: object,
        num_workers: int,
        fleet: Callable[[], Joined],
        *,
        limit: float = 1.0,
        updates: Callable[[], int | None] = lambda: None,
        **options: Any,
    ) -> None:
        """Data for the loops of a framework.

        Args:
            loader: What the user made.
            num_workers: In the fleet.
            fleet: Gives the fleet; called when a loop begins, since some frameworks load data before they have a model.
            limit: A share of the data, or (an int) batches of each worker, that a loop ends after.
            updates: Gives the number of updates that the next loop ends after, if there is one.
            **options: For `fleet.batches`.
        """
        if not isinstance(loader, DataLoader):
            raise InputError(f"the training data are a {type(loader).__name__}; a fleet needs a torch DataLoader")
        if loader.batch_size is None:
            raise InputError("the training DataLoader has no batch_size; a fleet needs one, to begin with")
        self.loader = loader
        self.dataset = loader.dataset
        self._fleet = fleet
        self._options = options
        self._updates = updates
        in_update = num_workers * loader.batch_size
        size = len(loader.dataset)  # type: ignore[arg-type]
        self._length = math.ceil(size / in_update)
        self._samples = size
        if isinstance(limit, int):
            self._length = min(self._length, limit)
            self._samples = min(self._samples, limit * in_update)
        elif limit < 1.0:
            self._length = max(1, int(limit * self._length))
            self._samples = max(1, int(limit * self._samples))
        self._iterator: Generator[Any, None, None] | None = None
        self._begun = False
        self.is_running = False
        """Whether a loop of the fleet runs: its ranks are at different batches."""
        self.batches = 0
        """Of the latest loop, on this rank."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        self._iterator = self._go_through()
        return self._iterator

    def _go_through(self) -> Generator[Any, None, None]:
        loader = self.loader
        self.batches = 0
        self._begun = self.is_running = True
        try:
            kept = ("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
            options = {name: getattr(loader, name) for name in kept}
            assert loader.batch_size is not None
            options |= self._options | {"updates": self._updates()}
            for batch in self._fleet().batches(loader.dataset, loader.batch_size, **options):
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
