"""Between a worker and the parameter servers: gradients go out, parameters come back.

By layer, each layer of a gradient leaves as soon as the backward pass has it, and the next forward pass begins with the
layers that are there: what is still on its way hides behind computing.
"""

from __future__ import annotations

from ownpace.core.blocks.accumulate import accumulate, accumulate_all_but_last
from ownpace.core.contract.roles import Pending, Worker
from ownpace.core.contract.values import NO_NOTES, Gradient, Notes


async def compute_and_push(me: Worker, *, by_layer: bool, **notes: float) -> None:
    """Compute the gradient of a batch and send it to the servers, each its shard, with these numbers by name."""
    if by_layer:
        # Not awaited before it is handed over: each layer leaves when it is ready.
        push_by_layer(me, await accumulate_all_but_last(me, me.batch_size), **notes)
    else:
        push(me, await accumulate(me, me.batch_size), **notes)


def push(me: Worker, gradient: Gradient, **notes: float) -> None:
    """Start sending a gradient to the servers, each its shard, with these numbers by name."""
    # Servers are in the order of the layers they own: low layers go first on the wire, since the next forward pass
    # needs them first.
    for server in me.servers.members:
        me.send(server, gradient.part(server.shard), **notes)


def push_by_layer(me: Worker, gradient: Pending[Gradient], **notes: float) -> None:
    """The same with a gradient that is still to be computed: its layers leave as they are ready, the highest first."""
    for server in me.servers.members:
        me.send(server, gradient, **notes)


async def pull(me: Worker, *, by_layer: bool = False) -> Notes:
    """Take over the parameters that the servers answer with; returns the numbers that came along.

    By layer, it waits for the lowest layers alone. The others are put in their places as they arrive; what came along
    with them is not looked at.
    """
    if by_layer:
        return await _pull_by_layer(me)
    notes = NO_NOTES
    for server in me.servers.members:
        answer = await me.receive(server)
        me.place(answer.parameters)
        if answer.notes:
            notes = {**notes, **answer.notes}
    return notes


async def _pull_by_layer(me: Worker) -> Notes:
    answers = [me.receive(server) for server in me.servers.members]
    for answer in answers:
        me.place(answer)
    # The first server owns the lowest layers, which the next forward pass begins with.
    notes = (await answers[0]).notes
    if not me.training:
        # No gradient will wait for the others; but a worker ends only when its last push is in the parameters.
        for answer in answers:
            await answer
    return notes


__all__ = ["compute_and_push", "pull", "push", "push_by_layer"]
