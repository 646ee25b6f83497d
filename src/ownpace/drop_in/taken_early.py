"""Batches that a script takes without a step: before that of the batch before (a prefetcher), or without any at all."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping

from torch import Tensor

_MANY = 256
"""Batches before the first step: more than scripts accumulate."""


class TakenEarly:
    """Warns of a batch that seems to be skipped, since the next one was taken before any gradient, but is still held.

    A script that takes a batch ahead does the same as one that skips its first: only what it holds at a step differs.
    """

    def __init__(self) -> None:
        self._latest: weakref.ref[Tensor] | None = None
        self._skipped: weakref.ref[Tensor] | None = None
        self._has_warned = False
        self._before_first_step: int | None = 0
        self._without_step: int | None = 0

    def begin_loop(self) -> None:
        """A loop begins."""
        self._without_step = 0

    def end_loop(self) -> None:
        """It has ended with its data."""
        if self._without_step is not None and self._without_step > 1:
            warnings.warn(
                f"a loop over fleet.batches ended without any optimizer.step of this rank, after {self._without_step} "
                "batches, and counts as a pass over the data in fleet.epoch; to evaluate, take an ordinary DataLoader",
                stacklevel=5,
            )

    def hand_out(self, batch: object, *, before_was_skipped: bool) -> None:
        """A batch goes to the script; `before_was_skipped`: as it seems, nothing was learnt of the last."""
        first = None if self._has_warned else _first_tensor(batch)
        self._skipped = self._latest if before_was_skipped else None
        self._latest = None if first is None else weakref.ref(first)
        if self._without_step is not None:
            self._without_step += 1
        if self._before_first_step is not None:
            self._before_first_step += 1
            if self._before_first_step == _MANY:
                warnings.warn(
                    f"{_MANY} batches were taken, and optimizer.step() was not called once; only that reaches the "
                    "other ranks, and nothing else that changes parameters does",
                    stacklevel=5,
                )

    def step(self) -> None:
        """The script calls `optimizer.step()`."""
        self._before_first_step = self._without_step = None
        held = self._skipped is not None and self._skipped() is not None
        self._skipped = None
        if held and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "two batches were taken before an optimizer.step, and the first, which counts as skipped, is still "
                "held; if this step is of it (a prefetcher?), take each batch after the step of the last, and let "
                "num_workers load ahead",
                stacklevel=5,
            )


def _first_tensor(batch: object) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((found for found in map(_first_tensor, parts) if found is not None), None)
