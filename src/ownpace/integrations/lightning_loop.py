"""Lightning's loop over the batches of an epoch, where every rank has its own number of them.

Lightning takes for granted that all ranks are at the same batch: it validates, steps schedulers and ends an epoch after
a number of batches, and talks to the other ranks at every batch. Here only the end of an epoch is common to all.
"""

from __future__ import annotations

import warnings
from typing import Any

from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from ownpace.core.contract.errors import InputError
from ownpace.integrations.lightning_metrics import forget


class FleetEpochLoop(_TrainingEpochLoop):
    """Goes through the batches that the fleet hands out, and does at their end what Lightning does after as many."""

    def run(self, data_fetcher: Any) -> None:
        """Run one epoch on this rank; it ends on all ranks together."""
        if isinstance(data_fetcher, _DataLoaderIterDataFetcher):
            raise InputError("training_step takes a dataloader_iter; with a fleet it must take a batch")
        with warnings.catch_warnings():
            # The fleet goes on exactly where it was; Lightning asks the data, and none of them can tell.
            warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before the epoch ended")
            self.reset()
        forget(self._results)
        self.on_run_start(data_fetcher)
        # How many batches this rank will get is not known; len() is what the whole fleet's progress is measured in.
        data_fetcher.length, data_fetcher.done = None, False
        while not self.done:
            try:
                self.advance(data_fetcher)
                self.on_advance_end(data_fetcher)
            except StopIteration:
                break
            finally:
                self.on_iteration_done()
        # None was begun where a checkpoint is resumed that was saved after the last batch.
        if self.trainer.strategy.end_loop():
            self._end_epoch(data_fetcher)

    def _end_epoch(self, data_fetcher: Any) -> None:
        """After the last batch of all ranks: validate, and step what is stepped once an epoch."""
        self.batch_progress.is_last_batch = data_fetcher.done = True
        self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        self.on_advance_end(data_fetcher)
        self._batches_that_stepped = self.global_step

    def count_updates(self, updates: int, *, about_to_count: bool = False) -> None:
        """Let Lightning's count of steps, which limits, names and logs follow, be that of the fleet's updates.

        `about_to_count`: Lightning is going to add one.
        """
        if self.trainer.lightning_module.automatic_optimization:
            total = self.automatic_optimization.optim_progress.optimizer.step.total
        else:
            total = self.manual_optimization.optim_step_progress.total
        total.ready = updates
        total.completed = updates - about_to_count

    def _num_ready_batches_reached(self) -> bool:
        return bool(self.batch_progress.is_last_batch)

    def _should_check_val_fx(self, data_fetcher: Any) -> bool:
        # In the loop, the other ranks are elsewhere: they would not take part.
        return bool(self.batch_progress.is_last_batch and self._should_check_val_epoch())

    def _broadcast_sigterm_tensor(self) -> None:
        """Lightning asks all ranks at every batch; the fleet has its own way to stop."""
