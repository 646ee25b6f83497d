"""`ownpace.join`, and the fleet that it returns: what a user's script calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ownpace.algorithms import DEFAULT, make_algorithm
from ownpace.core.contract import events
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, unknown
from ownpace.core.learning.sampling import Sampling
from ownpace.core.settings import positive
from ownpace.drop_in.batches import Batches
from ownpace.drop_in.between_ranks import BetweenRanks
from ownpace.drop_in.checkpoint import Checkpoint
from ownpace.drop_in.closing import last_line, warn_of_large_updates
from ownpace.drop_in.data import Asked, read_data
from ownpace.drop_in.digest import SampleDigests
from ownpace.drop_in.explanations import explain
from ownpace.drop_in.files import read, write
from ownpace.drop_in.loops import Loops, Wrapped
from ownpace.drop_in.progress import FleetProgress
from ownpace.drop_in.schedule import Every, FollowedSchedule, check_schedule
from ownpace.engines.job import OnProgress
from ownpace.engines.process.node.user_pair import UserPair
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.run.joining import LoopRun
from ownpace.engines.process.run.opening import FleetOptions
from ownpace.engines.process.run.rendezvous import Environment, default_timeout_s
from ownpace.report.summary import Summary, SummaryBuilder

Model = TypeVar("Model", bound=nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)
Scheduler = TypeVar("Scheduler", bound=LRScheduler)
T = TypeVar("T")


def join(
    algorithm: str | Algorithm = DEFAULT,
    *,
    parameters: Mapping[str, object] | None = None,
    servers: int | Sequence[int] = 1,
    backend: str | None = None,
    seed: int = 0,
    detail: bool = False,
    on_event: events.Emit | None = None,
    on_progress: OnProgress | None = None,
    timeout_s: float | None = None,
    on_failure: Literal["continue", "stop"] = "continue",
    min_workers: int = 1,
    quiet: bool = False,
) -> Joined:
    """Join the other processes that torchrun started; alone, be a fleet of one.

    Args:
        algorithm: A name (`ownpace list` describes them) or an algorithm of your own.
        parameters: Those of the algorithm of that name.
        servers: Where the algorithm has parameter servers: how many, on the first host; or the host of each.
        backend: `gloo` or `nccl` (None: nccl where every worker of a host has a GPU of its own).
        seed: Of the order of the samples.
        detail: Record every computation, transfer and wait, not only sums.
        on_event: Gets every event, on rank 0 (`core.contract.events`).
        on_progress: Called now and then on rank 0 with samples, paces and busy shares.
        timeout_s: How long to wait for the others at the start (None: what OWNPACE_TIMEOUT_S says, or two minutes).
        on_failure: When a rank dies: `continue` without it, or `stop`. Rank 0 cannot be done without.
        min_workers: End the run if fewer workers than this are left.
        quiet: Do not say at the end, on rank 0 and standard error, how many samples and updates there were.
    """
    if isinstance(algorithm, str):
        algorithm = make_algorithm(algorithm, parameters)
    if backend not in (None, "gloo", "nccl"):
        raise unknown("backend", str(backend), ("gloo", "nccl"))
    hosts = [0] * servers if isinstance(servers, int) else list(servers)
    timeout_s = default_timeout_s() if timeout_s is None else timeout_s
    positive(servers=len(hosts), timeout_s=timeout_s, min_workers=min_workers)
    if on_failure not in ("continue", "stop"):
        raise unknown("on_failure", str(on_failure), ("continue", "stop"))
    failing = on_failure, min_workers
    options = FleetOptions(algorithm, hosts, backend, seed, detail, on_event, on_progress, timeout_s, *failing)
    return Joined(options, quiet=quiet)


class Joined(BetweenRanks):
    """This process as a worker of the fleet. Use it as a context manager."""

    def __init__(self, options: FleetOptions, *, quiet: bool = False) -> None:
        self._algorithm = options.algorithm
        self._quiet = quiet
        started = Environment.read()
        environment = started or Environment.alone()
        if options.min_workers > environment.world_size:
            raise InputError(
                f"min_workers is {options.min_workers}, but {environment.world_size} ranks were started; use at most "
                f"{environment.world_size}"
            )
        super().__init__(LoopRun(options, environment, alone=started is None))
        self._wrapped: Wrapped | None = None
        self._digests = SampleDigests()
        self._models: Sequence[nn.Module] = ()
        # Of those that were started: a schedule that was made for them ends with the data, however many are left.
        self._progress = FleetProgress(self.num_workers)
        self._run.on_progress = self._progress.take
        self._run.script = self._progress
        self._schedules: list[FollowedSchedule] = []
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
            self.summary = builder.summary()
            if self.rank == 0 and self.summary.updates:
                if not self._quiet:
                    print(last_line(self.summary, self._algorithm, self.num_workers), file=sys.stderr)
                batch_size = max(self._progress.largest_batch, self._run.loop.largest_step)
                warn_of_large_updates(self.summary, self._algorithm, batch_size, self.num_workers)

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
            model: Any module. Its parameters become views of one flat vector, and begin as those of rank 0.
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
            raise InputError("fleet.wrap was called after the first loop; wrap all models before it")
        positive(clip_norm=clip_norm)
        pairs = [] if self._wrapped is None else list(self._wrapped.parameters.pairs)
        if pairs and (overlap or (self._wrapped is not None and self._wrapped.overlap)):
            raise InputError("overlap=True works with one model only; leave it out")
        pair = UserPair(model, optimizer, clip_norm)
        self._wrapped = Wrapped(UserParameters([*pairs, pair]), overlap)
        self._models = self._wrapped.models
        # After the pair was made, which has kept the real step; and only if nothing was refused.
        pair.replace_step(partial(self._stepped, len(pairs)))
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
        if self._wrapped is not None:
            self._run.let_go()
            self._wrapped.parameters.release()
            self._models, self._wrapped = self._wrapped.models, None

    def schedule(self, scheduler: Scheduler, *, every: Every = "update") -> Scheduler:
        """Let a learning-rate scheduler follow the fleet; returns the same object.

        Its position is the number of samples that the fleet has learnt from, over batch size times workers: that of an
        ordinary loop over the same data. It is advanced on every rank right after each update, so it ends with the
        data, however fast each rank is. The script's own `scheduler.step()` does nothing within the `with`, and may
        stay.

        Args:
            scheduler: Any of torch's, or made of them, except ReduceLROnPlateau.
            every: `update`: it was made for so many updates; `epoch`: for so many passes over the data.
        """
        check_schedule(scheduler, every)
        progress = self._progress
        followed = FollowedSchedule(scheduler, lambda: progress.steps if every == "update" else progress.epoch)
        progress.lead(followed)
        self._schedules.append(followed)
        return scheduler

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
            updates: End after so many updates of the fleet, on all ranks after the same one. Where a sum is always
                under way, it is still applied: one update more. Where servers make updates, so are gradients under way.
            samples: End after so many samples of the fleet.
            sampling: `queue`: every sample once per epoch, at any pace; `iid`: with replacement; `shards`: equal parts.
            shuffle: False: in the order of the data (None: as the DataLoader does; of anything else, True).
            sampler: Gives the order of the indices, which must be the same on every worker.
            drop_last: Leave out what does not fill a batch.
            sharded: A stream is already another one on each worker: each takes all of its own.
            **loader: For torch's DataLoader: num_workers, collate_fn …
        """
        order = sampling, shuffle, sampler, drop_last, sharded
        asked = Asked(batch_size, micro_batch, epochs, updates, samples, *order, loader)
        return Batches(Loops(self._run, lambda: self._wrapped, self._progress, self._digests), read_data(data, asked))

    def state_dict(self) -> dict[str, Any]:
        """All that a run needs to go on later, on as many ranks as it then has: plain values and tensors.

        Models, optimizers (also of parameter servers), schedulers given to the fleet, what the algorithm keeps, how far
        the fleet is and which samples of the running loop are left, as of the latest update that this rank knows of;
        and this rank's random numbers. One rank's state is enough for all; no other waits for it. Write it with
        `fleet.save`, or with torch.save for torch.load(…, weights_only=True).
        """
        return self._checkpoint().read()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `state_dict`, the same on all ranks: after `wrap` and `schedule`, before any loop.

        If it was taken within a loop over `fleet.batches`, the next loop goes on with that one: given the same
        arguments, it deals the samples that are left.
        """
        self._checkpoint().restore(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict` to a file: safetensors if its name ends so, else for torch.load(…, weights_only=True).

        The file that was there before is replaced only when the new one is whole.
        """
        write(self.state_dict(), path)
        if self._run.has_met and not self._run.is_over:
            self._run.presence.saved(str(Path(path).resolve()))  # what to go on from, if rank 0 dies

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file of `save`, as with `load_state_dict`."""
        self.load_state_dict(read(path))

    def _checkpoint(self) -> Checkpoint:
        if self._wrapped is None:
            raise InputError("a checkpoint needs a model; call fleet.wrap(model, optimizer) before it")
        optimizers = [pair.optimizer for pair in self._wrapped.parameters.pairs]
        schedulers = [followed.scheduler for followed in self._schedules]
        return Checkpoint(self._run, self._progress, self._wrapped.models, optimizers, schedulers)

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

    def _stepped(self, number: int) -> None:
        if not self._run.is_open or not self._run.loop.is_running:
            how = "take the batches from it, each after the step before"
            raise InputError(f"optimizer.step was called outside of fleet.batches; {how}")
        self._run.take_gradient(number)
