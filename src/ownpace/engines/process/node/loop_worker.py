"""A worker whose gradients come from a user's own training loop.

When the algorithm asks for a gradient (`Wanted`) its coroutine is suspended. The loop is handed so many samples, brings
their gradient, and the coroutine goes on until it asks for the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ownpace.core.contract import events
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.contract.roles import Pending
from ownpace.core.contract.values import Batch, Gradient, Group, Parameters
from ownpace.core.learning.flat import Layout
from ownpace.engines.process.node.awaitables import Reduced
from ownpace.engines.process.node.nodes import ProcessWorker, Seat
from ownpace.engines.process.node.parameters import UserHolding
from ownpace.engines.process.node.task_worker import Stopwatch, check_finite
from ownpace.engines.process.talk.collectives import Departures, Ring
from ownpace.engines.process.talk.wire import Packet

_NOTHING_LEFT_S = 0.002


class Wanted:
    """A gradient that the algorithm waits for, and the user's loop will bring."""

    def __init__(self, node: LoopWorker, samples: int, at: Parameters | None, plus: Gradient | None) -> None:
        self._node = node
        self.samples = samples
        self.at = at
        self.plus = plus
        self.versions = node.versions_at(at)
        self.gradient: Gradient | None = None
        self.reduce_in: Group | None = None
        """The group in which it is to be summed as soon as it is there."""

    @property
    def done(self) -> bool:
        return self.gradient is not None

    def __await__(self) -> Generator[Any, Any, Gradient]:
        while self.gradient is None:
            yield self
        return self.gradient


class WantedSum:
    """A sum that begins when the user's loop has brought this worker's gradient."""

    def __init__(self, node: LoopWorker, wanted: Wanted) -> None:
        self._node = node
        self._wanted = wanted
        self.reduced: Reduced | None = None

    @property
    def done(self) -> bool:
        return self.reduced is not None and self.reduced.done

    def __await__(self) -> Generator[Any, Any, Gradient]:
        yield from self._wanted.__await__()
        assert self.reduced is not None
        total: Gradient = yield from self.reduced.__await__()
        return total


