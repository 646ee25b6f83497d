"""Where a user's model is, and where the servers' parameters are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from ownpace.core.contract.errors import InputError, WireError
from ownpace.core.contract.values import Parameters
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.node.worker import ProcessWorker
from ownpace.engines.process.talk.control import Pull, Pulled
from ownpace.engines.process.talk.wire import Packet

_WATCHED = 16
"""How often in each loop all numbers are compared, twice a step: looking may wait for a GPU. Scripts do the same in
most steps; of one that has not written until then, what torch counts as writing is enough."""


_HOOK = "do it in a hook that every update calls: optimizer.register_step_post_hook(…)"


class Loses(Enum):
    """What becomes of parameters that a script writes to within a loop."""

    NOTHING = ""
    WHEN_ANOTHER_STEPS = f"while another model has yet to make its step with the batch; {_HOOK}"
    WHEN_IT_GOES_BACK = f"where this algorithm has moved the model to where it will be; {_HOOK}"
    WHERE_RANKS_DIFFER = f"where this algorithm's ranks are at different updates, and would part; {_HOOK}"
    AT_NEXT_PULL = (
        "which would be lost: parameter servers hold the model; use an algorithm without them, such as pace or stride"
    )


class _AsGiven(NamedTuple):
    """What the script was given."""

    words: str
    """When that was, and what becomes of what it writes."""
    writings: int
    """How often torch has counted that something writes to the parameters."""
    values: Tensor | None
    """Them, if all numbers are compared."""


class ModelPoint:
    """Where a user's model is: at its own parameters, or at a point that the algorithm wants a gradient at."""

    def __init__(self, user: UserParameters) -> None:
        self._user = user
        self.own: Tensor | None = None
        """Its own parameters, while the model is elsewhere."""
        self._seen: _AsGiven | None = None
        self._watched = 0
        self._writes = False

    def begin(self) -> None:
        """A loop begins."""
        self._watched, self._writes = 0, False

    @property
    def is_elsewhere(self) -> bool:
        """Whether the model is at another point than its own parameters."""
        return self.own is not None

    def visit(self, values: Tensor) -> None:
        """Go to a point."""
        self.own = self._user.snapshot()
        self._user.overwrite(values)

    def watch(self, when: str, loses: Callable[[], Loses]) -> None:
        """The script has the model now, until it is checked; `loses` is what becomes of what it writes."""
        self._seen, what = None, loses()
        if what is not Loses.NOTHING:
            is_compared = self._writes or self._watched < _WATCHED
            self._watched += 1
            values = self._user.snapshot() if is_compared else None
            self._seen = _AsGiven(
                f"{when} (weight clipping, load_state_dict, optimizer.eval()?), {what.value}", self._writings(), values
            )

    def check(self) -> None:
        """Raise if the script has written to the parameters since it has the model: that would not count."""
        seen = self._seen
        if seen is None:
            return
        has_written = seen.writings != self._writings()
        if seen.values is not None:
            # Some write in every step, and change nothing for long: clipping, which rarely has anything to do.
            self._writes = self._writes or has_written
            self._user.take_in()
            # As bytes: not a number is not equal to itself.
            has_written = not torch.equal(self._user.values.view(torch.uint8), seen.values.view(torch.uint8))
        if has_written:
            raise InputError(f"parameters were written to {seen.words}")

    def _writings(self) -> int:
        return sum(parameter._version for parameter in self._user.parameters)

    def leave(self) -> None:
        """Go back to the model's own parameters."""
        self._seen = None
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
        shards = worker.context.roster.shards
        shard = shards[pulled.shard] if pulled.shard < len(shards) else None
        if shard is None or not isinstance(values, Tensor) or len(values) != shard.stop - shard.start:
            raise WireError(f"a server sent what no server sends: {pulled}, without the values of that shard")
        worker.progress.hear(pulled.samples, stop=False)
        yield Parameters(values.to(worker.context.like.device), pulled.version, shard)
