"""Where a user's model is, and where the servers' parameters are."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ownpace.core.contract.values import Parameters
from ownpace.engines.process.node.nodes import ProcessWorker
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.talk.control import Pull, Pulled
from ownpace.engines.process.talk.wire import Packet


class ModelPoint:
    """Where a user's model is: at its own parameters, or at a point that the algorithm wants a gradient at."""

    def __init__(self, user: UserParameters) -> None:
        self._user = user
        self.own: Tensor | None = None
        """Its own parameters, while the model is elsewhere."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the model is at another point than its own parameters."""
        return self.own is not None

    def visit(self, values: Tensor) -> None:
        """Go to a point."""
        self.own = self._user.snapshot()
        self._user.overwrite(values)

    def leave(self) -> None:
        """Go back to the model's own parameters."""
        if self.own is not None:
            self._user.overwrite(self.own)
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
