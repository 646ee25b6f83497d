"""What nodes and the hub say to each other between two generations of a run.

From one generation of a run to the next: because a node died, or in good order, when every worker has ended and the run
is not over. A node that dies meanwhile makes the hub begin again, with the next number.

    node                        hub
      │── (Lost) ──────────────►│        a peer of mine is gone: I wait for your word
      │◄── (Stop) ──────────────│        come to a border in good order: some worker wants to join, say
      │── (Ended) ─────────────►│        all my updates of this generation are made
      │◄── Regroup(number) ─────│        abandon what you are doing
      │── Standing ────────────►│        I have; this is how far I am, and whose samples are in my parameters
      │◄── RegroupPlan ─────────│        who takes part, who of them gives what it has to whom
      │─ (StateOutline, StateTensor*) ─► worker        the giver, to the other workers
      │── (StateOutline, StateTensor*) ►│  and to the hub, for a checkpoint; on one host, (StateInMemory)
      │── Prepared(number) ────►│        what I have is as planned
      │◄── Start(zero_s) ───────│        all have it: the coroutines begin

A worker that is started later says Hello as all did; the hub asks for a border, and the newcomer is in the next plan.
To a node that was declared dead and speaks again, the hub says DeclaredDead; it says Hello again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.engines.process.talk.checked import Count


@dataclass(frozen=True, slots=True)
class Lost:
    """A peer of this node is gone; it has stopped, and waits for the hub's word."""

    generation: Count
    message: str


@dataclass(frozen=True, slots=True)
class Regroup:
    """A generation of this number is about to begin: whatever belongs to another is to be abandoned."""

    generation: Count


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a node is that has abandoned its generation."""

    generation: Count
    """The one that is about to begin."""
    is_new: bool
    """Whether it has taken part in none yet."""
    version: Count
    samples: Count
    ahead: float
    used: list[Count]
    """Of each worker of the generation that ended, by rank: how many samples that it took are used up. Empty: not
    known."""
    checksums: list[int]
    """Of the layers of a worker's global parameters."""
    stage: Count = 0
    """In a user's script: twice the number of the latest loop, and one more when that is over."""


@dataclass(frozen=True, slots=True)
class RegroupPlan:
    """Who takes part in a generation, and how each of them gets what it needs."""

    generation: Count
    workers: list[str]
    """In the order of their ranks."""
    budget: float | None
    """Samples of the whole run after which the generation ends."""
    giver: str
    """The worker that tells all others where in the data they are; the hub, if a run is resumed."""
    receivers: list[str]
    """The nodes that also get the giver's parameters, optimizer state and counts."""
    fresh: list[str]
    """Nodes whose address is another than before."""
    used: list[Count]
    """As in Standing, of the node whose parameters count."""
    samples: Count
    """In those parameters."""
    version: Count
    """Of those parameters."""
    wants_state: bool
    """Whether the hub wants to have every node's state, for a checkpoint."""
    round_unlike: bool = False
    """Whether the workers' processors do."""


@dataclass(frozen=True, slots=True)
class StateOutline:
    """A state without its tensors, as JSON; they follow, by their names."""

    generation: Count
    outline: str
    names: list[str]


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A piece of the next tensor of a state, which comes along: one dimension, its bytes where the type is unusual."""

    dtype: str
    shape: list[Count]
    is_last: bool
    """Whether no more of this tensor follows."""


@dataclass(frozen=True, slots=True)
class StateInMemory:
    """A whole state: its outline as JSON, and where the bytes of its tensors are, one after the other."""

    generation: Count
    outline: str
    names: list[str]
    dtypes: list[str]
    shapes: list[list[Count]]
    pid: Count
    file: Count


@dataclass(frozen=True, slots=True)
class DeclaredDead:
    """The others have gone on without this node."""
