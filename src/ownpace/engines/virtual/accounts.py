"""Whose samples are in the parameters: what updates were made of, so that after a failure the rest is dealt again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ownpace.core.contract.values import Gradient, Sources

_TAIL = 16
"""More updates than one replica can be ahead of another: the sums that it needs have all of them as members."""


class SampleAccounts:
    """The samples that are used up in one generation: by the replicas' updates, or by each server's."""

    def __init__(self, num_workers: int, versions: Sequence[int], samples: int) -> None:
        self._samples = samples
        self._shards = [_ShardAccount(num_workers, version) for version in versions]

    def made_update(self, shard: int, version: int, gradient: Gradient) -> None:
        """An update has been made. Of replicas, the first to make it counts."""
        self._shards[shard].add(version, gradient.sources, gradient.new_samples)

    def copy(self, shard: int) -> tuple[int, list[int], int]:
        """What one shard's account says now, to come back to."""
        return self._shards[shard].copy()

    def go_back(self, shard: int, copied: tuple[int, list[int], int]) -> None:
        """Forget what one shard has learnt since that copy."""
        self._shards[shard].go_back(copied)

    def used(self, versions: Sequence[int]) -> list[int]:
        """Of each rank, how many of its samples are used up, where shards have these versions.

        A sample counts as soon as one server has learnt from it: dealt again, that server would learn from it twice.
        """
        of_shards = [account.up_to(version)[0] for account, version in zip(self._shards, versions, strict=True)]
        return [max(column) for column in zip(*of_shards, strict=True)]

    def samples(self, versions: Sequence[int]) -> int:
        """How many have been learnt from since the run began."""
        thrown = max(account.up_to(version)[1] for account, version in zip(self._shards, versions, strict=True))
        return self._samples + sum(self.used(versions)) - thrown


class _ShardAccount:
    def __init__(self, num_workers: int, version: int) -> None:
        self._used = [0] * num_workers
        self._thrown = 0
        self._version = version
        # The latest updates one by one: a replica that dies may have been the only one to make them.
        self._latest: deque[tuple[Sources, int]] = deque()

    def add(self, version: int, sources: Sources, samples: int) -> None:
        if version <= self._version + len(self._latest):
            return  # another replica made this update before
        self._latest.append((sources, samples))
        if len(self._latest) > _TAIL:
            sources, samples = self._latest.popleft()
            self._version += 1
            self._thrown += _count(self._used, sources) - samples

    def copy(self) -> tuple[int, list[int], int]:
        version = self._version + len(self._latest)
        return version, *self.up_to(version)

    def go_back(self, copied: tuple[int, list[int], int]) -> None:
        self._version, used, self._thrown = copied
        self._used = list(used)
        self._latest.clear()

    def up_to(self, version: int) -> tuple[list[int], int]:
        """Used up and thrown away by the updates up to this version."""
        assert version >= self._version, "a replica is further behind than was thought possible"
        used, thrown = list(self._used), self._thrown
        for sources, samples in list(self._latest)[: version - self._version]:
            thrown += _count(used, sources) - samples
        return used, thrown


def _count(used: list[int], sources: Sources) -> int:
    total = 0
    for rank, samples in sources:
        used[rank] += samples
        total += samples
    return total


__all__ = ["SampleAccounts"]
