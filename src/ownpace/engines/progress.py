"""How far a run is, as far as one node knows: versions, samples, the schedule's position, and when to stop."""

from __future__ import annotations

import math

from ownpace.core.contract.values import Gradient, Parameters


class Progress:
    """One node's knowledge of the run. What others know arrives with messages and sums, and is taken in on await.

    A learner counts the updates that it makes itself; a worker whose parameters come from servers counts what they
    tell it. Servers hear nothing: they count their own updates.
    """

    __slots__ = ("ahead", "budget", "counts_alone", "last_version", "samples", "stop", "version", "versions")

    def __init__(self, budget: float, num_shards: int = 1, *, counts_alone: bool = False) -> None:
        self.budget = budget
        """Samples after which training is over."""
        self.last_version: float = math.inf
        """Updates after which training is over."""
        self.counts_alone = counts_alone
        """Whether this node counts its own updates alone, whatever others say."""
        self.samples = 0
        """Of all updates that this node made or heard of."""
        self.stop = False
        """Whether the run is to end, whatever the count."""
        self.version = 0
        """How many updates made this node's parameters (the oldest of its shards)."""
        self.versions = (0,) * num_shards
        """The same, for each shard."""
        self.ahead = 0.0
        """By how many samples the schedule is further than the count."""

    @property
    def training(self) -> bool:
        """Whether the run goes on."""
        return self.samples < self.budget and self.version < self.last_version and not self.stop

    @property
    def scheduled(self) -> float:
        """Where the schedule is, in samples."""
        return self.samples + self.ahead

    def begin_at(self, samples: int, versions: tuple[int, ...], ahead: float) -> None:
        """Begin at this point of a run; `versions` are those of its shards."""
        self.samples, self.versions, self.ahead = samples, versions, ahead
        self.version = min(versions)

    def hear(self, samples: int, stop: bool) -> None:
        """Take in what another node knew."""
        # The largest count wins: messages from different nodes overtake each other, and a count never goes back.
        if samples > self.samples and not self.counts_alone:
            self.samples = samples
        if stop:
            self.stop = True

    def made_update(self, gradient: Gradient, advance: float | None = None) -> int:
        """Count one update; returns how stale the gradient was.

        Args:
            gradient: What was applied.
            advance: By how many samples the schedule goes on (None: by those of the gradient).
        """
        # Before this update is counted: a gradient applied to the very parameters it was computed at is not stale.
        staleness = self.version - gradient.versions[0]
        self.version += 1
        if len(self.versions) == 1:
            self.versions = (self.version,)
        else:
            self.versions = (self.version,) * len(self.versions)
        self.samples += gradient.new_samples
        if advance is not None:
            self.ahead += advance - gradient.new_samples
        return staleness

    def placed(self, parameters: Parameters) -> None:
        """A server's parameters were put in the place of this worker's own."""
        if len(self.versions) == 1:
            self.version = parameters.version
            self.versions = (parameters.version,)
        else:
            index = parameters.shard.index
            self.versions = (*self.versions[:index], parameters.version, *self.versions[index + 1 :])
            self.version = min(self.versions)

    def versions_at(self, at: Parameters | None) -> tuple[int, ...]:
        """The versions of the parameters that a gradient is computed at: my own, or a given point's."""
        if at is None:
            return self.versions
        # A point has one version, that of the oldest shard; after a failure, others may have made more updates than it.
        updates_since = self.version - at.version
        return tuple(version - updates_since for version in self.versions)
