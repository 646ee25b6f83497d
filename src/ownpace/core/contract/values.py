"""What nodes hold and hand to each other: gradients, parameters, batches, messages, addresses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Union

if TYPE_CHECKING:
    from torch import Tensor

Role = Literal["worker", "server", "communicator"]
Notes = Mapping[str, float]
"""Numbers by name."""
NO_NOTES: Notes = MappingProxyType({})
Sources = tuple[tuple[int, int], ...]
"""Whose samples: of workers, by rank, how many of those that they took. No rank twice; ascending where several met."""


def _no_notes() -> Notes:
    return NO_NOTES


@dataclass(frozen=True, slots=True)
class Shard:
    """A contiguous range of the flat parameter vector, whole layers, owned by one server (or by every worker)."""

    index: int
    start: int
    stop: int


class Address:
    """A node's identity. There is one such object per node in a process, so `is` compares nodes."""

    __slots__ = ("index", "name", "role", "shard", "site")

    def __init__(self, role: Role, index: int, name: str, shard: Shard, site: str = "") -> None:
        self.role = role
        self.index = index
        """Its place among the nodes of its role; a worker's rank."""
        self.name = name
        self.shard = shard
        """What a server owns; for the others, the whole vector."""
        self.site = site
        """Where it is, as the fleet says."""

    def __repr__(self) -> str:
        return f"<{self.name}>"


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """An ordered set of nodes that take part in a collective together."""

    name: str
    members: tuple[Address, ...]

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Address]:
        return iter(self.members)


class Contribution(NamedTuple):
    """One member's part in a summed gradient."""

    samples: int
    seconds: float
    """That it spent on computing, before any transfer."""
    used: int = 0
    """Samples that it is done with: those that nothing was learnt from before, and those that it threw away."""

    @property
    def pace(self) -> float:
        """Samples per second of computing; 0 if nothing was computed."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True, eq=False)
class Gradient:
    """The sum of the per-sample gradients of some samples, and how many they were.

    A sum and a count, not a mean: adding two of them is then right whatever their sizes, and the
    mean over the union of all workers' samples is the mean of the sum.

    A layer that took no part in any of the losses has no gradient, which is not the same as one of zero: weight decay
    and momentum must leave it alone. Its numbers are all −0.0, the only one that every sum keeps: −0.0 + x is x, and
    −0.0 + −0.0 is −0.0. The numbers of a real gradient are never −0.0.
    """

    total: Tensor
    """G, flat: the sum over the samples of each one's gradient."""
    samples: int
    """n, how many samples were summed."""
    versions: tuple[int, ...]
    """The version of the parameters it was computed at, one for each shard (the oldest, if several were added)."""
    loss: float | Tensor = math.nan
    """The sum of the samples' losses; on a GPU, a tensor, so that nothing has to wait for it."""
    seconds: float = 0.0
    """Time spent on computing it, before any transfer."""
    notes: Notes = field(default_factory=_no_notes)
    """A few numbers with names that travel along and are summed in collectives: norms, say."""
    contributions: tuple[Contribution, ...] = ()
    """For the sum of a collective: what each member of the group contributed, in the group's order."""
    partial: bool = False
    """Whether layers may be without a gradient. Without this mark nothing looks for them, and waits for a GPU."""
    counts: tuple[int, ...] = ()
    """Where several models are parts of one vector: how many samples are new (one model's step after another's learns
    from the same), then the number that each model's part is summed over. Empty: all are new, for all parts."""
    dropped: int = 0
    """How many samples its worker threw away since its gradient before: a user's loop may skip batches."""
    sources: Sources = ()
    """Whose samples are used up by it, learnt from or thrown away: after a failure all others are dealt again. Engines
    stamp what a worker computes, and add up what updates are made of."""

    @property
    def new_samples(self) -> int:
        """How many samples nothing was learnt from before."""
        return self.counts[0] if self.counts else self.samples

    def samples_of(self, model: int) -> int:
        """How many samples a model's part is summed over."""
        return self.counts[1 + model] if self.counts else self.samples

    @property
    def mean(self) -> Tensor:
        """G / n, the gradient of the mean loss over the samples; of no samples, zero."""
        return self.total / max(1, self.samples)

    @property
    def as_contribution(self) -> Contribution:
        """What this gradient is in a sum."""
        return Contribution(self.samples, self.seconds, self.new_samples + self.dropped)

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, the handful of the header left out."""
        return self.total.nbytes

    def without_numbers(self) -> Gradient:
        """What is known of it, but for its numbers."""
        bare = self._with(self.total.new_empty(0), self.notes)  # no view, which would keep all of them in memory
        bare.contributions = self.contributions
        return bare

    def noting(self, **notes: float) -> Gradient:
        """The same gradient with these numbers to travel along."""
        return self._with(self.total, notes)

    def scaled(self, factor: float) -> Gradient:
        """The gradient of the same samples, their losses weighted by `factor`."""
        return self if factor == 1 else self._with(self.total * factor, self.notes)

    def with_mean(self, mean: Tensor) -> Gradient:
        """The gradient of the same samples, corrected: this is the mean over them."""
        total = mean * self.samples
        if self.partial:
            # A correction may have made something of nothing.
            total = total.where((self.total != 0) | ~self.total.signbit(), -0.0)
        return self._with(total, self.notes)

    def _with(self, total: Tensor, notes: Notes) -> Gradient:
        return Gradient(
            total, self.samples, self.versions, self.loss, self.seconds, notes, (), self.partial, self.counts,
            self.dropped, self.sources,
        )  # fmt: skip

    def part(self, shard: Shard) -> Gradient:
        """The layers of one shard, as a view."""
        # One shard is the whole vector: no view is needed.
        if len(self.versions) == 1:
            return self
        part = self._with(self.total[shard.start : shard.stop], self.notes)
        part.versions = (self.versions[shard.index],)
        return part

    def __add__(self, other: Gradient) -> Gradient:
        """The gradient of the union of two disjoint sets of samples."""
        return self.joined(other, self.total + other.total)

    def joined(self, other: Gradient, total: Tensor) -> Gradient:
        """The same, where the sum of both totals is known."""
        return Gradient(
            total,
            self.samples + other.samples,
            tuple(map(min, self.versions, other.versions)),
            self.loss + other.loss,
            self.seconds + other.seconds,
            sum_notes([self.notes, other.notes]),
            partial=self.partial or other.partial,
            counts=sum_counts([self.counts, other.counts]),
            dropped=self.dropped + other.dropped,
            sources=sum_sources([self.sources, other.sources]),
        )


def union(gradients: Sequence[Gradient], total: Tensor | None = None) -> Gradient:
    """The gradient of the union of all their samples: totals, counts and notes are summed, in this order.

    `total`: the sum of their totals, if that is known.
    """
    return Gradient(
        total=add_up([gradient.total for gradient in gradients]) if total is None else total,
        # Lists: for the few members of most sums, generators cost more than all of these together.
        samples=sum([gradient.samples for gradient in gradients]),
        versions=tuple(map(min, zip(*[gradient.versions for gradient in gradients], strict=True))),
        loss=sum([gradient.loss for gradient in gradients]),
        seconds=sum([gradient.seconds for gradient in gradients]),
        notes=sum_notes([gradient.notes for gradient in gradients]),
        contributions=tuple(
            [part for gradient in gradients for part in gradient.contributions or (gradient.as_contribution,)]
        ),
        partial=True in [gradient.partial for gradient in gradients],
        counts=sum_counts([gradient.counts for gradient in gradients]),
        dropped=sum([gradient.dropped for gradient in gradients]),
        sources=sum_sources([gradient.sources for gradient in gradients]),
    )


def sum_counts(all_counts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Counts of several models' samples, added up; those of a gradient of no samples may be empty."""
    return tuple(map(sum, zip(*[counts for counts in all_counts if counts], strict=True)))


