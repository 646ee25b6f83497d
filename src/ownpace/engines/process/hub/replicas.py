"""The hub's comparison of replicas: do all workers have the same parameters after the same updates?"""

from __future__ import annotations

from collections.abc import Sequence

from ownpace.core.contract.errors import ReplicasDiffer, ranks_in_words
from ownpace.engines.process.talk.replica_control import Apart

_ADVICE = (
    "only optimizer.step() may change parameters, on all ranks alike: does the script write to them itself (as does "
    "eval() of a schedule-free optimizer, whose average is each rank's own with local steps), does the optimizer draw "
    "random numbers, or do different processors round its steps differently? (then take stride, local or async)"
)


class RoundedApart:
    """How often replicas differed by rounding, and how far, in all generations; they were made equal each time."""

    def __init__(self) -> None:
        self.times = 0
        self.most = 0.0
        self._version = 0

    def add(self, version: int, apart: float) -> None:
        """A worker was so far from the first one."""
        self.most = max(self.most, apart)
        if version != self._version:  # at the same update, several workers are
            self._version = version
            self.times += 1

    def __str__(self) -> str:
        return (
            f"the processors of the workers round differently: replicas differed in {self.times} comparisons, by at "
            f"most {self.most:.1g} of a layer's largest number, and were made equal again"
        )


class Replicas:
    """Compares the checksums of layers that workers send."""

    def __init__(self, workers: Sequence[str], layers: Sequence[str]) -> None:
        self._workers = workers
        self._layers = layers
        self._waiting: dict[int, dict[str, list[int]]] = {}
        self._last: dict[str, list[int]] = {}
        self.agreed = 0
        """The latest update after which all were equal; they begin so."""
        self.are_identical: bool | None = None
        """Whether all ended with the same bits; None: that is not known."""

    def take(self, worker: str, version: int, checksums: list[int]) -> None:
        """Take in what a worker has after this many updates.

        Raises:
            ReplicasDiffer: The workers' parameters differ.
        """
        of_all = self._waiting.setdefault(version, {})
        of_all[worker] = checksums
        if len(of_all) == len(self._workers):
            self._compare(self._waiting.pop(version), f"update {version} at the latest")
            self.agreed = max(self.agreed, version)

    def take_last(self, worker: str, checksums: list[int]) -> None:
        """Take in what a worker has at the end; nothing, if nothing is promised.

        Raises:
            ReplicasDiffer: The workers' parameters differ.
        """
        if checksums:
            self._last[worker] = checksums
        if len(self._last) == len(self._workers):
            self._compare(self._last, "the end")
            self.are_identical = True

    def take_apart(self, worker: str, apart: Apart) -> None:
        """Take in how far a worker was from the first one, though it has taken over what that has.

        Raises:
            ReplicasDiffer: Rounding cannot be why.
        """
        if apart.apart > apart.allowed:
            self.are_identical = False
            raise ReplicasDiffer(
                f"the parameters differ: layer '{self._layers[apart.layer]}' on {worker} from that of "
                f"{self._workers[0]}, by {apart.apart:.1g} of its largest number after {apart.updates} updates; "
                f"processors that round differently explain {apart.allowed:.1g}: " + _ADVICE
            )

    def _compare(self, of_all: dict[str, list[int]], until: str) -> None:
        by_rank = [of_all[worker] for worker in self._workers]
        if all(one == by_rank[0] for one in by_rank):
            return
        self.are_identical = False
        raise ReplicasDiffer(
            f"the parameters differ: {self._differences(by_rank)}, since some update after {self.agreed}, {until}; "
            + _ADVICE
        )

    def _differences(self, by_rank: list[list[int]]) -> str:
        """Which layers differ, and on which ranks."""
        of_layers = list(zip(self._layers, zip(*by_rank, strict=True), strict=True))
        differing = [(name, sums) for name, sums in of_layers if len(set(sums)) > 1]
        name, sums = differing[0]
        # Those that most have, or else those of rank 0, are taken to be right.
        most = max(sums, key=sums.count)
        right = [rank for rank, each in enumerate(sums) if each == most]
        wrong = [rank for rank, each in enumerate(sums) if each != most]
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        return f"layer '{name}'{more} on {ranks_in_words(wrong)} from that of {ranks_in_words(right)}"
