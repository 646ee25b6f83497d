"""How far a fleet is, over all loops of a script: the same on all ranks after the same update."""

from __future__ import annotations

import math
from collections.abc import Callable

from ownpace.engines.progress import Progress

_ROUNDING = 1e-9


class FleetProgress:
    """Updates, samples, passes over the data, and the position of schedules.

    That position counts samples in units of batch size × workers: it is the number of updates that machines of equal
    speed would have made. So a schedule that was made for so many steps of an ordinary loop ends with the data on any
    fleet, whichever rank is slow and however large updates are.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self.updates = 0
        self.samples = 0
        self.epoch = 0
        """Complete passes over the data."""
        self.largest_batch = 0
        """The largest batch size of all loops."""
        self.position = 0.0
        """Of schedules that go on with every update."""
        self._scheduled = 0.0
        self._local = _LocalSteps(num_workers)
        self._loop = _Loop()
        self._listeners: list[Callable[[], None]] = []

    def follow(self, listener: Callable[[], None]) -> None:
        """Call this whenever the fleet has got further."""
        self._listeners.append(listener)

    def begin_loop(self, batch_size: int, samples: float, epoch_samples: float) -> None:
        """A loop begins, over this many samples, and data of which one pass is that many (both may be infinite)."""
        self.largest_batch = max(self.largest_batch, batch_size)
        loop = _Loop(batch_size * self._num_workers, samples, epoch_samples)
        loop.first_sample, loop.first_epoch = self.samples, self.epoch
        loop.first_scheduled, loop.first_position = self._scheduled, self.position
        self._loop = loop

    def take(self, progress: Progress, local_samples: int) -> None:
        """Take in what this worker knows: after an update, a local step, or parameters from a server.

        Args:
            progress: Of this worker.
            local_samples: Of its local steps since the last update.
        """
        loop, self._scheduled = self._loop, progress.scheduled
        ahead = self._local.samples_of_all(local_samples, progress.samples)
        # Never beyond the data: what others do in this round is a guess.
        scheduled = min(self._scheduled - loop.first_scheduled + ahead, loop.all_samples)
        self.updates, self.samples = progress.version, progress.samples
        self.position = loop.first_position + scheduled / loop.update_samples
        self.epoch = loop.first_epoch + int((self.samples - loop.first_sample) // loop.epoch_samples)
        self._tell()

    def end_loop(self, epochs: int | None) -> None:
        """The loop has ended; after this many passes over the data, if it was not left before its end."""
        # A last update of fewer samples is a step of an ordinary loop, too.
        self.position = float(math.ceil(self.position - _ROUNDING))
        if epochs is not None:
            # Samples may have been dropped on the way (a GradScaler skips steps); the pass is complete all the same.
            self.epoch = self._loop.first_epoch + epochs
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    @property
    def steps(self) -> int:
        """The position in whole steps."""
        return math.floor(self.position + _ROUNDING)


class _Loop:
    """Where a loop began, and what it counts by."""

    def __init__(self, update_samples: int = 1, samples: float = math.inf, epoch_samples: float = math.inf) -> None:
        self.update_samples = update_samples
        self.all_samples = samples
        self.epoch_samples = epoch_samples
        self.first_sample = self.first_epoch = 0
        self.first_scheduled = self.first_position = 0.0


class _LocalSteps:
    """How far all workers are in a round of local steps, by how far this one is.

    Rounds may be long, and a warm-up within the first must not be jumped over. Each worker steps with its own rates
    there, so a guess does no harm: all do as much as this one, or what they did in the last round for each of its
    samples.
    """

    def __init__(self, num_workers: int) -> None:
        self._ratio = float(num_workers)
        self._own = 0
        self._known = 0

    def samples_of_all(self, own: int, known: int) -> float:
        """This worker has local steps of `own` samples since the last update, and knows of `known` in updates."""
        if known > self._known:
            if self._own:
                self._ratio = (known - self._known) / self._own
            self._known = known
        self._own = own
        return own * self._ratio