def sum_sources(all_sources: Sequence[Sources]) -> Sources:
    """Samples added up by worker.

    >>> sum_sources([((2, 8),), (), ((0, 4), (2, 1))])
    ((0, 4), (2, 9))
    """
    given = [sources for sources in all_sources if sources]
    if len(given) < 2:
        return given[0] if given else ()
    total: dict[int, int] = {}
    for sources in given:
        for rank, samples in sources:
            total[rank] = total.get(rank, 0) + samples
    # One worker adding to its own gradient is by far the most frequent case: nothing to sort.
    return tuple(sorted(total.items())) if len(total) > 1 else tuple(total.items())


def sum_notes(all_notes: Sequence[Notes]) -> Notes:
    """Notes added up by name."""
    given = [notes for notes in all_notes if notes]
    if len(given) < 2:
        return given[0] if given else NO_NOTES
    total: dict[str, float] = {}
    for notes in given:
        for name, value in notes.items():
            total[name] = total.get(name, 0.0) + value
    return total


def add_up(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of tensors, one after the other."""
    # A new tensor for the first two; the others are added in place. What was handed in must not change.
    result = tensors[0] + tensors[1] if len(tensors) > 1 else tensors[0]
    for tensor in tensors[2:]:
        result += tensor
    return result


@dataclass(slots=True, eq=False)
class Parameters:
    """A snapshot of the parameters of one shard: it never changes after it has been handed out."""

    values: Tensor
    """Those of the shard's layers, flat."""
    version: int
    """How many updates made it."""
    shard: Shard
    """Which part of the vector of all parameters it is."""
    by_layer: bool = False
    """Whether a message takes it layer by layer, the lowest first."""

    def to_send(self, *, by_layer: bool) -> Parameters:
        """The same, to be sent layer by layer, or in one piece.

        A node that awaits the message gets all of it; a worker that hands it to `place` before it has come need not
        wait.
        """
        return Parameters(self.values, self.version, self.shard, by_layer) if by_layer else self

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return self.values.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples that were drawn and loaded, ready for `gradient(batch=…)`."""

    indices: Tensor
    samples: int


Body = Union[Gradient, Parameters, "Tensor", None]
"""What a message or a collective may carry."""


@dataclass(slots=True, eq=False)
class Message:
    """What `receive()` returns.

    Every message also carries what its sender knows of the run's progress. It is taken in when the message
    is awaited, so that nodes which have awaited the same things agree on whether training goes on.
    """

    sender: Address
    """The node that sent it."""
    body: Body
    """What was sent; None: notes alone."""
    samples: int
    """The samples of all updates the sender has made or heard of."""
    stop: bool
    """Whether the sender thinks that the run is to end, whatever the count."""
    notes: Notes = field(default_factory=_no_notes)
    """The numbers that were sent along, by name."""

    @property
    def gradient(self) -> Gradient:
        """The body, which must be a gradient."""
        assert isinstance(self.body, Gradient), f"{self.sender.name} sent {type(self.body).__name__}"
        return self.body

    @property
    def parameters(self) -> Parameters:
        """The body, which must be parameters."""
        assert isinstance(self.body, Parameters), f"{self.sender.name} sent {type(self.body).__name__}"
        return self.body