class LoopWorker(ProcessWorker):
    """A worker whose gradients come from a user's loop."""

    def __init__(
        self, seat: Seat, holding: UserHolding, batch_size: int, stopwatch: Stopwatch, *, overlap: bool
    ) -> None:
        super().__init__(seat, holding, batch_size, batch_size)
        self._sending: Sending | None = None
        self._overlap = overlap
        if overlap:
            for index, parameter in enumerate(holding.parameters):
                parameter.register_post_accumulate_grad_hook(partial(self._layer_is_there, index))
        self._user = holding
        self._stopwatch = stopwatch
        self._wanted: Wanted | None = None
        self._sum: WantedSum | None = None
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._handed_out = 0
        self._begun_s = 0.0
        self._true: Tensor | None = None
        self.in_loop = False
        """Whether the user's loop runs."""
        self.broken = False
        """Whether the algorithm has failed: then nothing is left to agree on."""
        self._ended: Callable[[int], int] = _uncounted
        self._stopped: Callable[[int], int] = _uncounted
        self._said_to_stop = False

    # ---- what the algorithm asks for ----

    def load(self, samples: int | None = None) -> Pending[Batch]:
        raise InputError("this algorithm loads its samples itself, which only `ownpace train` can do; use another")

    def take_share(self, start: float, stop: float) -> None:
        pass  # `fleet.batches` has dealt the data out already

    def gradient(
        self,
        samples: int | None = None,
        *,
        at: Parameters | None = None,
        batch: Batch | None = None,
        plus: Gradient | None = None,
    ) -> Wanted:
        self._wanted = Wanted(self, self.micro_batch if samples is None else samples, at, plus)
        return self._wanted

    def all_reduce(self, body: Any, group: Group | None = None) -> Any:
        if isinstance(body, Wanted):
            if body.gradient is not None:
                return super().all_reduce(body.gradient, group)
            body.reduce_in = group or self._roll.workers
            self._sum = WantedSum(self, body)
            return self._sum
        return super().all_reduce(body, group)

    # ---- what the user's loop does ----

    @property
    def wanting(self) -> bool:
        """Whether the algorithm waits for a gradient."""
        return self._coroutine is not None

    @property
    def wanted_samples(self) -> int:
        """How many samples the algorithm wants next; roughly, while it has them computed already."""
        return self.micro_batch if self._wanted is None else self._wanted.samples

    def begin(
        self,
        algorithm: Algorithm,
        batch_size: int,
        samples: int,
        ended: Callable[[int], int],
        stopped: Callable[[int], int],
    ) -> None:
        """Let the algorithm learn from so many samples; all workers count who has ended, and who asks to stop."""
        self._user.check_place()
        self.batch_size = self.micro_batch = batch_size
        # With servers, a worker may not know how many there were when the loop before was left.
        self._budget = math.inf if self._roll.servers else self._samples + samples
        self._ended, self._stopped = ended, stopped
        self._said_to_stop = False
        self._coroutine = algorithm.worker(self)
        self._go_on()

    def hand_out(self, samples: int) -> None:
        """The loop has got a batch."""
        if self._handed_out and not self._user.has_gradient:
            self._handed_out = 0  # the gradient of the batch before was thrown away: a GradScaler does that
        if not self._handed_out:
            self._begun_s = self._clock.now()
            self._stopwatch.start()
        if self._sending is not None:
            raise _no_overlap("two batches were taken before optimizer.step")
        wanted = self._wanted
        if self._overlap and wanted is not None and wanted.reduce_in is not None and wanted.plus is None:
            ring = self.ring(wanted.reduce_in)
            if ring.size > 1:
                self._sending = Sending(ring, self._seat.layout, samples)
        self._handed_out += samples

    def _layer_is_there(self, index: int, parameter: Tensor) -> None:
        if self._sending is not None:
            self._sending.take(index, parameter.grad)

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
        seconds = self._stopwatch.stop(samples)
        now = self._clock.now()
        self._books.work.add(self._begun_s, now, samples)
        wanted = self._wanted
        assert wanted is not None
        if self._books.detail:
            self._books.event(events.Compute(self._begun_s, now, self.name, samples, wanted.versions[0]))
        self._answer(wanted, samples, seconds)

    def _answer(self, wanted: Wanted, samples: int, seconds: float) -> None:
        """Give the algorithm the gradient of so many samples, or of none, and let it go on."""
        self._back_to_true()
        sending, self._sending = self._sending, None
        ring = None if wanted.reduce_in is None else self.ring(wanted.reduce_in)
        buffer = None if ring is None else sending.buffer if sending is not None else ring.buffer()
        out = None if ring is None or buffer is None else ring.values(buffer)
        if sending is not None:
            total = sending.complete(self._user.parameters)
        elif samples:
            total = self._user.gather(samples, out)
            if self._roll.servers:  # there, each gradient is an update of its own
                self._user.clip(total, samples)
        else:
            total = torch.zeros_like(self.holding.values) if out is None else out.zero_()
        if samples and total.device.type == "cpu" and not (sending and sending.departures.works):
            check_finite(
                self.name, self._samples, 0.0, total, self._seat.layout, all_=self._books.due(self._clock.now())
            )
        gradient = Gradient(total, samples, wanted.versions, 0.0, seconds)
        if wanted.plus is not None:
            gradient = gradient + wanted.plus
            if out is not None:
                gradient.total = out.copy_(gradient.total)
        self._wanted = None
        wanted.gradient = gradient
        if ring is not None and buffer is not None:
            assert self._sum is not None
            works = () if sending is None else sending.departures.works
            self._sum.reduced = self._start_reduced(ring, gradient, buffer, works)
            self._sum = None
        self._go_on()

    def _go_on(self) -> None:
        """Run the algorithm until it wants a gradient, or ends."""
        assert self._coroutine is not None
        try:
            self._coroutine.send(None)
        except StopIteration:
            self._coroutine = None
        except BaseException:
            self._coroutine = None
            self.broken = True
            raise
        wanted = self._wanted
        if self._coroutine is not None and wanted is not None and wanted.at is not None:
            self._true = self.holding.values.clone()
            self.holding.values.copy_(wanted.at.values)

    def _back_to_true(self) -> None:
        if self._true is not None:
            self.holding.values.copy_(self._true)
            self._true = None

    def _maybe_freeze(self) -> None:
        """Every update counts: what ends a user's loop is the end of its data."""

    def tell_to_stop(self) -> None:
        """Come to an end, and let the others know."""
        self._told_to_stop = True

    @property
    def wants_stop(self) -> bool:
        wants = super().wants_stop
        if wants and not self._said_to_stop:
            self._said_to_stop = True
            self._stopped(1)
        return wants

    def take_in(self, samples: int, stop: bool) -> None:
        # A server that was once told to stop says so for ever; it counts only if somebody did in this loop.
        super().take_in(samples, stop and not (self._roll.servers and not self._stopped(0)))

    def finish_segment(self) -> None:
        """The data has come to its end here: take part with nothing until it has for all.

        The samples that were learnt from do not tell: batches without a step are lost.
        """
        self._handed_out = 0
        left = 0 if self._sending is None else self._sending.give_up()
        self._ended(1)
        while self._coroutine is not None:
            assert self._wanted is not None
            if self._ended(0) >= len(self._roll.workers):
                self.tell_to_stop()
            elif self._roll.servers:
                time.sleep(_NOTHING_LEFT_S)
            self._answer(self._wanted, left, 0.0)
            left = 0
        self._told_to_stop = self._stop = self._books.stats.frozen = False

    def pull(self) -> None:
        """Take over what the servers hold now, to go on from there."""
        for parameters in self.held_by_servers():
            self.place(parameters)

    def held_by_servers(self) -> Iterator[Parameters]:
        """What the servers hold now, shard by shard."""
        for server in self._roll.servers:
            self._seat.post.send(server.name, Packet(control={"what": "pull", "who": self.name}))
        for _ in self._roll.servers:
            pulled = self.control("pulled")
            shard = self._roll.shards[pulled["shard"]]
            yield Parameters(pulled["body"].to(self.holding.values.device), pulled["version"], shard)

    def at_global_parameters(self) -> _AtGlobal:
        """A context in which the model has the global parameters."""
        return _AtGlobal(self)


