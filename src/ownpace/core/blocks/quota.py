"""How many samples each worker may, or is to, contribute to an update."""

from __future__ import annotations

from collections.abc import Sequence

from ownpace.core.blocks.paces import differs, divide
from ownpace.core.contract.errors import InputError


class Quota:
    """The samples of an update, divided among the workers by pace: whole numbers that add up to them, each at least 1.

    All workers have seen the same sums when they begin the same batch, so all divide alike, and the parts add up. Until
    every pace is known they are equal. A division stays until a part is off by a tenth, since GPUs choose their kernels
    anew for every size. An update that takes several sums has its samples divided among these first.
    """

    def __init__(self, name: str, samples: int, num_workers: int, num_sums: int) -> None:
        if samples < num_workers * num_sums:
            parts = f"{num_workers} workers" if num_sums == 1 else f"{num_workers} workers and {num_sums} sums"
            raise InputError(
                f"{name} is {samples}, but an update has a sample of each of {parts}; "
                f"use at least {num_workers * num_sums}"
            )
        self._sums = divide(samples, [1] * num_sums)
        self._parts = [divide(share, [1] * num_workers) for share in self._sums]
        self._turn = 0

    def next(self, rank: int) -> int:
        """This worker's part of the next batch."""
        parts = self._parts[self._turn % len(self._parts)]
        self._turn += 1
        return parts[rank]

    def follow(self, paces: Sequence[float]) -> None:
        """Divide by these paces from the next batch on, if that changes much."""
        better = [divide(share, paces) for share in self._sums]
        both = zip(better, self._parts, strict=True)
        if any(differs(new, old) for news, olds in both for new, old in zip(news, olds, strict=True)):
            self._parts = better


__all__ = ["Quota"]
