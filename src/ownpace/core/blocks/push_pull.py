"""Between a worker and the parameter servers: gradients go out, parameters come back."""

from __future__ import annotations

from ownpace.core.contract.roles import Worker
from ownpace.core.contract.values import NO_NOTES, Gradient, Notes


def push(me: Worker, gradient: Gradient, **notes: float) -> None:
    """Start sending a gradient to the servers, each its shard, with these numbers by name."""
    # Servers are in the order of the layers they own: low layers go first on the wire, since the next forward pass
    # needs them first.
    for server in me.servers.members:
        me.send(server, gradient.part(server.shard), **notes)


async def pull(me: Worker) -> Notes:
    """Take over the parameters that the servers answer with; returns the numbers that came along."""
    notes = NO_NOTES
    for server in me.servers.members:
        answer = await me.receive(server)
        me.place(answer.parameters)
        if answer.notes:
            notes = {**notes, **answer.notes}
    return notes


__all__ = ["pull", "push"]
