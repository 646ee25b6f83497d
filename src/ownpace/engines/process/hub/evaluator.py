"""Evaluates the model on snapshots, in a thread of its own: training never stops for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from ownpace.core.contract.errors import NodeFailed
from ownpace.core.learning.flat import Buffers
from ownpace.core.learning.task import Score
from ownpace.engines.learning import RealLearning
from ownpace.engines.process.talk.control import Snapshot

_MOST_WAITING = 2
"""Evaluations that may wait; if more would, evaluating does not keep up with training, and some are left out."""


class _Kept(NamedTuple):
    snapshot: Snapshot
    values: Tensor
    buffers: list[Buffers]


class Evaluator:
    """Puts the shards of a model together, evaluates it, and keeps its latest parameters."""

    def __init__(self, learning: RealLearning, num_shards: int, eval_every: int, *, after: bool) -> None:
        self._learning = learning
        self._num_shards = num_shards
        self._eval_every = eval_every
        self._after = after
        # One thread: there is one model, and it is bound to the parameters of one snapshot at a time.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ownpace-evaluator")
        self._under_way: list[tuple[Snapshot, Future[Score]]] = []
        self._kept: list[_Kept] = []
        self._shards: dict[int, dict[int, Tensor]] = {}
        self._buffers: dict[str, Tensor] = {}
        self._values = learning.initial

    @property
    def num_buffers(self) -> int:
        """The number of values in the model's buffers, taken together."""
        return sum(buffer.numel() for buffer in self._learning.new_buffers())

    @property
    def is_busy(self) -> bool:
        """Whether evaluations are under way."""
        return bool(self._under_way)

    def begin(self) -> None:
        """Evaluate the model before training."""
        self._evaluate(Snapshot(0.0, 0, 0, 0, final=False))

    def take_buffers(self, worker: str, buffers: Tensor) -> None:
        """A worker's buffers as they are now."""
        self._buffers[worker] = buffers

    def forget(self, worker: str) -> None:
        """A worker is gone, and its buffers count no more."""
        self._buffers.pop(worker, None)

    def take(self, snapshot: Snapshot, values: Tensor) -> None:
        """A shard of the model; it is evaluated when all shards of the same mark have come."""
        # Final shards belong together, however many samples each server has seen.
        mark = -1 if snapshot.final else snapshot.samples // self._eval_every
        shards = self._shards.setdefault(mark, {})
        shards[snapshot.shard] = values
        if len(shards) == self._num_shards:
            parts = [shards[index] for index in range(len(shards))]
            self._values = parts[0] if len(parts) == 1 else torch.cat(parts)
            # Marks that one server passed and another skipped stay incomplete; they are few, and never evaluated.
            del self._shards[mark]
            self._evaluate(snapshot)

    def _evaluate(self, snapshot: Snapshot) -> None:
        # The final one is never left out: its score is the result of the run.
        if len(self._under_way) > _MOST_WAITING and not snapshot.final:
            return
        if self._after:
            self._kept.append(_Kept(snapshot, self._values, self._worker_buffers()))
        else:
            self._submit(_Kept(snapshot, self._values, self._worker_buffers()))

    def _submit(self, kept: _Kept) -> None:
        self._under_way.append((kept.snapshot, self._executor.submit(self._learning.score, kept.values, kept.buffers)))

    def scores(self, *, wait: bool) -> Iterator[tuple[Snapshot, Score | NodeFailed]]:
        """What has been evaluated since the last time, or what failed; `wait`: for all that is under way."""
        while self._under_way and (wait or self._under_way[0][1].done()):
            snapshot, future = self._under_way.pop(0)
            try:
                yield snapshot, future.result()
            except Exception as error:  # a task's own code, or a GPU that is full
                yield snapshot, NodeFailed(f"evaluating the model: {type(error).__name__}: {error}")

    def close(self) -> Iterator[tuple[Snapshot, Score | NodeFailed]]:
        """Evaluate what was kept, and end."""
        for kept in self._kept:
            self._submit(kept)
        yield from self.scores(wait=True)
        self._executor.shutdown()

    def model(self) -> dict[str, Tensor]:
        """The latest snapshot as a model, by names."""
        return self._learning.export(self._values, self._worker_buffers())

    def _worker_buffers(self) -> list[Buffers]:
        like = self._learning.new_buffers()
        return [_unflatten(flat, like) for flat in self._buffers.values()] or [like]


def _unflatten(flat: Tensor, like: Sequence[Tensor]) -> Buffers:
    parts = flat.split([buffer.numel() for buffer in like])
    return [part.view(buffer.shape).to(buffer) for part, buffer in zip(parts, like, strict=True)]
