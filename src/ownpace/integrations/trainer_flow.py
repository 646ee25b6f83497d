"""When a Trainer logs, evaluates, saves and stops, where ranks have different numbers of batches."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import DefaultFlowCallback

NO_END = sys.maxsize
"""For the Trainer: more batches than there are, since it is the fleet's data that ends."""


class CountedTraining(Protocol):
    """What the flow needs of a trainer."""

    def count_updates(self) -> range:
        """Let the Trainer's counts be the fleet's. Returns the numbers of the updates since the last time."""

    def end_loop(self) -> None:
        """End the loop on all ranks."""

    def agree(self) -> None:
        """After a loop: all ranks go on with the same."""


class FleetFlow(DefaultFlowCallback):
    """When to log, evaluate, save and stop: by the fleet's updates."""

    def __init__(self, trainer: CountedTraining) -> None:
        self._trainer = trainer

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> object:
        """After `optimizer.step()`, which may or may not have made an update."""
        self._pass(self._trainer.count_updates(), args, state, control, kwargs)
        if args.process_index:
            control.should_evaluate = control.should_save = False  # rank 0's, alone: the others go on
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> object:
        """After this rank's last batch of an epoch."""
        self._trainer.end_loop()
        # The others may have made updates since this rank's last batch.
        self._pass(self._trainer.count_updates(), args, state, control, kwargs)
        self._trainer.agree()
        return super().on_epoch_end(args, state, control, **kwargs)

    def _pass(self, updates: range, args: Any, state: Any, control: Any, kwargs: dict[str, Any]) -> None:
        """Find out what is to be done after these updates."""
        limit, last = state.max_steps, state.global_step
        if args.max_steps <= 0:
            state.max_steps = NO_END  # only an estimate; the data say when it is over
        for state.global_step in updates:
            super().on_step_end(args, state, control, **kwargs)
        state.max_steps, state.global_step = limit, last
