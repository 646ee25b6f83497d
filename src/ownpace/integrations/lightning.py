"""ownpace in Lightning: `Trainer(strategy=OwnpaceStrategy("stride"))`."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import Tensor, get_default_dtype
from torch.optim import Optimizer

from ownpace.algorithms import DEFAULT
from ownpace.auto import join
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, OwnpaceError
from ownpace.drop_in import Joined
from ownpace.integrations.closures import accept_closures
from ownpace.integrations.lightning_loop import FleetEpochLoop
from ownpace.integrations.lightning_metrics import complete, told
from ownpace.integrations.processes import AsTorchrunSays
from ownpace.integrations.training_data import TrainingData
from ownpace.report.summary import Summary

_KEY = "ownpace"
"""Of the fleet's state in a checkpoint of Lightning's."""


class OwnpaceStrategy(AsTorchrunSays, DDPStrategy):
    """Lets each process of a Lightning run train at its own pace."""

    def __init__(
        self,
        algorithm: str | Algorithm = DEFAULT,
        *,
        parameters: Mapping[str, object] | None = None,
        sampling: str = "queue",
        join: Mapping[str, Any] | None = None,
        **lightning: Any,
    ) -> None:
        """A strategy for `Trainer(strategy=…)`.

        Args:
            algorithm: A name (`ownpace list` describes them), `auto` (choose for me), or an algorithm of your own.
            parameters: Those of the algorithm of that name.
            sampling: Which rank gets which samples, as in `fleet.batches`.
            join: Further arguments of `ownpace.join`.
            **lightning: Of Lightning's DDPStrategy: accelerator, checkpoint_io, process_group_backend …
        """
        super().__init__(**lightning)
        self._joining = {"algorithm": algorithm, "parameters": parameters, **(join or {})}
        self._sampling = sampling
        self._data: TrainingData | None = None
        self._settings: dict[str, Any] = {}
        self._steps_before = 0
        self._state: Mapping[str, Any] | None = None
        self._loaded: Mapping[str, Any] | None = None
        self._warned = False
        self.fleet: Joined | None = None
        """The fleet, while it trains."""
        self.summary: Summary | None = None
        """The latest fit in numbers."""

    def setup_distributed(self) -> None:
        """Let all ranks find each other, also for the collectives of Lightning and torchmetrics between two loops."""
        if self.world_size > 1:
            super().setup_distributed()

    # From the beginning of a fit to its end.

    def setup(self, trainer: Any) -> None:
        """Prepare the model and, to fit it, join the fleet."""
        fits = trainer.state.fn == TrainerFn.FITTING
        self.accelerator.setup(trainer)
        model = self.model = self.precision_plugin.convert_module(self.lightning_module)
        self.model_to_device()
        if fits:
            self.setup_optimizers(trainer)
            _refuse(trainer, self._layer_sync)
        elif self.world_size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)
        self.setup_precision_plugin()
        if fits:
            self._join(trainer)

    def _join(self, trainer: Any) -> None:
        self.fleet = join(**self._joining)
        self.fleet.__enter__()
        # The gradient of the whole update is clipped, as with DDP, not each rank's part of it.
        clip_norm = self._taken_over(trainer, "gradient_clip_val", None)
        for optimizer in self.optimizers:
            self.fleet.wrap(self.model, optimizer, clip_norm=clip_norm)
            accept_closures(optimizer)
        if self.lightning_module.automatic_optimization:
            for config in self.lr_scheduler_configs:
                if config.interval == "step" and not config.reduce_on_plateau:
                    self.fleet.schedule(config.scheduler)
        # In place: the data and the progress that the loop knows already stay its own.
        trainer.fit_loop.epoch_loop.__class__ = FleetEpochLoop

    def _taken_over(self, trainer: Any, name: str, instead: object) -> Any:
        """A setting of the Trainer's that the fleet sees to; meanwhile the Trainer itself has another."""
        if name not in self._settings:
            self._settings[name] = getattr(trainer, name)
            setattr(trainer, name, instead)
        return self._settings[name]

    def on_train_start(self) -> None:
        """A checkpoint has been loaded by now, if there is one: the fleet goes on from there, too."""
        fleet, (loaded, self._loaded) = self._joined(), (self._loaded, None)
        if loaded is not None and self._data is not None:
            fleet.load_state_dict(loaded)
            self._data.go_on(loaded)
        self._steps_before = self._trainer.global_step - fleet.updates

    def on_train_end(self) -> None:
        """All that Lightning does at the end of a fit is done."""
        self._leave(None)

    def on_exception(self, exception: BaseException) -> None:
        """Tell the other ranks."""
        with contextlib.suppress(OwnpaceError):  # Lightning raises the exception again
            self._leave(exception)

    def teardown(self) -> None:
        """Leave nothing behind; there may have been no data."""
        self._leave(None)
        for name in list(self._settings):
            setattr(self._trainer, name, self._settings.pop(name))
        super().teardown()

    def _leave(self, error: BaseException | None) -> None:
        fleet, self.fleet = self.fleet, None
        if fleet is not None:
            fleet.__exit__(None if error is None else type(error), error, None)
            self.summary = fleet.summary

    # Checkpoints: besides what Lightning saves, how far the fleet is, and what is left of its data.

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """What Lightning saves of an optimizer."""
        if self.fleet is not None:
            self._state = self.fleet.state_dict(models=False)  # first: parameter servers then give their state to it
        state: dict[str, Any] = super().optimizer_state(optimizer)
        return state

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Let rank 0 write it; one with optimizers also says how far the fleet is."""
        if self._state is not None and "optimizer_states" in checkpoint:
            checkpoint[_KEY] = self._state
        self._state = None
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read it, on every rank; the fleet goes on from it when training begins."""
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)
        self._loaded = checkpoint.get(_KEY) if self._trainer.state.fn == TrainerFn.FITTING else None
        return checkpoint

    # The loop over the data.

    @property
    def _trainer(self) -> Any:
        return self.lightning_module.trainer

    def process_dataloader(self, dataloader: object) -> object:
        """Training data come from the fleet; Lightning deals out all other data evenly."""
        if self._trainer.state.stage != RunningStage.TRAINING:
            return dataloader
        # The fleet accumulates: it leaves no batch over where an epoch ends.
        accumulated = self._taken_over(self._trainer, "accumulate_grad_batches", 1)
        self._data = TrainingData(
            dataloader,
            self.world_size,
            self._joined,
            accumulated=accumulated,
            limit=self._trainer.limit_train_batches,
            updates=self._updates_left,
            unknown_length=sys.maxsize,  # without any, Lightning would fetch each batch before the step of the last one
            sampling=self._sampling,
        )
        return self._data

    def _updates_left(self) -> int | None:
        limit: int = self._trainer.max_steps
        return None if limit < 0 else max(1, limit - self._trainer.global_step)

    def _joined(self) -> Joined:
        assert self.fleet is not None
        return self.fleet

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """How Lightning deals out data: training data not at all."""
        if self._trainer.state.stage == RunningStage.TRAINING:
            return {"num_replicas": 1, "rank": 0}
        kwargs: dict[str, Any] = super().distributed_sampler_kwargs
        return kwargs

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> object:
        """Compute a gradient and hand it to the fleet; then count the fleet's updates."""
        result = super().optimizer_step(optimizer, closure, model, **kwargs)
        self._count(about_to_count=True)
        return result

    def _count(self, *, about_to_count: bool = False) -> None:
        updates = self._steps_before + self._joined().updates
        self._trainer.fit_loop.epoch_loop.count_updates(updates, about_to_count=about_to_count)

    def end_loop(self) -> bool:
        """End the loop on all ranks, and agree on what Lightning goes on with; False if there was none."""
        data, trainer = self._data, self._trainer
        assert data is not None
        if not data.end():
            return False
        self._count()
        results = trainer.fit_loop.epoch_loop._results
        seen = self._joined().gather([trainer.should_stop, told(results)])
        # A rank that left the loop early has ended it for all; then none may begin another.
        trainer.should_stop = any(stop for stop, _ in seen)
        complete(results, [logged for _, logged in seen], self.lightning_module, self.reduce)
        return True

    # What one rank wants of the others.

    @property
    def _is_apart(self) -> bool:
        """Whether the ranks are at different batches, so that none can wait for another."""
        return self._data is not None and self._data.is_running

    def barrier(self, *args: object, **kwargs: object) -> None:
        """Wait for all ranks, but never in a loop: they are at different batches."""
        if not self._is_apart:
            super().barrier(*args, **kwargs)

    def broadcast(self, obj: object, src: int = 0) -> object:
        """What rank `src` has; in a loop, each rank decides for itself."""
        return obj if self._is_apart else super().broadcast(obj, src)

    def reduce(self, tensor: Any, group: object = None, reduce_op: object = "mean") -> Any:
        """The mean or sum over all ranks; in a loop, this rank's own value."""
        if not self._is_apart:
            if isinstance(tensor, Tensor) and reduce_op in ("mean", "avg") and not tensor.is_floating_point():
                # Lightning's counts of samples: gloo's mean of integers is cut off, and here ranks have unequal ones.
                tensor = tensor.to(get_default_dtype())
            return super().reduce(tensor, group, reduce_op)
        if not self._warned and self.world_size > 1 and self.is_global_zero:
            self._warned = True
            warnings.warn(
                "within an epoch the ranks are at different batches: values logged with sync_dist=True on each step "
                "are rank 0's own; with on_epoch=True they are reduced over all ranks",
                stacklevel=2,
            )
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002
        """Whether all (or any) ranks say so; in a loop, each decides for itself."""
        return decision if self._is_apart else bool(super().reduce_boolean_decision(decision, all))

    def all_gather(self, tensor: Tensor, group: object = None, sync_grads: bool = False) -> Tensor:
        """All ranks' tensors, between two loops."""
        if self._is_apart and self.world_size > 1:
            raise InputError(
                "all_gather was called in training_step, where the ranks are at different batches; drop it"
            )
        gathered: Tensor = super().all_gather(tensor, group, sync_grads)
        return gathered


def _refuse(trainer: Any, layer_sync: object) -> None:
    """Raise for what cannot work where each rank has its own number of batches."""
    if trainer.val_check_interval != 1.0 or trainer.check_val_every_n_epoch is None:
        raise InputError(
            f"val_check_interval is {trainer.val_check_interval}; with a fleet, validation comes at the end of an epoch"
        )
    if any(config.interval == "step" and config.frequency != 1 for config in trainer.lr_scheduler_configs):
        raise InputError('a scheduler has interval "step" and a frequency; with a fleet its frequency must be 1')
    if layer_sync is not None:
        raise InputError("sync_batchnorm waits for all ranks at every batch, which a fleet does not; leave it out")
    if (
        trainer.gradient_clip_val
        and str(trainer.gradient_clip_algorithm or "norm").rsplit(".", 1)[-1].lower() != "norm"
    ):
        raise InputError('gradient_clip_algorithm is "value"; a fleet clips the norm of the whole update: use "norm"')
