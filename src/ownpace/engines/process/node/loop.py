"""A worker whose gradients come from a user's own training loop.

When the algorithm asks for a gradient its coroutine is suspended. The loop is handed as many samples as were asked for,
brings their gradient, and the coroutine goes on until it asks for the next. Each loop over the data runs the algorithm
once from its beginning to its end: it is a generation of the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import Batch, Gradient, Group, Parameters
from ownpace.engines.process.node.finite import check_finite
from ownpace.engines.process.node.gpu import Stopwatch
from ownpace.engines.process.node.layer_sender import LayerSender, no_overlap
from ownpace.engines.process.node.nodes import ProcessWorker
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.talk.control import Pull, Pulled
from ownpace.engines.process.talk.wire import Packet

_NOTHING_LEFT_S = 0.002
"""How often a worker without data checks whether others have any left, where servers would answer at once."""


class LoopGradient:
    """A gradient that the algorithm waits for, and the user's loop will bring."""

    def __init__(self, samples: int, at: Parameters | None, plus: Gradient | None, versions: tuple[int, ...]) -> None:
        self.samples = samples
        self.at = at
        self.plus = plus
        self.versions = versions
        self.gradient: Gradient | None = None
        self.sum: LoopSum | None = None
        """The sum that it is to be handed to as soon as it is computed."""

    @property
    def done(self) -> bool:
        return self.gradient is not None

    def __await__(self) -> Generator[object, None, Gradient]:
        while self.gradient is None:
            yield self
        return self.gradient


class LoopSum:
    """A sum that begins when the user's loop has brought this worker's gradient."""

    def __init__(self, asked: LoopGradient, group: Group) -> None:
        self._asked = asked
        self.group = group
        self.begun: Pending[Gradient] | None = None

    @property
    def done(self) -> bool:
        return self.begun is not None and self.begun.done

    def __await__(self) -> Generator[object, None, Gradient]:
        yield from self._asked.__await__()
        assert self.begun is not None
        total = yield from self.begun.__await__()
        return total


class LoopGradients:
    """The worker's source of gradients: it notes what is asked for, and the loop answers."""

    def __init__(self, worker: ProcessWorker) -> None:
        self._worker = worker
        self.asked: LoopGradient | None = None

    def load(self, samples: int) -> Pending[Batch]:
        raise InputError("this algorithm loads its samples itself, which only `ownpace train` can do; use another")

    def ask(self, samples: int, at: Parameters | None, batch: Batch | None, plus: Gradient | None) -> LoopGradient:
        self.asked = LoopGradient(samples, at, plus, self._worker.progress.versions_at(at))
        return self.asked

    def finish_asked(self) -> None:
        """The loop is not here to compute: whatever depends on a gradient awaits it."""

    def hand_over(self, asked: Pending[Gradient], group: Group) -> Pending[Gradient]:
        assert isinstance(asked, LoopGradient)
        if asked.gradient is not None:
            return self._worker.all_reduce(asked.gradient, group)
        asked.sum = LoopSum(asked, group)
        return asked.sum

    def buffers(self) -> Tensor | None:
        return None

    def take_data_range(self, start: float, stop: float) -> None:
        """`fleet.batches` has dealt the data out already."""


