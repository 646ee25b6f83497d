"""What nodes and the hub say to each other about the run itself: typed messages, next to those of the algorithm.

One run, from the first word to the last. Several of a kind are marked with *, what only some nodes say with ( ).

    worker                      hub                        server, communicator
      │── Hello(fingerprint) ──►│                            │        what I am about to train
      │◄── Welcome | Refuse ────│                            │        all workers train the same, or none does
      │ … parameters of rank 0 go to all workers (a collective) and servers (a message) …
      │◄─ (ClockRequest, ClockAnswer)* ─►│◄─────────────────►│        several hosts: how far apart are the clocks?
      │── Prepared ────────────►│◄──────────────── Prepared ─│
      │◄── Start(zero_s) ───────│────── Start(zero_s) ──────►│        all are prepared: time begins
      │── Report* ─────────────►│◄─────────────────  Report*─│        events and totals, several times a second
      │── Snapshot*, (WorkerBuffers*) ─►│◄─────── Snapshot* ─│        parameters to be evaluated
      │◄── (Stop) ──────────────│─────────────── (Stop) ────►│        Ctrl-C, or the target is reached
      │── (Pull) ──────────────────────────────────────────►│        a user's loop wants what the servers hold
      │◄─ (Pulled) ─────────────────────────────────────────│
      │── (PullState, StatePart*) ──────────────────────────►│        … or the state of their optimizers, or gives it
      │◄─ (StatePart*) ─────────────────────────────────────│
      │── (Checksums)* ────────►│                            │        are replicas still equal? (talk.replica_control)
      │── (Leaving) ───────────►│                            │        a signal asks my process to end
      │◄── (Dismiss) ───────────│                            │        … and it may: the others go on without it
      │── Ended(checksums) ────►│                            │        all my updates are made
      │◄── (Release) ───────────│────── Release ────────────►│        every worker has ended: so may you
      │── Finished ────────────►│◄────────────── Finished ───│        there is nothing more of mine to come
      │◄── Goodbye(events) ─────│────── Goodbye ────────────►│        this is how the run ended

    Failed(code, …)     node → hub: I failed, and why             GiveUp(code, …)     hub → nodes: the run has failed

Hello is the first message of a worker, Prepared of the others. No node sends after Goodbye, or after Failed.

How a run goes from one generation to the next is drawn in `talk.regrouping`.

Around it, from `ownpace.join` on, the ranks themselves talk, on lines of their own (`talk.rank_control`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ownpace.core.contract.errors import BY_CODE, NodeFailed, OwnpaceError
from ownpace.engines.ledger import UpdateTotals
from ownpace.engines.process.talk.checked import Count
from ownpace.engines.process.talk.rank_control import Agreed, Parted, Past, Rejoin, Saved, Together
from ownpace.engines.process.talk.regrouping import (
    DeclaredDead,
    Lost,
    Regroup,
    RegroupPlan,
    Standing,
    StateInMemory,
    StateOutline,
    StateTensor,
)
from ownpace.engines.process.talk.replica_control import Apart, Checksums, FirstReplica


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker has come: what it is about to train, by name, in words that an error can quote."""

    fingerprint: dict[str, str]
    rounding: str = ""
    """A digest of how its processor rounds."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """All workers are about to train the same thing."""

    is_late: bool = False
    """Whether they do so already: this one joins at the next border."""
    round_unlike: bool = False
    """Whether their processors do."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The workers are about to train different things."""

    message: str


@dataclass(frozen=True, slots=True)
class ClockRequest:
    """What time is it at the hub?"""


@dataclass(frozen=True, slots=True)
class ClockAnswer:
    """The hub's monotonic clock."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """This node is ready to begin."""

    generation: int = 0
    checksums: list[int] = field(default_factory=list)
    """Of the layers of a worker's parameters, from the second generation on."""


@dataclass(frozen=True, slots=True)
class Start:
    """A generation begins. Time began at this moment of the hub's monotonic clock; at first, a little in the future."""

    zero_s: float
    generation: int = 0


