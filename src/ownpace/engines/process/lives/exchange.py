"""What nodes give to each other, and to the hub, between two generations: how far they are, and what they hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from ownpace.core.learning.plain_state import PlainState
from ownpace.engines.ledger import UpdateTotals
from ownpace.engines.process.node.nodes import ProcessNode, ProcessServer
from ownpace.engines.process.node.worker import ProcessWorker
from ownpace.engines.process.talk.regrouping import RegroupPlan, Standing, StateInMemory, StateOutline, StateTensor
from ownpace.engines.process.talk.states import StateAssembly, from_memory, give


@dataclass
class NodeCounts:
    """How far a node's parameters are."""

    version: int = 0
    samples: int = 0
    ahead: float = 0.0
    used: tuple[int, ...] = ()
    """Of each worker of the latest generation: how many samples that it took are used up; empty: not known."""

    @classmethod
    def of(cls, node: ProcessNode) -> NodeCounts:
        """Those of a node, as it is now."""
        progress = node.progress
        used = node.learner.used if isinstance(node, ProcessServer | ProcessWorker) else None
        return cls(progress.version, progress.samples, progress.ahead, tuple(used or ()))

    def at(self, plan: RegroupPlan, *, has_servers: bool) -> NodeCounts:
        """How far a worker is when a generation begins."""
        # A server that was started again may have lost updates which workers have heard of: they do not count.
        return dataclasses.replace(self, version=plan.version, samples=plan.samples) if has_servers else self

    def standing(self, generation: int, *, is_new: bool, checksums: list[int], stage: int) -> Standing:
        """The same for the hub."""
        return Standing(generation, is_new, self.version, self.samples, self.ahead, list(self.used), checksums, stage)


def counted(node: ProcessNode, counts: NodeCounts) -> dict[str, object]:
    """How far a node is, and what was counted up to there, as a part of its state."""
    return {"counts": dataclasses.asdict(counts), "totals": dataclasses.asdict(node.context.reporter.totals)}


def take_counted(node: ProcessNode, state: PlainState) -> NodeCounts:
    """Count on from what a state has; returns how far it is."""
    node.context.reporter.totals = UpdateTotals(**cast("dict[str, Any]", state["totals"]))
    counts = cast("dict[str, Any]", state["counts"])
    return NodeCounts(counts["version"], counts["samples"], counts["ahead"], tuple(counts["used"]))


def take_kept(worker: ProcessWorker, state: PlainState) -> None:
    """Go on with what the algorithm keeps, as a state has it."""
    device = worker.context.like.device
    kept = cast("Mapping[str, Tensor]", state["kept"])
    worker.kept.clear()  # what the giver has not any more is not to be gone on with
    worker.kept.update({name: tensor.to(device) for name, tensor in kept.items()})


def await_state(node: ProcessNode, generation: int) -> PlainState:
    """Wait for what the giver gives in this generation; what is left of an earlier attempt is passed over."""
    assembly: StateAssembly | None = None
    while True:
        control, body = node.inbox.wait_for(StateOutline, StateTensor, StateInMemory)
        state: PlainState | None = None
        if isinstance(control, StateInMemory):
            # Whichever it is: who gives it keeps it until it is taken.
            given = from_memory(control, "the giver", copied=True)
            state = given if control.generation == generation else None
        elif isinstance(control, StateOutline):
            assembly = StateAssembly() if control.generation == generation else None
            state = None if assembly is None else assembly.begin(control)
        elif assembly is not None and isinstance(control, StateTensor):
            state = assembly.take(control, body)
        if state is not None:
            return state


def give_state(node: ProcessNode, to: str, state: PlainState, generation: int) -> None:
    """Send a state to another node, or to the hub."""
    give(node.context.mailbox, to, state, generation, node.context.layout.size)
