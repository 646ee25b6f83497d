"""A worker whose gradients come from a user's own training loop.

When the algorithm asks for a gradient its coroutine is suspended. The loop is handed as many samples as were asked for,
brings their gradient, and the coroutine goes on until it asks for the next. Each loop over the data runs the algorithm
once from its beginning to its end: it is a generation of the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.values import Gradient, Parameters
from ownpace.engines.process.node.finite import check_finite
from ownpace.engines.process.node.gpu import Stopwatch
from ownpace.engines.process.node.layer_sender import LayerSender, no_overlap
from ownpace.engines.process.node.loop_gradients import Brought, LoopGradient, LoopGradients
from ownpace.engines.process.node.model_point import ModelPoint
from ownpace.engines.process.node.nodes import ProcessWorker
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.talk.control import Pull, Pulled
from ownpace.engines.process.talk.wire import Packet

_NOTHING_LEFT_S = 0.002
"""How often a worker without data checks whether others have any left, where servers would answer at once."""


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
        self._hooks: dict[int, RemovableHandle] = {}
        self._is_free = False
        self._coroutine: Coroutine[object, None, None] | None = None
        self._handed_out = [0] * len(user.pairs)
        """Of each model, the samples that were handed out since its latest step."""
        self._new = 0
        """Those of them that no model's gradient has been brought of."""
        self._begun_s = 0.0
        self._last_version = math.inf
        self._point = ModelPoint(user)
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
        if self._overlap:
            self._put_hooks()
        # Before the coroutine starts: its first message must carry the new generation's number.
        worker.begin(generation)
        worker.batch_size, worker.micro_batch = sizes
        progress = worker.progress
        self._last_version = progress.version + updates
        # With servers the coroutine goes on when the budget is spent, with batches of nothing, as it does when the data
        # has ended: a server may wait for a message from a worker that would have left. With several models, the last
        # samples are counted before the last model has learnt from them.
        alone = not len(worker.servers)
        progress.budget = progress.samples + samples if alone and len(self._user.pairs) == 1 else math.inf
        progress.last_version = self._last_version if alone else math.inf
        self._coroutine = algorithm.worker(worker)
        self._go_on()

    def _put_hooks(self) -> None:
        # For every loop anew: a layer may have been unfrozen.
        for index, parameter in enumerate(self._user.parameters):
            if parameter.requires_grad and index not in self._hooks:
                hook = partial(self._layer_is_there, index)
                self._hooks[index] = parameter.register_post_accumulate_grad_hook(hook)

    def let_go(self) -> None:
        """The model is the user's own again: no hooks on its parameters, and back from wherever it was."""
        self._point.leave()
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        self._is_free = True

    def check(self) -> None:
        """Raise if what was trained is not what the user's models have."""
        if not self._is_free:
            self._user.check_place()

    def hand_out(self, samples: int) -> None:
        """The loop has got a batch."""
        for number, pair in enumerate(self._user.pairs):
            if self._handed_out[number] and not pair.has_gradient:
                self._handed_out[number] = 0  # the gradient of the batch before was thrown away: a GradScaler does that
        if not any(self._handed_out):
            self._new = 0
            self._begun_s = self._worker.context.clock.now()
            self._stopwatch.start()
        if self._sender is not None:
            raise no_overlap("two batches were taken before optimizer.step")
        # Only now: between a step and the next batch, the model is at its own parameters.
        self._visit()
        asked = self._source.asked
        if self._overlap and asked is not None and asked.sum is not None and asked.plus is None:
            collectives = self._worker.sums.of(asked.sum.group)
            if not collectives.alone:
                self._sender = LayerSender(collectives, self._worker.context.layout, samples)
        self._handed_out = [handed_out + samples for handed_out in self._handed_out]
        self._new += samples

    def _visit(self) -> None:
        """Go to where the algorithm wants its next gradient."""
        asked = self._source.asked
        if asked is not None and asked.at is not None and not self._point.is_elsewhere:
            self._point.visit(asked.at.values)

    def _layer_is_there(self, index: int, parameter: Tensor) -> None:
        if self._sender is not None:
            self._sender.take(index, parameter.grad)

    def take_gradient(self, number: int) -> None:
        """The loop has called `step()` of one of its optimizers: let the algorithm go on with the gradient."""
        if self._coroutine is None:
            return  # the run is over; the loop ends with this batch
        pair, samples = self._user.pairs[number], self._handed_out[number]
        pair.check_count()
        if not samples:
            raise InputError("optimizer.step was called twice for one batch of fleet.batches; call it once")
        if not pair.has_gradient:
            raise InputError("optimizer.step was called, but no parameter has a gradient; call loss.backward() before")
        self.largest_step = max(self.largest_step, samples)
        asked = self._source.asked
        assert asked is not None
        seconds = self._stopwatch.stop(samples)
        context = self._worker.context
        context.reporter.computed(self._begun_s, context.clock.now(), samples, asked.versions[0])
        brought = Brought(number, samples, self._new, seconds)
        waiting = [other for other, handed_out in enumerate(self._handed_out) if handed_out and other != number]
        if not waiting:
            self._answer(asked, brought)
            return
        with self._user.kept_for(waiting) as put_back:
            self._answer(asked, brought)
            self._stay(put_back)
        self._begun_s = context.clock.now()
        self._stopwatch.start()

    def _stay(self, put_back: Callable[[Tensor], bool]) -> None:
        """Other models have not learnt from this batch yet: they stay where their forward passes may have been."""
        asked = self._source.asked
        at = None if asked is None else asked.at
        point = self._user.snapshot() if at is None else at.values.clone()
        if self._coroutine is not None and (put_back(point) or at is not None):
            self._point.visit(point)

    def _answer(self, asked: LoopGradient, brought: Brought) -> None:
        """Give the algorithm a gradient, or one of no samples, and let it go on."""
        # The model goes back to its own parameters before the algorithm goes on: its next step is made there.
        self._point.leave()
        sums = self._worker.sums
        sender, self._sender = self._sender, None
        if asked.sum is None:
            asked.gradient = self._gradient(asked, brought, None, None)
        else:
            # The gradient is gathered where the sum will read it: a copy less, and memory for one less.
            collectives = sums.of(asked.sum.group)
            buffer = collectives.buffer() if sender is None else sender.buffer
            asked.gradient = self._gradient(asked, brought, collectives.values(buffer), sender)
            buckets = None if sender is None else sender.buckets
            asked.sum.begun = sums.start(collectives, asked.gradient, buffer, buckets)  # type: ignore[assignment]
        # Only now: a gradient that was refused may be brought again.
        self._source.asked = None
        if brought.samples:
            self._handed_out[brought.model] = self._new = 0
        self._go_on()

    def _gradient(
        self, asked: LoopGradient, brought: Brought, out: Tensor | None, sender: LayerSender | None
    ) -> Gradient:
        total, is_partial = self._total(brought, out, sender)
        context, samples = self._worker.context, brought.samples
        # Not on a GPU, for which it would wait, nor with buckets under way, which are being summed in place.
        if samples and total.device.type == "cpu" and not (sender is not None and sender.buckets.works):
            all_ = context.reporter.due(context.clock.now())
            name, known = context.address.name, self._worker.progress.samples
            check_finite(name, known, 0.0, total, context.layout, all_=all_)
        gradient = Gradient(total, samples, asked.versions, 0.0, brought.seconds, partial=is_partial)
        if context.terms.num_counts:
            models = [samples if number == brought.model else 0 for number in range(context.terms.num_models)]
            gradient.counts = (brought.new_samples, *models)
        if asked.plus is not None:
            gradient = gradient + asked.plus
            if out is not None:
                gradient.total = out.copy_(gradient.total)
        return gradient

    def _total(self, brought: Brought, out: Tensor | None, sender: LayerSender | None) -> tuple[Tensor, bool]:
        user, samples = self._user, brought.samples
        if sender is not None:
            return sender.complete(user.parameters), sender.partial
        if not samples:
            return torch.full_like(user.values, -0.0) if out is None else out.fill_(-0.0), False
        total, is_partial = user.gather(brought.model, samples, out)
        if len(self._worker.servers):  # there, each gradient is an update of its own
            user.clip(total, brought.model, samples)
        return total, is_partial

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
        self._handed_out = [0] * len(self._handed_out)
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
            self._answer(self._source.asked, Brought(0, left, left, 0.0))
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
