"""ownpace in Transformers' Trainer and in Accelerate.

    trainer = OwnpaceTrainer(model, args, train_dataset=data, algorithm="stride")  # instead of Trainer(…)

A Trainer takes for granted that all ranks are at the same batch, and gathers something from all of them at every step
that it logs. So it is told that it is alone, with the rank as its index: it then neither wraps the model nor deals out
the data, and rank 0 alone logs and saves. What ranks do together is the fleet's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

from accelerate.optimizer import AcceleratedOptimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import DefaultFlowCallback

from ownpace.algorithms import DEFAULT
from ownpace.auto import join
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.drop_in import Joined
from ownpace.integrations.accelerate_state import leave_to_fleet
from ownpace.integrations.modes import back_in_training, go_to_average
from ownpace.integrations.trainer_checkpoint import SavedFleet, read_fleet, write_fleet
from ownpace.integrations.trainer_flow import NO_END, FleetFlow
from ownpace.integrations.training_data import TrainingData
from ownpace.report.summary import Summary

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object  # the mixin stands before a Trainer, of whatever kind
_BEST = ("best_metric", "best_global_step", "best_model_checkpoint")

__all__ = ["FleetTraining", "OwnpaceTrainer", "leave_to_fleet"]


class FleetTraining(_Base):
    """What makes a Trainer's `train()` that of a fleet: `class MyTrainer(FleetTraining, Seq2SeqTrainer): …`."""

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *positional: object,
        algorithm: str | Algorithm = DEFAULT,
        parameters: Mapping[str, object] | None = None,
        sampling: str = "queue",
        join: Mapping[str, Any] | None = None,
        **keywords: object,
    ) -> None:
        """A trainer; all that is not named here goes to the Trainer.

        Args:
            model: The Trainer's.
            args: The Trainer's.
            *positional: The Trainer's.
            algorithm: A name (`ownpace list` describes them), `auto` (choose for me), or an algorithm of your own.
            parameters: Those of the algorithm of that name.
            sampling: Which rank gets which samples, as in `fleet.batches`.
            join: Further arguments of `ownpace.join`.
            **keywords: The Trainer's.
        """
        args = TrainingArguments("tmp_trainer") if args is None else args
        _refuse(args)
        _ = args.device  # sets up Accelerate's state, which is corrected next
        leave_to_fleet()
        self._joining = {"algorithm": algorithm, "parameters": parameters, **(join or {})}
        self._sampling = sampling
        self._data: TrainingData | None = None
        self._began: tuple[int, float] = 0, 0.0
        self._accumulated = 1
        self._counted = 0
        self._epoch_samples = math.inf
        self._epoch = 0
        self._resumed: SavedFleet | None = None
        self.fleet: Joined | None = None
        """The fleet, while it trains."""
        self.summary: Summary | None = None
        """The latest `train()` in numbers."""
        super().__init__(model, args, *positional, **keywords)
        self.pop_callback(DefaultFlowCallback)
        # First of all: the others see the fleet's count of updates.
        self.callback_handler.callbacks.insert(0, FleetFlow(self))

    def train(self, *positional: object, **keywords: object) -> Any:
        """Train, as the Trainer does, with the fleet."""
        leave_to_fleet()  # other TrainingArguments may have been made since
        # The fleet accumulates: it leaves no batch over where an epoch ends.
        self._accumulated, self.args.gradient_accumulation_steps = self.args.gradient_accumulation_steps, 1
        with join(**self._joining) as fleet:
            self.fleet = fleet
            try:
                output = super().train(*positional, **keywords)
            finally:
                self.fleet = None
                self.args.gradient_accumulation_steps = self._accumulated
        self.summary = fleet.summary
        go_to_average(self._bare_optimizer())
        return output

    # Data, model and optimizer.

    def get_train_dataloader(self) -> Any:
        """The fleet's batches, once training has begun."""
        if self.fleet is None:
            return super().get_train_dataloader()
        # As it was made: prepared by Accelerate, it no longer says what it consists of.
        self.accelerator.prepare = lambda loader: loader
        try:
            loader = super().get_train_dataloader()
        finally:
            del self.accelerator.prepare
        self._data = TrainingData(
            loader,
            self.fleet.num_workers,
            self._joined,
            accumulated=self._accumulated,
            updates=self._updates_left,
            sampling=self._sampling,
        )
        if not isinstance(loader.dataset, IterableDataset):
            self._epoch_samples = len(loader.dataset)
        return self._data

    def _updates_left(self) -> int | None:
        limit = self.args.max_steps
        return None if limit <= 0 else max(1, limit - self.state.global_step)

    def num_examples(self, dataloader: Any) -> int:
        """How many samples an epoch has."""
        given = dataloader.loader if isinstance(dataloader, TrainingData) else dataloader
        examples: int = super().num_examples(given)
        return examples

    def _joined(self) -> Joined:
        assert self.fleet is not None
        return self.fleet

    def create_optimizer(self, model: Any = None) -> Any:
        """The optimizer, wrapped before Accelerate wraps it: a GradScaler then finds the fleet's step."""
        self.optimizer = super().create_optimizer(model)
        self.optimizer = optimizer = self._bare_optimizer()
        # The gradient of the whole update is clipped, as with DDP, not each rank's part of it.
        self._joined().wrap(self.model, optimizer, clip_norm=self.args.max_grad_norm or None)
        return optimizer

    def _bare_optimizer(self) -> Any:
        optimizer = self.optimizer
        while isinstance(optimizer, AcceleratedOptimizer):
            optimizer = optimizer.optimizer
        return optimizer

    def create_scheduler(self, *positional: object, **keywords: object) -> Any:
        """The schedule, following the fleet."""
        scheduler = super().create_scheduler(*positional, **keywords)
        if isinstance(scheduler, LRScheduler) and not isinstance(scheduler, ReduceLROnPlateau):
            self._joined().schedule(scheduler)
        return scheduler

    def _clip_grad_norm(self, model: Any) -> None:
        """The fleet clips."""

    # The loop. A rank goes on until the fleet has no more batches; how many it gets is not known.

    def set_initial_training_values(self, *positional: object, **keywords: object) -> Any:
        """As the Trainer's; but `max_steps` updates may take more or fewer epochs than it thinks."""
        num_train_epochs, *others = super().set_initial_training_values(*positional, **keywords)
        return (NO_END if self.args.max_steps > 0 else num_train_epochs, *others)

    def _init_training_state(self, *positional: Any, **keywords: Any) -> tuple[int, int]:
        super()._init_training_state(*positional, **keywords)
        # Of a checkpoint that was made without a fleet: an epoch that it interrupts begins anew.
        epoch = int((self.state.epoch or 0.0) + 1e-6)
        resumed = positional[3] if len(positional) > 3 else keywords.get("resume_from_checkpoint")
        self._resumed = None if resumed is None else read_fleet(resumed)
        if self._resumed is not None:
            epoch = self._resumed.epoch
        else:
            self._began, self._counted = (self.state.global_step, float(epoch)), 0
        return epoch, 0

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self._resumed is None or self._data is None:
            return
        fleet = self._joined()
        fleet.load_state_dict(self._resumed.state)
        self._data.go_on(self._resumed.state)
        self._counted = fleet.updates
        self._began = self.state.global_step - fleet.updates, self._resumed.passes - fleet.samples / self._epoch_samples

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        # First of all: parameter servers then give what they have of the optimizer's state to it.
        state = self._joined().state_dict(models=False)
        super()._save_optimizer_and_scheduler(output_dir)
        write_fleet(output_dir, SavedFleet(state, self._epoch + (not self.is_apart), self.state.epoch or 0.0))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        # Rank 0 has saved its own: with the same on all ranks, all would drop out the same neurons.
        if self.args.process_index == 0:
            super()._load_rng_state(checkpoint)

    def _run_epoch(self, **keywords: Any) -> None:
        self._epoch = keywords["epoch"]
        keywords.update(num_update_steps_per_epoch=NO_END, steps_in_epoch=NO_END)
        super()._run_epoch(**keywords)

    def get_batch_samples(self, *positional: object, **keywords: object) -> Any:
        """The batches of a step; none are left when the fleet's loop has ended."""
        batches, items = super().get_batch_samples(*positional, **keywords)
        if not batches:
            self.control.should_epoch_stop = True
        return batches, items

    def count_updates(self) -> range:
        """Let the Trainer's counts be the fleet's. Returns the numbers of the updates since the last time."""
        fleet = self._joined()
        before, self._counted = self._began[0] + self._counted, fleet.updates
        self.state.global_step = self._began[0] + fleet.updates
        self.state.epoch = self._began[1] + fleet.samples / self._epoch_samples
        return range(before + 1, self.state.global_step + 1)

    def end_loop(self) -> None:
        """End the loop on all ranks."""
        assert self._data is not None
        self._data.end()
        # The Trainer stops where it got no batch; a slow rank may get none, and the next epoch some.
        if not self._data.batches:
            self.control.should_training_stop = False

    def agree(self) -> None:
        """After a loop: all ranks go on with the same, though rank 0 alone has evaluated and saved in it."""
        control, state = self.control, self.state
        known = {name: getattr(state, name) for name in _BEST if getattr(state, name) is not None}
        mine = [control.should_training_stop, control.should_evaluate, control.should_save, known]
        seen = self._joined().gather(mine)
        control.should_training_stop = any(stop for stop, *_ in seen)  # a rank that stops has ended the loop of all
        _, control.should_evaluate, control.should_save, known = seen[0]
        for name in _BEST:
            setattr(state, name, known.get(name))

    @property
    def is_apart(self) -> bool:
        """Whether the ranks are at different batches, so that none can wait for another."""
        return self._data is not None and self._data.is_running

    # What rank 0 does in a loop, and all of them between two.

    def _evaluate(self, *positional: object, **keywords: object) -> Any:
        evaluate = super()._evaluate
        if self.fleet is None:
            return evaluate(*positional, **keywords)
        if self.is_apart:

            def alone(_: object) -> Any:
                with back_in_training(self._bare_optimizer()):
                    return evaluate(*positional, **keywords)

            return self.fleet.evaluate(alone)
        # All have the same parameters and data, but maybe not the same hardware: they must draw the same conclusions.
        with back_in_training(self._bare_optimizer()):
            metrics = evaluate(*positional, **keywords)
        plain = {name: float(value) if isinstance(value, Real) else value for name, value in metrics.items()}
        metrics, self.control.should_training_stop = self.fleet.gather([plain, self.control.should_training_stop])[0]
        return metrics

    def _save_checkpoint(self, *positional: object, **keywords: object) -> None:
        if self.args.process_index == 0:
            super()._save_checkpoint(*positional, **keywords)
        if not self.is_apart:
            self.state.best_model_checkpoint = self._joined().gather(self.state.best_model_checkpoint or "")[0] or None


class OwnpaceTrainer(FleetTraining, Trainer):
    """Transformers' Trainer, each of whose processes trains at its own pace."""


def _refuse(args: TrainingArguments) -> None:
    """Raise for what would replace the fleet, or cannot work with it."""
    for name in ("fsdp", "deepspeed", "parallelism_config"):
        if getattr(args, name, None):
            raise InputError(
                f"TrainingArguments.{name} shards or splits the model; a fleet holds it whole: leave it out"
            )
    if args.auto_find_batch_size:
        raise InputError(
            "auto_find_batch_size would give the ranks different batch sizes; set per_device_train_batch_size"
        )
