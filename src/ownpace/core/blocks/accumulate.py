"""Gradients of more than one micro-batch: a whole batch, one summed while it is computed, or until a sum arrives."""

from __future__ import annotations

from collections.abc import Awaitable

from ownpace.core.contract.roles import Pending, Worker
from ownpace.core.contract.values import Gradient, Parameters


def accumulate(
    me: Worker, samples: int, *, at: Parameters | None = None, largest: int | None = None
) -> Awaitable[Gradient]:
    """The gradient of `samples` samples, in as few micro-batches of at most `largest` (`me.micro_batch`) as will do.

    They are as equal in size as can be: none is a mere remainder, which would take a machine nearly as long as a whole.
    """
    largest = me.micro_batch if largest is None else largest
    # One micro-batch goes straight to the engine: a coroutine in between would cost time for every gradient.
    return me.gradient(samples, at=at) if 0 < samples <= largest else _in_pieces(me, samples, largest, at, 0)


async def _in_pieces(me: Worker, samples: int, largest: int, at: Parameters | None, stop: int) -> Gradient:
    """The gradient of all these samples but the last `stop`."""
    gradient: Gradient | None = None
    while samples > stop:
        before = 0 if gradient is None else gradient.samples
        gradient = await me.gradient(_piece(samples, largest), at=at, plus=gradient)
        if gradient.samples == before:
            break  # no data is left
        samples -= gradient.samples - before
    return me.no_gradient() if gradient is None else gradient


def _piece(samples: int, largest: int) -> int:
    """The first of the fewest pieces of at most `largest` that these samples make: the larger ones come first.

    >>> _piece(33, 32), _piece(10, 4), _piece(6, 4)
    (17, 4, 3)
    """
    return -(-samples // -(-samples // largest))


async def accumulate_all_but_last(
    me: Worker, samples: int, *, at: Parameters | None = None, largest: int | None = None
) -> Pending[Gradient]:
    """The gradient of `samples` samples, at least one, its last micro-batch still to be computed.

    So it can be handed over before: layers that are ready travel while the backward pass computes the others.
    """
    largest = me.micro_batch if largest is None else largest
    last = samples // -(-samples // largest)  # of pieces as equal as can be, the smallest
    earlier = await _in_pieces(me, samples, largest, at, last) if samples > last else None
    return me.gradient(last, at=at, plus=earlier)


async def accumulate_and_reduce(me: Worker, samples: int) -> Gradient:
    """The sum of all workers' gradients, mine of `samples` samples.

    The last micro-batch is handed over before it is computed, so that its backward pass and the transfer overlap.
    """
    if samples <= 0:
        return await me.all_reduce(me.no_gradient())
    # Not awaited before it is handed over: the engine sends the layers that are ready during the backward pass.
    return await me.all_reduce(await accumulate_all_but_last(me, samples))


def accumulate_and_step(me: Worker, samples: int) -> Awaitable[Gradient]:
    """One update with the sum of all workers' gradients, mine of `samples` samples; returns what goes with the sum.

    The sum is hidden where it can be: behind the backward pass, during which layers that are ready leave, and behind
    the next forward pass, which waits for a layer only where it needs it.
    """
    # In one piece: without a coroutine that has nothing to wait for.
    if 0 < samples <= me.micro_batch:
        return me.step_by_layer(me.all_reduce(me.gradient(samples)))
    return _step_in_pieces(me, samples)


async def _step_in_pieces(me: Worker, samples: int) -> Gradient:
    mine: Gradient | Pending[Gradient]
    mine = me.no_gradient() if samples <= 0 else await accumulate_all_but_last(me, samples)
    return await me.step_by_layer(me.all_reduce(mine))


async def accumulate_until(
    me: Worker, pending: Pending[object], samples: int, *, at: Parameters | None = None, most: int | None = None
) -> Gradient:
    """Gradients at my own pace, in micro-batches of `samples`, until `pending` is done; at least one.

    With `most`, never more samples than that: micro-batches are cut to what is left of it, and where that is less than
    half a micro-batch, none is begun. A few samples take a machine nearly as long as half of one.
    """
    gradient = await me.gradient(_next(samples, 0, most), at=at)
    while gradient.samples and not pending.done:
        before = gradient.samples
        following = _next(samples, before, most)
        if 2 * following < samples:
            break
        gradient = await me.gradient(following, at=at, plus=gradient)
        if gradient.samples == before:
            break  # no data is left
    return gradient


def _next(samples: int, before: int, most: int | None) -> int:
    return samples if most is None else min(samples, most - before)


__all__ = ["accumulate", "accumulate_all_but_last", "accumulate_and_reduce", "accumulate_and_step", "accumulate_until"]