class UserLoop:
    """Drives the algorithm's coroutine from a user's loop."""

    def __init__(self, worker: ProcessWorker, user: UserParameters, *, overlap: bool) -> None:
        self._worker = worker
        self._user = user
        self._source = LoopGradients(worker)
        worker.source = self._source
        self._stopwatch = Stopwatch(user.values.device, worker.context.clock)
        self._overlap = overlap
        self._sender: LayerSender | None = None
        if overlap:
            for index, parameter in enumerate(user.parameters):
                parameter.register_post_accumulate_grad_hook(partial(self._layer_is_there, index))
        self._coroutine: Coroutine[object, None, None] | None = None
        self._handed_out = 0
        self._begun_s = 0.0
        self._last_version = math.inf
        self._point = ModelPoint(user.values)
        self.largest_step = 0
        """The most samples that the user's loop has taken for one `optimizer.step()`."""
        self.is_running = False
        """Whether the user's loop runs."""
        self.has_failed = False
        """Whether the algorithm has failed: then nothing is left to agree on."""

    @property
    def is_waiting(self) -> bool:
        """Whether the algorithm waits for a gradient."""
        return self._coroutine is not None

    @property
    def has_made_its_updates(self) -> bool:
        """Whether as many updates have been made, as far as is known here, as the loop was to make."""
        return self._worker.progress.version >= self._last_version

    def wanted_samples(self) -> int:
        """How many samples the algorithm wants next; roughly, while it has them computed already."""
        return self._worker.micro_batch if self._source.asked is None else self._source.asked.samples

    def begin(
        self, algorithm: Algorithm, generation: int, sizes: tuple[int, int], samples: float, updates: float = math.inf
    ) -> None:
        """Let the algorithm learn from this many samples, in at most about this many updates."""
        worker = self._worker
        self._user.check_place()
        # Before the coroutine starts: its first message must carry the new generation's number.
        worker.begin(generation)
        worker.batch_size, worker.micro_batch = sizes
        progress = worker.progress
        self._last_version = progress.version + updates
        # With servers the coroutine goes on when the budget is spent, with batches of nothing, as it does when the data
        # has ended: a server may wait for a message from a worker that would have left.
        alone = not len(worker.servers)
        progress.budget = progress.samples + samples if alone else math.inf
        progress.last_version = self._last_version if alone else math.inf
        self._coroutine = algorithm.worker(worker)
        self._go_on()

    def hand_out(self, samples: int) -> None:
        """The loop has got a batch."""
        if self._handed_out and not self._user.has_gradient:
            self._handed_out = 0  # the gradient of the batch before was thrown away: a GradScaler does that
        if not self._handed_out:
            self._begun_s = self._worker.context.clock.now()
            self._stopwatch.start()
        if self._sender is not None:
            raise no_overlap("two batches were taken before optimizer.step")
        asked = self._source.asked
        # Only now: between a step and the next batch, the model is at its own parameters.
        if asked is not None and asked.at is not None and not self._point.is_elsewhere:
            self._point.visit(asked.at.values)
        if self._overlap and asked is not None and asked.sum is not None and asked.plus is None:
            collectives = self._worker.sums.of(asked.sum.group)
            if not collectives.alone:
                self._sender = LayerSender(collectives, self._worker.context.layout, samples)
        self._handed_out += samples

    def _layer_is_there(self, index: int, parameter: Tensor) -> None:
        if self._sender is not None:
            self._sender.take(index, parameter.grad)

    def take_gradient(self) -> None:
        """The loop has called `optimizer.step()`: let the algorithm go on with the gradient."""
        if self._coroutine is None:
            return  # the run is over; the loop ends with this batch
        samples = self._handed_out
        if not samples:
            raise InputError("optimizer.step was called twice for one batch of fleet.batches; call it once")
        if not self._user.has_gradient:
            raise InputError("optimizer.step was called, but no parameter has a gradient; call loss.backward() before")
        self._handed_out = 0
        self.largest_step = max(self.largest_step, samples)
        seconds = self._stopwatch.stop(samples)
        asked = self._source.asked
        assert asked is not None
        context = self._worker.context
        context.reporter.computed(self._begun_s, context.clock.now(), samples, asked.versions[0])
        self._answer(asked, samples, seconds)

    def _answer(self, asked: LoopGradient, samples: int, seconds: float) -> None:
        """Give the algorithm the gradient of this many samples, or of none, and let it go on."""
        # The model goes back to its own parameters before the algorithm goes on: its next step is made there.
        self._point.leave()
        sums = self._worker.sums
        sender, self._sender = self._sender, None
        if asked.sum is None:
            asked.gradient = self._gradient(asked, samples, seconds, None, None)
        else:
            # The gradient is gathered where the sum will read it: a copy less, and memory for one less.
            collectives = sums.of(asked.sum.group)
            buffer = collectives.buffer() if sender is None else sender.buffer
            asked.gradient = self._gradient(asked, samples, seconds, collectives.values(buffer), sender)
            buckets = None if sender is None else sender.buckets
            asked.sum.begun = sums.start(collectives, asked.gradient, buffer, buckets)  # type: ignore[assignment]
        # Only now: a gradient that was refused may be brought again.
        self._source.asked = None
        self._go_on()

    def _gradient(
        self, asked: LoopGradient, samples: int, seconds: float, out: Tensor | None, sender: LayerSender | None
    ) -> Gradient:
        if sender is not None:
            total = sender.complete(self._user.parameters)
        elif samples:
            total = self._user.gather(samples, out)
            if len(self._worker.servers):  # there, each gradient is an update of its own
                self._user.clip(total, samples)
        else:
            total = torch.zeros_like(self._user.values) if out is None else out.zero_()
        context = self._worker.context
        # Not on a GPU, for which it would wait, nor with buckets under way, which are being summed in place.
        if samples and total.device.type == "cpu" and not (sender is not None and sender.buckets.works):
            all_ = context.reporter.due(context.clock.now())
            name, known = context.address.name, self._worker.progress.samples
            check_finite(name, known, 0.0, total, context.layout, all_=all_)
        gradient = Gradient(total, samples, asked.versions, 0.0, seconds)
        if asked.plus is not None:
            gradient = gradient + asked.plus
            if out is not None:
                gradient.total = out.copy_(gradient.total)
        return gradient

    def _go_on(self) -> None:
        """Run the algorithm until it wants a gradient, or ends."""
        assert self._coroutine is not None
        try:
            self._coroutine.send(None)
        except StopIteration:
            self._coroutine = None
        except BaseException:
            # Whatever was raised, the coroutine cannot be resumed.
            self._coroutine = None
            self.has_failed = True
            raise

    def tell_to_stop(self) -> None:
        """Come to an end, and let the others know with what is sent next."""
        self._worker.inbox.told_to_stop = True

    def finish(self, count_ended: Callable[[int], int]) -> None:
        """No data is left here: contribute nothing until none is left on any worker.

        A shared count of workers tells that, not the samples learnt from: batches without a step are lost.
        """
        self._handed_out = 0
        # Buckets that left during the backward pass are in the sum already, on all members: their samples count.
        left = 0 if self._sender is None else self._sender.give_up()
        count_ended(1)
        while self._coroutine is not None:
            assert self._source.asked is not None
            # Only when all have ended: a worker that stopped earlier would leave the others alone in a sum.
            if count_ended(0) >= len(self._worker.workers):
                self.tell_to_stop()
            elif len(self._worker.servers):
                time.sleep(_NOTHING_LEFT_S)
            self._answer(self._source.asked, left, 0.0)
            left = 0

    @property
    def global_values(self) -> Tensor:
        """The global parameters, wherever the user's model is; with servers, as they were last pulled."""
        if self._point.own is not None:
            return self._point.own
        return self._worker.learner.global_values

    @contextmanager
    def at_global_parameters(self) -> Iterator[None]:
        """Let the user's model have the global parameters for a while."""
        user, values = self._user, self.global_values
        if values is user.values and not len(self._worker.servers):
            yield
            return
        here = user.values.clone()
        if values is not user.values:
            user.overwrite(values)
        for parameters in held_by_servers(self._worker):
            user.place(parameters.values, parameters.shard)
        try:
            yield
        finally:
            user.overwrite(here)


class ModelPoint:
    """Where a user's model is: at its own parameters, or at a point that the algorithm wants a gradient at."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self.own: Tensor | None = None
        """Its own parameters, while the model is elsewhere."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the model is at another point than its own parameters."""
        return self.own is not None

    def visit(self, values: Tensor) -> None:
        """Go to a point."""
        self.own = self._values.clone()
        self._values.copy_(values)

    def leave(self) -> None:
        """Go back to the model's own parameters."""
        if self.own is not None:
            self._values.copy_(self.own)
            self.own = None


def held_by_servers(worker: ProcessWorker) -> Iterator[Parameters]:
    """What the servers hold now, shard by shard."""
    # All are asked before the first answer is awaited: servers answer at the same time.
    for server in worker.servers:
        worker.context.mailbox.send(server.name, Packet(control=Pull()))
    for _ in worker.servers:
        pulled, values = worker.inbox.wait_for(Pulled)
        assert isinstance(values, Tensor)
        worker.progress.hear(pulled.samples, stop=False)
        shard = worker.context.roster.shards[pulled.shard]
        yield Parameters(values.to(worker.context.like.device), pulled.version, shard)
