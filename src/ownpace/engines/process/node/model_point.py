"""Where a user's model is, and where the servers' parameters are."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ownpace.core.contract.errors import InputError, WireError
from ownpace.core.contract.values import Parameters
from ownpace.engines.process.node.nodes import ProcessWorker
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.talk.control import Pull, Pulled
from ownpace.engines.process.talk.wire import Packet

_CHECKED_VISITS = 8
"""How many are checked in each loop: scripts do the same in every step, and a check may wait for a GPU."""


class ModelPoint:
    """Where a user's model is: at its own parameters, or at a point that the algorithm wants a gradient at."""

    def __init__(self, user: UserParameters) -> None:
        self._user = user
        self.own: Tensor | None = None
        """Its own parameters, while the model is elsewhere."""
        self._at: Tensor | None = None
        self._visits = 0

    def begin(self) -> None:
        """A loop begins."""
        self._visits = 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether the model is at another point than its own parameters."""
        return self.own is not None

    def visit(self, values: Tensor) -> None:
        """Go to a point."""
        self.own = self._user.snapshot()
        self._user.overwrite(values)
        self._visits += 1
        self._at = self._user.snapshot() if self._visits <= _CHECKED_VISITS else None

    def check(self) -> None:
        """Raise if the script has written to the parameters meanwhile: that would be lost when the model goes back."""
        if self._at is not None:
            self._user.take_in()
            # As bytes: not a number is not equal to itself.
            if not torch.equal(self._user.values.view(torch.uint8), self._at.view(torch.uint8)):
                raise InputError(
                    "parameters were written to in the middle of a batch (weight clipping?), where this algorithm has "
                    "moved the model to where it will be; write to them after the batch's last optimizer.step()"
                )

    def leave(self) -> None:
        """Go back to the model's own parameters."""
        if self.own is not None:
            self._user.overwrite(self.own)
            self.own = self._at = None


def held_by_servers(worker: ProcessWorker) -> Iterator[Parameters]:
    """What the servers hold now, shard by shard."""
    # All are asked before the first answer is awaited: servers answer at the same time.
    for server in worker.servers:
        worker.context.mailbox.send(server.name, Packet(control=Pull()))
    for _ in worker.servers:
        pulled, values = worker.inbox.wait_for(Pulled)
        shards = worker.context.roster.shards
        shard = shards[pulled.shard] if pulled.shard < len(shards) else None
        if shard is None or not isinstance(values, Tensor) or len(values) != shard.stop - shard.start:
            raise WireError(f"a server sent what no server sends: {pulled}, without the values of that shard")
        worker.progress.hear(pulled.samples, stop=False)
        yield Parameters(values.to(worker.context.like.device), pulled.version, shard)
