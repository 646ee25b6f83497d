"""ownpace in Lightning Fabric: `Fabric(strategy=OwnpaceFabricStrategy("stride"))`."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from lightning.fabric.strategies import DDPStrategy
from lightning.fabric.strategies.strategy import _BackwardSyncControl
from torch import Tensor, nn
from torch.optim import Optimizer

from ownpace.algorithms import DEFAULT
from ownpace.auto import join
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, OwnpaceError
from ownpace.drop_in import Joined
from ownpace.integrations.closures import accept_closures
from ownpace.integrations.processes import AsTorchrunSays
from ownpace.integrations.training_data import TrainingData
from ownpace.report.summary import Summary


class OwnpaceFabricStrategy(AsTorchrunSays, DDPStrategy):
    """Lets each process of a Fabric script train at its own pace."""

    def __init__(
        self,
        algorithm: str | Algorithm = DEFAULT,
        *,
        parameters: Mapping[str, object] | None = None,
        sampling: str = "queue",
        clip_norm: float | None = None,
        join: Mapping[str, Any] | None = None,
        **fabric: Any,
    ) -> None:
        """A strategy for `Fabric(strategy=…)`.

        Args:
            algorithm: A name (`ownpace list` describes them), `auto` (choose for me), or an algorithm of your own.
            parameters: Those of the algorithm of that name.
            sampling: Which rank gets which samples, as in `fleet.batches`.
            clip_norm: Clip the norm of each update's gradient; `fabric.clip_gradients` clips this rank's part.
            join: Further arguments of `ownpace.join`.
            **fabric: Of Fabric's DDPStrategy: accelerator, checkpoint_io, process_group_backend …
        """
        super().__init__(**fabric)
        self._joining = {"algorithm": algorithm, "parameters": parameters, **(join or {})}
        self._sampling = sampling
        self._clip_norm = clip_norm
        self._backward_sync_control = _NothingToBlock()
        self._module: nn.Module | None = None
        self._loops: list[EitherLoader] = []
        self.fleet: Joined | None = None
        """The fleet, from `fabric.setup` on, until `finish` or the end of the script."""
        self.summary: Summary | None = None
        """The run in numbers, once it has ended."""

    def _setup_distributed(self) -> None:
        if self.world_size > 1:
            super()._setup_distributed()

    def setup_module(self, module: nn.Module) -> nn.Module:
        """The model stays as it is."""
        self._module = module
        return module

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Join the fleet, with the model that was set up before."""
        if self._module is None:
            raise InputError("fabric.setup_optimizers was called before fabric.setup_module; call that first")
        if self.fleet is None:
            self.fleet = join(**self._joining)
            self.fleet.__enter__()
            atexit.register(self.finish)
        self.fleet.wrap(self._module, optimizer, clip_norm=self._clip_norm)
        accept_closures(optimizer)
        return optimizer

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """Join the fleet with a model and its optimizer."""
        self.setup_module(module)
        return module, [self.setup_optimizer(optimizer) for optimizer in optimizers], scheduler

    def finish(self) -> None:
        """End the run: all ranks have equal, ordinary models again. The end of the script does it, too."""
        atexit.unregister(self.finish)
        fleet, self.fleet = self.fleet, None
        if fleet is None:
            return
        # Set where the script ends because of it.
        error: BaseException | None = getattr(sys, "last_value", None)
        with contextlib.nullcontext() if error is None else contextlib.suppress(OwnpaceError):
            fleet.__exit__(None if error is None else type(error), error, None)
        self.summary = fleet.summary

    def process_dataloader(self, dataloader: Any) -> Any:
        """Data that are gone through to train come from the fleet; others are dealt out evenly, as Fabric does."""
        self._loops.append(EitherLoader(dataloader, self))
        return self._loops[-1]

    def joined(self) -> Joined:
        """The fleet."""
        if self.fleet is None:
            raise InputError("batches were taken before fabric.setup(model, optimizer); call that first")
        return self.fleet

    @property
    def trains(self) -> bool:
        """Whether the model is in training mode: then a loop over data is one of the fleet."""
        return self._module is not None and self._module.training

    @property
    def sampling(self) -> str:
        """Which rank gets which samples."""
        return self._sampling

    # What one rank wants of the others: it would wait for ever in a loop, where they are at different batches.

    @property
    def _is_apart(self) -> bool:
        return self.world_size > 1 and any(loop.is_running for loop in self._loops)

    def _check_together(self, what: str) -> None:
        if self._is_apart:
            raise InputError(
                f"fabric.{what} was called in a training loop, where ranks are at different batches; move it"
            )

    def barrier(self, *args: object, **kwargs: object) -> None:
        """Wait for all ranks; but not in a loop, where `fabric.save` comes here, too."""
        if not self._is_apart:
            super().barrier(*args, **kwargs)

    def broadcast(self, obj: object, src: int = 0) -> object:
        """What rank `src` has."""
        self._check_together("broadcast")
        return super().broadcast(obj, src)

    def all_reduce(self, tensor: Tensor, group: object = None, reduce_op: object = "mean") -> Tensor:
        """The mean or sum over all ranks."""
        self._check_together("all_reduce")
        reduced: Tensor = super().all_reduce(tensor, group, reduce_op)
        return reduced

    def all_gather(self, tensor: Tensor, group: object = None, sync_grads: bool = False) -> Tensor:
        """All ranks' tensors."""
        self._check_together("all_gather")
        gathered: Tensor = super().all_gather(tensor, group, sync_grads)
        return gathered


class EitherLoader:
    """A DataLoader that was set up by Fabric, which does not say what for: the model's mode does, when it is used."""

    def __init__(self, loader: Any, strategy: OwnpaceFabricStrategy) -> None:
        self._loader = loader
        self._strategy = strategy
        self._training = TrainingData(loader, strategy.world_size, strategy.joined, sampling=strategy.sampling)
        self.dataset = loader.dataset
        self.sampler = loader.sampler
        self.batch_sampler = loader.batch_sampler

    @property
    def is_running(self) -> bool:
        """Whether a loop of the fleet runs over it."""
        return self._training.is_running

    def __len__(self) -> int:
        return len(self._training if self._strategy.trains else self._loader)

    def __iter__(self) -> Iterator[Any]:
        if not self._strategy.trains:
            yield from self._loader
            return
        fleet = self._strategy.joined()
        before = fleet.updates
        yield from self._training
        if fleet.updates == before and torch.is_grad_enabled():
            raise InputError(
                "a loop over data ended without an update; call model.eval() before one that is not to train, and "
                "optimizer.step() in one that is"
            )


class _NothingToBlock(_BackwardSyncControl):
    def no_backward_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        """Nothing is sent before `optimizer.step()`."""
        return contextlib.nullcontext()
