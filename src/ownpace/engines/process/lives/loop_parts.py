"""What a rank's part in a user's run is made of, and what of it goes from rank to rank between two generations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from ownpace.core.learning.claims import Places
from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.process.hub.session import Session
from ownpace.engines.process.lives.exchange import NodeCounts, counted, take_counted, take_kept
from ownpace.engines.process.lives.loop_data import LoopData
from ownpace.engines.process.meet.connection import Connection
from ownpace.engines.process.node.loop import UserLoop
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.node.worker import ProcessWorker
from ownpace.engines.process.talk.counters import Counters


class Script(Protocol):
    """What else a script has that is the same on all ranks."""

    @property
    def leads(self) -> bool:
        """Whether schedules of learning rates follow the fleet."""

    def shared(self) -> PlainState:
        """As it is here."""

    def take_shared(self, state: PlainState, *, is_new: bool, in_next: bool) -> None:
        """Go on with what another rank has.

        Args:
            state: That.
            is_new: Whether this rank was started again.
            in_next: Whether that rank is in the loop that this one is about to begin.
        """


@dataclasses.dataclass(frozen=True)
class LoopParts:
    """What a rank's part in a run is made of, besides what it is in one generation."""

    session: Session
    connection: Connection
    loop: UserLoop
    user: UserParameters
    model: nn.Module
    data: LoopData
    open_counters: Callable[[ProcessWorker, Callable[[], None]], Counters]
    """Opens those of a worker's generation; what is given is called while it waits."""
    on_progress: Callable[[ProcessWorker, int], None]
    script: Script
    rejoin: Callable[[Connection, ProcessWorker], None]
    """Lets the other ranks and the hub know that this one is back, after it was declared dead."""

    def whole(self, node: ProcessWorker, counts: NodeCounts) -> dict[str, object]:
        """What is the same on all workers, or was made by all."""
        return {
            "values": self.user.snapshot(),
            "optimizers": [optimizer.state_dict() for optimizer in self._stepping(node)],
            "kept": dict(node.kept),
            **counted(node, counts),
        }

    def take_whole(self, node: ProcessWorker, state: PlainState) -> NodeCounts:
        """Go on with what another rank has; returns how far that is."""
        user, device = self.user, node.context.like.device
        user.overwrite(cast(Tensor, state["values"]).to(device))
        # Its settings stay its own: its schedules move them on from where they are.
        settings = user.settings()
        for optimizer, theirs in zip(self._stepping(node), cast("Any", state["optimizers"]), strict=True):
            optimizer.load_state_dict(theirs)
        user.set_settings(settings)
        take_kept(node, state)
        return take_counted(node, state)

    def _stepping(self, node: ProcessWorker) -> list[Optimizer]:
        """The script's optimizers; none, where servers step: those have the state."""
        return [] if len(node.servers) else [pair.optimizer for pair in self.user.pairs]


@dataclasses.dataclass(frozen=True)
class GivenLoop:
    """What the giver says of the loop that it is in."""

    stage: int
    begun: int
    left: Sequence[Places]
    complete: bool
    script: PlainState

    @classmethod
    def of(cls, state: PlainState) -> GivenLoop:
        """What came from the giver."""
        fields = cast("dict[str, Any]", state)
        left = [(start, stop) for start, stop in fields["left"]]
        return cls(fields["stage"], fields["begun"], left, fields["complete"], fields["script"])

    def state(self, buffers: Sequence[Tensor], whole: PlainState) -> PlainState:
        """The same for another rank, with what it needs besides."""
        return {**dataclasses.asdict(self), "buffers": buffers, **whole}

    @property
    def in_loop(self) -> bool:
        """Whether the giver is in it; else it is over for the giver, and so for all."""
        return self.stage % 2 == 0
