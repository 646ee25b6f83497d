"""The hub's comparison of replicas: do all workers have the same parameters after the same updates?"""

from __future__ import annotations

from collections.abc import Sequence

from ownpace.core.contract.errors import ReplicasDiffer

_ADVICE = (
    "only optimizer.step() may change parameters, on all ranks alike: does the script write to them itself, does the "
    "optimizer draw random numbers, or do unlike processors round differently (then take stride, local or async)?"
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
        return f"layer '{name}'{more} on {_ranks(wrong)} from that of {_ranks(right)}"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
