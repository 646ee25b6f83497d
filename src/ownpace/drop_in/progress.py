"""How far a fleet is, over all loops of a script: the same on all ranks after the same update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ownpace.drop_in.step_batches import NothingSaid, SaidOfLoop, StepBatches
from ownpace.engines.progress import Progress

_ROUNDING = 1e-9


class Follower(Protocol):
    """What follows the fleet's progress."""

    def go_on(self) -> None:
        """The fleet has got further."""

    def settle(self) -> None:
        """A loop has ended: the follower may have gone further than the fleet has got."""

    def stay(self) -> None:
        """The fleet counts from elsewhere now, and the follower is where it belongs."""


class _Before(NamedTuple):
    """What was counted in an earlier run."""

    updates: int = 0
    samples: int = 0


class FleetProgress:
    """Updates, samples, passes over the data, and the position of schedules.

    That position counts samples in units of batch size × workers, times the batches that the script accumulates for a
    step: it is the number of updates that machines of equal speed would have made. So a schedule that was made for so
    many steps of an ordinary loop ends with the data on any fleet, whichever rank is slow and however large updates
    are.
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
        self._known = 0.0
        """The same without local steps since the latest update: a run that goes on later makes them again."""
        self._before = _Before()
        self._resumed: Mapping[str, float] | None = None
        self._scheduled = 0.0
        self._local = _LocalSteps(num_workers)
        self._loop = _Loop()
        self._schedules: list[Follower] = []
        self.is_asked = False
        """Whether the script goes by `steps` itself."""
        self._runs = False

    def lead(self, schedule: Follower) -> None:
        """Let this follow, whenever the fleet has got further."""
        self._schedules.append(schedule)

    @property
    def leads(self) -> bool:
        """Whether anything follows."""
        return self.is_asked or bool(self._schedules)

    def begin_loop(self, batch_size: int, samples: float, epoch_samples: float, said: SaidOfLoop | None = None) -> None:
        """A loop begins.

        Args:
            batch_size: Samples of a batch of the script.
            samples: Of the loop (may be infinite).
            epoch_samples: Of one pass over its data (may be infinite).
            said: What ranks tell each other of it (None: nothing).
        """
        self.largest_batch = max(self.largest_batch, batch_size)
        loop = _Loop(batch_size * self._num_workers, samples, epoch_samples)
        loop.batches = StepBatches(self._loop.batches.number, said or NothingSaid())
        first, self._resumed = self._resumed or self.state_dict(), None
        loop.first_update, loop.first_sample = int(first["updates"]), int(first["samples"])
        loop.first_epoch = int(first["epoch"])
        loop.first_scheduled, loop.first_position = self._scheduled, self.position
        self._loop = loop
        self._runs = True

    def take(self, progress: Progress, local_samples: int) -> None:
        """Take in what this worker knows: after an update, a local step, or parameters from a server.

        Args:
            progress: Of this worker.
            local_samples: Of its local steps since the last update.
        """
        loop, before = self._loop, self._before
        loop.batches.listen()
        self._scheduled = progress.scheduled
        ahead = self._local.samples_of_all(local_samples, progress.samples)
        # Never beyond the data: what others do in this round is a guess.
        known = self._scheduled - loop.first_scheduled
        scheduled = min(known + ahead, loop.all_samples)
        self.updates, self.samples = before.updates + progress.version, before.samples + progress.samples
        self.position = loop.first_position + scheduled / loop.step_samples
        self._known = loop.first_position + min(known, loop.all_samples) / loop.step_samples
        self.epoch = loop.first_epoch + int((self.samples - loop.first_sample) // loop.epoch_samples)
        self._tell()

    def stepped(self, batches: int) -> None:
        """The script calls `optimizer.step()` for this many batches; before the update that it leads to."""
        self._loop.batches.stepped(batches)

    def end_loop(self, epochs: int | None) -> None:
        """The loop has ended; after this many passes over the data, if it was not left before its end."""
        # A last update of fewer samples is a step of an ordinary loop, too.
        self.position = self._known = float(math.ceil(self.position - _ROUNDING))
        if epochs is not None:
            # Samples may have been dropped on the way (a GradScaler skips steps); the pass is complete all the same.
            self.epoch = self._loop.first_epoch + epochs
        self._runs = False
        for schedule in self._schedules:
            schedule.settle()

    def state_dict(self) -> dict[str, float]:
        """All that a later run needs to go on counting."""
        return {
            "updates": self.updates,
            "samples": self.samples,
            "epoch": self.epoch,
            "position": self._known,
            "scheduled": self.position,
        }

    @property
    def updates_in_loop(self) -> int:
        """Updates since the loop began, in an earlier run perhaps."""
        return self.updates - self._loop.first_update

    def loop_state(self) -> dict[str, float]:
        """Where the running loop began, or the one that is to be gone on with."""
        loop = self._loop
        if self._resumed is not None:
            return dict(self._resumed)
        return {"updates": loop.first_update, "samples": loop.first_sample, "epoch": loop.first_epoch}

    def resume_loop(self, began: Mapping[str, float]) -> None:
        """The loop that begins next has begun in an earlier run, there."""
        self._resumed = began

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on counting from there, before the first loop. Schedules that follow have their own state."""
        self._before = _Before(int(state["updates"]), int(state["samples"]))
        self.updates, self.samples = self._before.updates, self._before.samples
        self.epoch, self._known = int(state["epoch"]), float(state["position"])
        # Schedules are where local steps had led; they go on when the fleet is there again.
        self.position = float(state["scheduled"])
        for schedule in self._schedules:
            schedule.stay()
        self.position = self._known

    @property
    def is_in_loop(self) -> bool:
        """Whether a loop runs that has something left, as far as is known here."""
        return self._runs and self.samples - self._loop.first_sample < self._loop.all_samples

    def shared(self) -> dict[str, object]:
        """What is the same on all ranks, for one that is behind or was started again."""
        return {
            **self.state_dict(),
            "before": list(self._before),
            "counted": self._scheduled,
            "began": self.loop_state(),
        }

    def take_shared(self, state: Mapping[str, Any], *, is_new: bool, in_next: bool) -> None:
        """Go on with what another rank has.

        Args:
            state: Its `shared`.
            is_new: Whether this rank was started again: it counts on from there, and its schedules catch up.
            in_next: Whether that rank is in the loop that this one is about to begin.
        """
        if in_next or is_new:
            self._resumed = state["began"] if in_next else None
        if is_new:
            self._before = _Before(*map(int, state["before"]))
            self.updates, self.samples, self.epoch = int(state["updates"]), int(state["samples"]), int(state["epoch"])
            self._scheduled = float(state["counted"])
            self.position = self._known = float(state["position"])
            # Where this rank's own loop would count from, until it begins one.
            self._loop.first_scheduled, self._loop.first_position = self._scheduled, self.position
            self._loop.first_sample, self._loop.first_epoch = self.samples, self.epoch
            self._tell()

    def announce(self, told: Mapping[str, float]) -> None:
        """This rank was started again, and has heard how far the fleet is."""
        self.updates, self.samples, self.epoch = (int(told.get(key, 0)) for key in ("updates", "samples", "epoch"))

    def announced(self) -> dict[str, float]:
        """The same on the rank that is asked."""
        return {
            "updates": self.updates,
            "samples": self.samples,
            "epoch": self.epoch,
            "in_loop": float(self.is_in_loop),
        }

    def _tell(self) -> None:
        for schedule in self._schedules:
            schedule.go_on()

    @property
    def steps(self) -> int:
        """The position in whole steps."""
        return math.floor(self.position + _ROUNDING)

    @property
    def known_steps(self) -> int:
        """The same without local steps since the latest update."""
        return math.floor(self._known + _ROUNDING)


class _Loop:
    """Where a loop began, and what it counts by."""

    def __init__(self, update_samples: int = 1, samples: float = math.inf, epoch_samples: float = math.inf) -> None:
        self.update_samples = update_samples
        self.all_samples = samples
        self.epoch_samples = epoch_samples
        self.first_update = self.first_sample = self.first_epoch = 0
        self.first_scheduled = self.first_position = 0.0
        self.batches = StepBatches(1, NothingSaid())

    @property
    def step_samples(self) -> int:
        """Samples of one step of the script on all workers, were they equally fast."""
        return self.update_samples * self.batches.number


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
            # Some may be left: steps made while the sum of those before was under way.
            if self._own > own:
                self._ratio = (known - self._known) / (self._own - own)
            self._known = known
        self._own = own
        return own * self._ratio
