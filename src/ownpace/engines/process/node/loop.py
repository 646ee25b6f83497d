"""A worker whose gradients come from a user's own training loop.

When the algorithm asks for a gradient its coroutine is suspended. The loop is handed as many samples as were asked for,
brings their gradient, and the coroutine goes on until it asks for the next. Each loop over the data runs the algorithm
once from its beginning to its end: it is a generation of the run.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from ownpace.core.blocks.varying_batch import VaryingBatch
from ownpace.core.contract.algorithm import Algorithm
from ownpace.core.contract.errors import InputError, PeerLost, SharedMemoryError
from ownpace.core.contract.values import Gradient, Parameters
from ownpace.engines.process.node.finite import check_finite
from ownpace.engines.process.node.gpu import Stopwatch
from ownpace.engines.process.node.handed_out import HandedOut
from ownpace.engines.process.node.inbox import NewGeneration
from ownpace.engines.process.node.layer_sender import LayerSender
from ownpace.engines.process.node.loop_gradients import Brought, LoopGradient, LoopGradients
from ownpace.engines.process.node.model_point import Loses, ModelPoint, held_by_servers
from ownpace.engines.process.node.overlap import Overlap
from ownpace.engines.process.node.replica_watch import layer_checksums
from ownpace.engines.process.node.user_parameters import UserParameters, unnoticed
from ownpace.engines.process.node.worker import ProcessWorker

_NOTHING_LEFT_S = 0.002
"""How often a worker without data checks whether others have any left, where servers would answer at once."""
_LOOKED_AT = 16
"""In so many first steps, and in every so manieth, it is looked whether parameters are where they were put."""


class UserLoop:
    """Drives the algorithm's coroutine from a user's loop."""

    def __init__(self, worker: ProcessWorker, user: UserParameters, *, overlap: bool | None) -> None:
        self._worker = worker
        self._user = user
        self._source = LoopGradients(worker)
        worker.source = self._source
        self._stopwatch = Stopwatch(user.values.device, worker.context.clock)
        self.overlap = Overlap(user, overlap)
        self.is_free = False
        """Whether the model is the user's own again."""
        self._coroutine: Coroutine[object, None, None] | None = None
        self._algorithm: Algorithm | None = None
        self._sizes: tuple[int, int | None] = (1, 1)
        self.is_void = False
        """Whether the batch that the script holds is dealt again: the generation that it was for has ended."""
        self._handed_out = HandedOut(len(user.pairs))
        self._begun_s = 0.0
        self._last_version = math.inf
        self._left_at: list[int] | None = None
        self._point = ModelPoint(user)
        self._stays = False
        """Whether models are where they were before the step of another."""
        self.batches = 0
        """How many the script has been handed for its next step, this far."""
        self._steps = 0
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
    def dropped(self) -> int:
        """Samples that nothing was learnt from, since the latest gradient."""
        return self._handed_out.dropped

    @property
    def has_made_its_updates(self) -> bool:
        """Whether as many updates have been made, as far as is known here, as the loop was to make."""
        return self._worker.progress.version >= self._last_version

    @property
    def is_prescribed(self) -> bool:
        """Whether the script has said how many samples an update has: then batches are what is wanted, and no more."""
        algorithm = None if self._algorithm is None else self._algorithm.at_work
        return isinstance(algorithm, VaryingBatch) and algorithm.target_batch is not None

    def wanted_samples(self) -> int:
        """How many samples the algorithm wants next; roughly, while it has them computed already."""
        worker, asked = self._worker, self._source.asked
        return min(worker.micro_batch, worker.batch_size) if asked is None else asked.samples

    def prepare(self, algorithm: Algorithm, sizes: tuple[int, int | None], updates: float = math.inf) -> None:
        """A loop is about to begin, of at most about this many updates; it may begin several times.

        `sizes` are those of what this worker contributes to an update, and of one batch at most (None: all of that).
        """
        self._algorithm, self._sizes = algorithm, sizes
        self._last_version = self._worker.progress.version + updates
        self._user.check_place()
        self._user.take_in()
        self.overlap.put_hooks()
        self._point.begin()
        self._stays = self.is_void = False
        self._check_unchanged()

    def begin(self, loop: int, samples: float) -> None:
        """Let the algorithm learn from this many samples: a whole loop, or what is left of it in another generation."""
        worker, progress = self._worker, self._worker.progress
        # Before the coroutine starts: its first message must carry the new loop's number.
        worker.begin(loop)
        assert self._algorithm is not None
        worker.batch_size, given = self._sizes
        worker.micro_batch = self._algorithm.micro_batch(worker.batch_size, given, len(worker.workers))
        # With servers the coroutine goes on when the budget is spent, with batches of nothing, as it does when the data
        # has ended: a server may wait for a message from a worker that would have left. With several models, the last
        # samples are counted before the last model has learnt from them.
        alone = not len(worker.servers)
        progress.budget = progress.samples + samples if alone and len(self._user.pairs) == 1 else math.inf
        progress.last_version = self._last_version if alone else math.inf
        self._coroutine = self._algorithm.worker(worker)
        self._go_on()

    def abandon(self) -> None:
        """The generation has ended by force: what is not in an update does not count, and is dealt again.

        That holds for the batch in the script's hands, too. Its step might as well count in the next generation, but
        its gradient is of parameters that this rank may not have any more, and every other rank would have to know
        which places it holds; computing one batch again is cheap, and nothing can be counted twice.
        """
        self._coroutine = self._source.asked = self.overlap.sender = None
        self._point.leave()
        self._worker.learner.go_back()
        self._handed_out = HandedOut(len(self._user.pairs))
        self._stays, self.is_void = False, True

    def go_on_as(self, worker: ProcessWorker) -> None:
        """Be that worker from now on: what this process is in the next generation."""
        self._worker = worker
        worker.source = self._source = LoopGradients(worker)

    def _check_unchanged(self) -> None:
        """Raise if the script has written to a model that servers hold: they would not know."""
        if (
            self._left_at is not None
            and layer_checksums(self._user.values, self._user.layout).tolist() != self._left_at
        ):
            raise InputError(
                "the model was changed after a loop over fleet.batches, but parameter servers hold it and would not "
                "know; change it before the first loop, or use an algorithm without servers, such as pace"
            )

    def leave(self) -> None:
        """A loop has ended, and the model has what the servers hold."""
        if len(self._worker.servers):
            self._left_at = layer_checksums(self._user.values, self._user.layout).tolist()

    def let_go(self) -> None:
        """The model is the user's own again: no hooks on its parameters, and back from wherever it was."""
        self._point.leave()
        for pair in self._user.pairs:
            pair.watch_kept_gradient(None)
        self.overlap.remove_hooks()
        self.is_free = True

    def check(self) -> None:
        """Raise if what was trained is not what the user's models have."""
        if not self.is_free:
            self._user.check_place()

    def hand_out(self, samples: int) -> None:
        """The loop has got a batch."""
        if self.is_void:
            # What was accumulated by then is of samples that are dealt again.
            for parameter in self._user.parameters:
                parameter.grad = None
            self.is_void = False
        self._point.check()
        self.batches += 1
        keep = [pair.keeps_gradient for pair in self._user.pairs]
        if self._handed_out.add(samples, keep):
            self.batches = 1
            self._begun_s = self._worker.context.clock.now()
            self._stopwatch.start()
            for pair in self._user.pairs:
                pair.forget_gradient()
        for number, (pair, keeps) in enumerate(zip(self._user.pairs, keep, strict=True)):
            pair.watch_kept_gradient(partial(self._threw_away, number) if keeps else None)
        self.overlap.batch()
        # A loss of another batch must not be gone back through from now on: its samples were taken for thrown away.
        torch.autograd.graph.increment_version(self._user.parameters)
        if self._stays:  # no graph of the batch before is left that they would have to wait for
            self._point.leave()
            self._stays = False
        # Only now: between a step and the next batch, the model is at its own parameters.
        self._visit()
        self._point.watch("in the middle of a batch", self._loses)
        asked = self._source.asked
        if asked is not None and asked.sum is not None and asked.plus is None:
            self.overlap.send(self._worker.sums.of(asked.sum.group), self._worker.context.layout, samples)

    def _threw_away(self, number: int) -> None:
        """The script has cleared what a model had of batches before this one: it has skipped a step."""
        if self._handed_out.throw_away(number):
            self.batches = 1

    def _loses(self) -> Loses:
        """What happens to parameters that the script writes to now."""
        if self._coroutine is None:
            return Loses.NOTHING
        if len(self._worker.servers):
            return Loses.AT_NEXT_PULL
        if self._point.is_elsewhere:
            return Loses.WHEN_IT_GOES_BACK
        asked = self._source.asked
        is_ahead = asked is not None and asked.at is not None
        return Loses.WHERE_RANKS_DIFFER if is_ahead and len(self._worker.workers) > 1 else Loses.NOTHING

    def _visit(self) -> None:
        """Go to where the algorithm wants its next gradient."""
        asked = self._source.asked
        if asked is not None and asked.at is not None and not self._point.is_elsewhere:
            self._point.visit(asked.at.values)

    def take_gradient(self, number: int) -> None:
        """The loop has called `step()` of one of its optimizers: let the algorithm go on with the gradient."""
        if self._coroutine is None or self.is_void:
            return  # the run is over, and the loop ends with this batch; or it is dealt again
        pair, samples = self._user.pairs[number], self._handed_out.waiting[number]
        pair.check_count()
        if not samples:
            raise InputError("optimizer.step was called twice for one batch of fleet.batches; call it once")
        if not pair.has_gradient:
            raise InputError("optimizer.step was called, but no parameter has a gradient; call loss.backward() before")
        self._point.check()
        self._steps += 1
        if self._steps <= _LOOKED_AT or self._steps % _LOOKED_AT == 0:
            self._user.check_place()
        self.largest_step = max(self.largest_step, samples)
        is_scaled, pair.is_scaled = pair.is_scaled, False
        self.overlap.stepped(is_scaled=is_scaled)
        asked = self._source.asked
        assert asked is not None
        seconds = self._stopwatch.stop(samples)
        context = self._worker.context
        context.reporter.computed(self._begun_s, context.clock.now(), samples, asked.versions[0])
        brought = Brought(number, samples, self._handed_out.new, seconds)
        waiting = [other for other, count in enumerate(self._handed_out.waiting) if count and other != number]
        if not waiting:
            self._answer(asked, brought)
            self._point.watch("after optimizer.step", self._loses)
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
            self._point.watch("in the middle of a batch", lambda: Loses.WHEN_ANOTHER_STEPS)
            self._stays = True

    def _answer(self, asked: LoopGradient, brought: Brought) -> None:
        """Give the algorithm a gradient, or one of no samples, and let it go on."""
        # The model goes back to its own parameters before the algorithm goes on: its next step is made there.
        self._point.leave()
        self._stays = False
        sums = self._worker.sums
        sender, self.overlap.sender = self.overlap.sender, None
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
        self._source.send(asked)
        self._handed_out.dropped = 0  # the gradient has told of them
        if brought.samples:
            self._handed_out.bring(brought.model)
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
            check_finite(name, known, None, total, context.layout, all_=all_)
        gradient = Gradient(total, samples, asked.versions, 0.0, brought.seconds, partial=is_partial)
        gradient.dropped = self._handed_out.dropped
        if context.terms.num_counts:
            models = [samples if number == brought.model else 0 for number in range(context.terms.num_models)]
            gradient.counts = (brought.new_samples, *models)
        gradient.sources = ((self._worker.rank, gradient.new_samples + gradient.dropped),)
        if asked.plus is not None:
            # In place: nobody else has this one.
            gradient = gradient.joined(asked.plus, total.add_(asked.plus.total))
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
        self._user.script_waits()
        try:
            self._coroutine.send(None)
        except StopIteration:
            self._coroutine = None
        except (NewGeneration, PeerLost, SharedMemoryError):
            self._coroutine = None  # begun anew, in the next generation, if there is one
            raise
        except BaseException:
            # Whatever was raised, the coroutine cannot be resumed.
            self._coroutine = None
            self.has_failed = True
            raise
        finally:
            self._user.script_goes_on()

    def tell_to_stop(self) -> None:
        """Come to an end, and let the others know with what is sent next."""
        self._worker.inbox.told_to_stop = True

    def finish(self, count_ended: Callable[[int], int]) -> None:
        """No data is left here: contribute nothing until none is left on any worker.

        A shared count of workers tells that, not the samples learnt from: batches without a step are lost.
        """
        self.overlap.check()
        # Buckets that left during the backward pass are in the sum already, on all members: their samples count.
        left = 0 if self.overlap.sender is None else self.overlap.sender.give_up()
        lost = self._handed_out.give_up(but=left)
        if lost and not self._worker.inbox.told_to_stop and self._user.keep_gradients:
            warnings.warn(
                f"the loop over fleet.batches ended with {lost} samples that were accumulated, but never stepped with; "
                "len() is an estimate, so give the last step by updates=… or after the loop's last batch",
                stacklevel=2,
            )
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

    def pulled(self) -> list[Parameters]:
        """What servers hold now; nothing, where there are none."""
        return list(held_by_servers(self._worker))

    @contextmanager
    def at_global_parameters(self, pulled: Sequence[Parameters]) -> Iterator[None]:
        """Let the user's model have the global parameters for a while; `pulled` is what servers hold."""
        user, values = self._user, self.global_values
        if values is user.values and not pulled:
            yield
            return
        here = user.values.clone()
        with unnoticed(user.parameters):  # a loss of this batch may have been computed already
            if values is not user.values:
                user.overwrite(values)
            for parameters in pulled:
                user.place(parameters.values, parameters.shard)
            try:
                yield
            finally:
                user.overwrite(here)
