"""A script's models and optimizers, while they are those of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ownpace.core.contract.errors import InputError
from ownpace.core.settings import positive
from ownpace.drop_in.between_ranks import BetweenRanks
from ownpace.drop_in.loops import Wrapped
from ownpace.drop_in.other_steps import OtherSteps
from ownpace.drop_in.progress import FleetProgress
from ownpace.drop_in.schedule import Every, FollowedSchedule, Reached, StepsOfScript, check_schedule
from ownpace.drop_in.taken_early import TakenEarly
from ownpace.engines.process.node.user_pair import UserPair
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.run.joining import LoopRun

Model = TypeVar("Model", bound=nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)
Scheduler = TypeVar("Scheduler", bound=LRScheduler)
T = TypeVar("T")


class FleetModels(BetweenRanks):
    """What a script trains with the fleet: its models, their optimizers, and schedules of their learning rates."""

    def __init__(self, run: LoopRun) -> None:
        super().__init__(run)
        self._wrapped: Wrapped | None = None
        self._models: Sequence[nn.Module] = ()
        # Of those that were started: a schedule that was made for them ends with the data, however many are left.
        self._progress = FleetProgress(self.num_workers)
        self._schedules: list[FollowedSchedule] = []
        self._in_steps: list[LRScheduler] = []
        self._taken_early = TakenEarly()
        self._other_steps = OtherSteps(
            lambda: () if self._wrapped is None else self._wrapped.parameters.pairs,
            lambda: run.is_open and run.loop.is_running,
            alone=run.world_size == 1,
        )

    def wrap(
        self,
        model: Model,
        optimizer: AnyOptimizer,
        *,
        scheduler: LRScheduler | None = None,
        clip_norm: float | None = None,
        overlap: bool | None = None,
    ) -> tuple[Model, AnyOptimizer]:
        """Make a model and its optimizer those of the fleet; they are the same objects.

        Call it once for each pair, before the first loop, where there are several (a GAN's). Each `step()` of an
        optimizer then brings the gradient of its own parameters, which are averaged over its own samples.

        Args:
            model: Any module. Its parameters become views of one flat vector, and those of rank 0 when the first loop
                begins: seed all ranks alike if the script copies them (an average) or evaluates before that.
            optimizer: Any torch optimizer. Its parameters are what is trained; frozen ones stay untouched until they
                have a gradient. Parameters of the model that are not the optimizer's only begin as those of rank 0.
            scheduler: As for `fleet.schedule`: a learning-rate scheduler that is to follow the fleet.
            clip_norm: Clip the norm of the fleet's mean gradient of this model to this, before each step.
            overlap: Send each layer's gradient while the backward pass is still at the others, where the algorithm
                allows it. That needs a step for each batch, and gradients that nothing changes between `backward()` and
                `step()` (clipping, a GradScaler): otherwise it is refused, not ignored. None: if the first steps of the
                script are like that.
        """
        if self._run.is_open:
            raise InputError(
                "fleet.wrap was called after the first loop; wrap all models before it, or end the `with` and join anew"
            )
        positive(clip_norm=clip_norm)
        pairs = [] if self._wrapped is None else list(self._wrapped.parameters.pairs)
        if pairs and (overlap or (self._wrapped is not None and self._wrapped.overlap)):
            raise InputError("overlap=True works with one model only; leave it out")
        pair = UserPair(model, optimizer, clip_norm)
        self._wrapped = Wrapped(UserParameters([*pairs, pair]), overlap)
        self._models = self._wrapped.models
        # After the pair was made, which has kept the real step; and only if nothing was refused.
        pair.replace_step(partial(self._stepped, len(pairs)))
        self._other_steps.watch()
        if scheduler is not None:
            self.schedule(scheduler)
        return model, optimizer

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """For a script that accumulates gradients and says so, as with DistributedDataParallel: only `step()` sends.

        A script may as well leave it out: batches without a step are accumulated in any case.
        """
        if self._run.is_open:
            self._run.loop.overlap.turn_off()
        yield

    def unwrap(self) -> None:
        """Make the models and optimizers ordinary ones again: each parameter in memory of its own, no hooks.

        It happens by itself at the end of the `with` block, however that ends. Called in it, it ends the training:
        no further loop can begin.
        """
        if self._run.is_open and self._run.loop.is_running:
            raise InputError("fleet.unwrap was called within a loop over fleet.batches; end that loop before")
        for schedule in self._schedules:
            schedule.release()  # an optimizer that is the script's own needs its schedule's steps
        self._let_go()

    def _let_go(self) -> None:
        self._other_steps.release()
        if self._wrapped is not None:
            self._run.let_go()
            self._wrapped.parameters.release()
            self._models, self._wrapped = self._wrapped.models, None

    def _stepped(self, number: int) -> None:
        if not self._run.is_open or not self._run.loop.is_running:
            how = "take the batches from it, each after the step before"
            raise InputError(f"optimizer.step was called outside of fleet.batches; {how}")
        self._taken_early.step()
        if self._wrapped is not None and len(self._wrapped.parameters.pairs) == 1:  # several step by turns
            self._progress.stepped(self._run.loop.batches)
        self._run.take_gradient(number)

    def schedule(self, scheduler: Scheduler, *, every: Every = "update") -> Scheduler:
        """Let a learning-rate scheduler follow the fleet; returns the same object.

        Its position is the number of samples that the fleet has learnt from, over batch size times workers (times the
        batches of one `optimizer.step()`, where the script accumulates): that of an ordinary loop over the same data.
        It is advanced on every rank right after each update, so it ends with the
        data, however fast each rank is. The script's own `scheduler.step()` does nothing within the `with`, and may
        stay.

        Args:
            scheduler: Any of torch's, or made of them, except ReduceLROnPlateau.
            every: `update`: it counts updates; `epoch`: passes over the data.
        """
        check_schedule(scheduler, every)
        progress, run = self._progress, self._run
        if every == "update":
            watch = StepsOfScript(lambda: run.is_open and run.loop.is_running)
            followed = FollowedSchedule(scheduler, lambda: Reached(progress.known_steps, progress.steps), watch)
            self._in_steps.append(scheduler)
        else:
            followed = FollowedSchedule(scheduler, lambda: Reached(progress.epoch, progress.epoch))
        progress.lead(followed)
        self._schedules.append(followed)
        return scheduler

    def evaluate(self, function: Callable[..., T]) -> T:
        """Call `function(model)` with the global parameters as they are now, in evaluation mode, without gradients.

        Of several models, it gets all: `function(generator, discriminator)`, in the order of `wrap`.
        Only this worker evaluates; no other waits for it, so it may be called at any time and by any worker.
        """
        models, run = self._models, self._run
        if not models:
            raise InputError("fleet.evaluate needs a model; call fleet.wrap(model, optimizer) before it")
        # Each by itself: a user may keep some layers in evaluation mode while training.
        were_training = [module for model in models for module in model.modules() if module.training]
        for model in models:
            model.eval()
        try:
            with torch.no_grad():
                if not run.is_open or run.is_over or self._wrapped is None:
                    return function(*models)
                with run.at_global_parameters():
                    return function(*models)
        finally:
            for module in were_training:
                module.training = True