@dataclass(slots=True)
class WorkDone:
    """What a worker has computed so far."""

    samples: Count = 0
    compute_s: float = 0.0
    load_s: float = 0.0
    loss: float | None = None
    """Mean loss of the latest gradient; None: not known, or not finite."""
    spans: list[list[float]] = field(default_factory=list)
    """Start and end of each computation since the last report."""

    @property
    def pace(self) -> float:
        """Samples per second of computing."""
        return self.samples / self.compute_s if self.compute_s else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a node did since its last report: its events as lines, its totals as they are now."""

    now_s: float
    totals: UpdateTotals
    work: WorkDone
    events: list[str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The parameters of a shard, which come along, as they were at this time."""

    t: float
    samples: Count
    updates: Count
    shard: Count
    final: bool


@dataclass(frozen=True, slots=True)
class WorkerBuffers:
    """A worker's buffers (BatchNorm's running statistics), which come along in one vector."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Come to an end, as if the budget were spent."""

    is_border: bool = False
    """Whether only this generation ends: the run goes on with another."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A signal asks this worker's process to end. It goes on until the hub says what becomes of the run."""

    signal: str
    """Its name."""
    helpers: list[str]
    """The servers and communicators that end with this process."""


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The others go on without this node: it ends now."""

    signal: str
    """What asked it to."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A user's loop asks a server for its parameters, outside of the algorithm."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """They come along."""

    shard: Count
    version: Count
    samples: Count
    """Of all updates so far."""


@dataclass(frozen=True, slots=True)
class PullState:
    """A user's loop asks a server for the state of its optimizer."""


@dataclass(frozen=True, slots=True)
class StatePart:
    """A number or a tensor, which comes along, of an optimizer's state: what a layer has under this name."""

    layer: int
    """Its place in the model; −1: there is no state at all."""
    key: str
    shape: list[Count]
    number: float | None
    left: Count
    """How many parts follow."""


@dataclass(frozen=True, slots=True)
class Ended:
    """This node has done all there was to do."""

    checksums: list[int] = field(default_factory=list)
    """Of the layers of a worker's parameters, where replicas are to be equal."""
    samples: int = 0
    """Of all updates that it knows of."""
    is_through: bool = False
    """Whether its algorithm has ended by itself, though training could have gone on."""


@dataclass(frozen=True, slots=True)
class Release:
    """The last worker has ended, and the run is over: all nodes may end."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Whatever this node had to send is with the hub."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """Every node has ended. The first, the evaluating and the last record of the run, as lines."""

    events: list[str]


@dataclass(frozen=True, slots=True)
class Failed:
    """A node failed."""

    code: str
    message: str

    @classmethod
    def of(cls, who: str, error: BaseException) -> Failed:
        """What a node that fails tells the hub."""
        if isinstance(error, OwnpaceError):
            return cls(error.code, str(error))
        return cls(NodeFailed.code, f"{who}: {type(error).__name__}: {error}")

    def error(self, sender: str) -> OwnpaceError:
        """The error that it was; the sender is to blame, unless it only suffers from the failure of another node."""
        error = BY_CODE.get(self.code, NodeFailed)(self.message)
        error.blame = "" if error.is_consequence else sender
        return error


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run has failed, and why: this node can only end."""

    code: str
    message: str


Control = (
    Hello
    | Welcome
    | Refuse
    | ClockRequest
    | ClockAnswer
    | Prepared
    | Start
    | Report
    | Snapshot
    | WorkerBuffers
    | Stop
    | Leaving
    | Dismiss
    | Pull
    | Pulled
    | PullState
    | StatePart
    | Checksums
    | FirstReplica
    | Apart
    | Ended
    | Finished
    | Lost
    | Regroup
    | Standing
    | RegroupPlan
    | StateOutline
    | StateTensor
    | StateInMemory
    | DeclaredDead
    | Release
    | Goodbye
    | Failed
    | GiveUp
    | Together
    | Agreed
    | Rejoin
    | Past
    | Saved
    | Parted
)