class Sending:
    """A gradient that leaves layer by layer, while the user's backward pass goes on."""

    def __init__(self, ring: Ring, layout: Layout, samples: int) -> None:
        self.buffer = ring.buffer()
        self._total = ring.values(self.buffer)
        self._views = layout.views(self._total)
        self._samples = samples
        self._counts: dict[int, int] = {}
        self._given_up = False
        self.departures = Departures(ring, self.buffer, len(self._views))

    def take(self, index: int, gradient: Tensor | None) -> None:
        """One layer's gradient is there."""
        assert gradient is not None
        if index in self._counts:
            raise _no_overlap("backward was called twice before optimizer.step")
        torch.mul(gradient, self._samples, out=self._views[index])
        self._counts[index] = gradient._version
        self.departures.layer_is_there(index)

    def complete(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """All of it, after the backward pass; what took no part in the loss is zero."""
        for index in range(len(self._views) - 1, -1, -1):
            gradient = parameters[index].grad
            if self._given_up:
                break
            if index not in self._counts:
                self._views[index].zero_()
                self.departures.layer_is_there(index)
            elif gradient is None or gradient._version != self._counts[index]:
                raise _no_overlap("gradients were changed between backward and optimizer.step")
        return self._total

    def give_up(self) -> int:
        """The batch was never stepped with. If it is on its way already, its samples count; else it is zero."""
        self._given_up = True
        for index in range(len(self._views) - 1, -1, -1):
            if not self.departures.ready[index]:
                self._views[index].zero_()
                self.departures.layer_is_there(index)
        return self._samples if self._counts else 0


def _no_overlap(what: str) -> InputError:
    return InputError(f"{what}, but with overlap=True they are on their way by then; use fleet.wrap(…, overlap=False)")


class _AtGlobal:
    def __init__(self, node: LoopWorker) -> None:
        self._node = node
        self._own: Tensor | None = None

    def __enter__(self) -> None:
        node = self._node
        if node._true is not None or node.servers:
            self._own = node.holding.values.clone()
            if node._true is not None:
                node.holding.values.copy_(node._true)
            for parameters in node.held_by_servers():
                node.holding.place(parameters.values, parameters.shard)

    def __exit__(self, *details: object) -> None:
        if self._own is not None:
            self._node.holding.values.copy_(self._own)


def _uncounted(number: int) -> int:
    return 0


__all__ = ["LoopWorker"]
