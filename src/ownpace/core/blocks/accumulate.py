"""Gradients of more than one micro-batch: a whole batch, one summed while it is computed, or until a sum arrives."""

from __future__ import annotations

from collections.abc import Awaitable

from ownpace.core.contract.roles import Pending, Worker
from ownpace.core.contract.values import Gradient, Parameters


def accumulate(me: Worker, samples: int, *, at: Parameters | None = None) -> Awaitable[Gradient]:
    """The gradient of `samples` samples, in micro-batches of at most `me.micro_batch`."""
    # One micro-batch goes straight to the engine: a coroutine in between would cost time for every gradient.
    return me.gradient(samples, at=at) if 0 < samples <= me.micro_batch else _in_pieces(me, samples, me.micro_batch, at)


def accumulate_evenly(me: Worker, samples: int, *, at: Parameters | None = None) -> Awaitable[Gradient]:
    """The same in the fewest micro-batches that will do, as equal in size as can be: none is a mere remainder."""
    num_pieces = max(1, -(-samples // me.micro_batch))
    return _in_pieces(me, samples, -(-samples // num_pieces), at)


async def _in_pieces(me: Worker, samples: int, piece: int, at: Parameters | None) -> Gradient:
    gradient: Gradient | None = None
    while samples > 0:
        before = 0 if gradient is None else gradient.samples
        gradient = await me.gradient(min(samples, piece), at=at, plus=gradient)
        if gradient.samples == before:
            break  # no data is left
        samples -= gradient.samples - before
    return me.no_gradient() if gradient is None else gradient


async def accumulate_all_but_last(me: Worker, samples: int, *, at: Parameters | None = None) -> Pending[Gradient]:
    """The gradient of `samples` samples, at least one, its last micro-batch still to be computed.

    So it can be handed over before: layers that are ready travel while the backward pass computes the others.
    """
    last = (samples - 1) % me.micro_batch + 1
    earlier = await accumulate(me, samples - last, at=at) if samples > last else None
    return me.gradient(last, at=at, plus=earlier)


async def accumulate_and_reduce(me: Worker, samples: int) -> Gradient:
    """The sum of all workers' gradients, mine of `samples` samples.

    The last micro-batch is handed over before it is computed, so that its backward pass and the transfer overlap.
    """
    if samples <= 0:
        return await me.all_reduce(me.no_gradient())
    # Not awaited before it is handed over: the engine sends the layers that are ready during the backward pass.
    return await me.all_reduce(await accumulate_all_but_last(me, samples))


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


__all__ = ["accumulate", "accumulate_all_but_last", "accumulate_and_reduce", "accumulate_evenly", "accumulate_until"]
