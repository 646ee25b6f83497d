"""The fleet that `ownpace.join` returns: what a user's script calls."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from ownpace.core.choices import Sampling
from ownpace.core.contract import events
from ownpace.core.contract.errors import InputError
from ownpace.drop_in.batches import Batches
from ownpace.drop_in.closing import last_line, name_of, warn_of_large_updates
from ownpace.drop_in.data import Asked, read_data
from ownpace.drop_in.digest import SampleDigests
from ownpace.drop_in.explanations import explain
from ownpace.drop_in.loops import Loops
from ownpace.drop_in.resuming import ResumableFleet
from ownpace.drop_in.schedule import warn_of_too_long
from ownpace.engines.process.meet.environment import Environment, check_alone
from ownpace.engines.process.run.joining import LoopRun
from ownpace.engines.process.run.opening import FleetOptions
from ownpace.report.summary import Summary, SummaryBuilder


class Joined(ResumableFleet):
    """This process as a worker of the fleet. Use it as a context manager."""

    def __init__(self, options: FleetOptions, *, quiet: bool = False) -> None:
        self._algorithm = options.algorithm
        self._quiet = quiet
        started = Environment.read()
        if started is None:
            check_alone()
        environment = started or Environment.alone()
        if options.min_workers > environment.world_size:
            raise InputError(
                f"min_workers is {options.min_workers}, but {environment.world_size} ranks were started; use at most "
                f"{environment.world_size}"
            )
        options.algorithm.check(environment.world_size, sampling=None)
        super().__init__(LoopRun(options, environment, alone=started is None))
        self._digests = SampleDigests()
        self._run.on_progress = self._progress.take
        self._run.script = self._progress
        self.summary: Summary | None = None
        """The run in numbers, once it is over."""

    @property
    def updates(self) -> int:
        """Updates that the fleet has made, over all loops: the same number on all ranks after the same update.

        Where servers make the updates, it is what this rank has last heard; so are `samples` and `epoch`.
        """
        self._run.go_to_running_loop()
        return self._progress.updates

    @property
    def samples(self) -> int:
        """Samples of all these updates."""
        self._run.go_to_running_loop()
        return self._progress.samples

    @property
    def steps(self) -> int:
        """Where a schedule is that follows the fleet: the steps of an ordinary loop over as many samples.

        It is for rates that a script sets by itself, and ends with the data whatever an update is: with local steps,
        one is a whole round of them. Within a round, each rank reckons with what it knows of the others.
        """
        self._run.go_to_running_loop()
        self._progress.is_asked = True
        return self._progress.steps

    @property
    def epoch(self) -> int:
        """How many passes over the data are complete, over all loops.

        Of a rank that was started again while the others go on, it is the fleet's, as are `updates` and `samples`. A
        script that asks for one of them before its first loop begins with the loop that the others are in.
        """
        self._run.go_to_running_loop()
        return self._progress.epoch

    def __enter__(self) -> Joined:
        self._run.meet()
        self._run.presence.describe = lambda: {**self._progress.announced(), **self._run.describe()}
        if self._run.presence.past is not None:
            self._progress.announce(self._run.presence.past.progress)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        told = explain(error)
        for schedule in self._schedules:
            schedule.release()
        builder = SummaryBuilder()
        try:
            lines = self._run.close(told or error)
        finally:
            self._let_go()
        if told is not None:
            raise told from error
        for line in lines:
            builder.take(events.from_line(line))
        if lines:
            self.summary = replace(builder.summary(), algorithm=name_of(self._algorithm.at_work))
            if self.rank == 0 and self.summary.updates:
                if not self._quiet:
                    print(last_line(self.summary, self._algorithm, self.num_workers), file=sys.stderr)
                batch_size = max(self._progress.largest_batch, self._run.loop.largest_step)
                warn_of_large_updates(self.summary, self._algorithm, batch_size, self.num_workers)
                for scheduler in self._in_steps:
                    warn_of_too_long(scheduler, self._run.world_size)

    def batches(
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        micro_batch: int | None = None,
        epochs: int | None = None,
        updates: int | None = None,
        samples: int | None = None,
        sampling: Sampling = "queue",
        shuffle: bool | None = None,
        sampler: Any = None,
        drop_last: bool | None = None,
        sharded: bool = False,
        **loader: Any,
    ) -> Batches:
        """Batches of some data, as many samples in each as the algorithm asks for.

        Every worker runs this loop; each takes what it can. It ends on all workers when the last sample has been
        learnt from; `break` ends it for all. It begins at the first `next`, and may be iterated again, as may a new
        one begin once it has ended. It has a `len()`, an estimate where there are several workers.

        Args:
            data: The same on every worker: a data set (with `__len__` and `__getitem__`); a DataLoader, whose settings
                count unless they are given here; a stream (an IterableDataset or anything iterable), of which each
                item goes to one worker; or a function that makes a batch, called with the number of samples if it
                takes `batch_size`, and with random numbers of its own for every batch.
            batch_size: Samples that each worker contributes to an update, where the algorithm does not decide.
            micro_batch: Samples of one batch at most: then `batch_size` comes in several, each with its own `step()`.
                With `balanced`, a fast machine's batches are larger than `batch_size`: this says what its memory holds.
            epochs: How often to go through the data (None: once, or without end where `updates` or `samples` is given).
            updates: End after this many updates of the fleet, on all ranks after the same one. Where a sum is always
                under way, it is still applied: one update more. Where servers make updates, so are gradients under way.
            samples: End after this many samples of the fleet.
            sampling: `queue`: every sample once per epoch, at any pace; `iid`: with replacement; `shards`: equal parts.
            shuffle: False: in the order of the data (None: as the DataLoader does; of anything else, True).
            sampler: Gives the order of the indices, which must be the same on every worker.
            drop_last: Leave out what does not fill a batch.
            sharded: A stream is already another one on each worker: each takes all of its own.
            **loader: For torch's DataLoader: num_workers, collate_fn …
        """
        order = sampling, shuffle, sampler, drop_last, sharded
        asked = Asked(batch_size, micro_batch, epochs, updates, samples, *order, loader)
        known = self._progress, self._digests, self._taken_early
        return Batches(Loops(self._run, lambda: self._wrapped, *known), read_data(data, asked))
