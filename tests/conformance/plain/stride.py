"""Local steps that never wait: Stride, CoCoD-SGD and Overlap-Local-SGD, round by round.

Time does not depend on values, but the learning rate does depend on what a worker has heard of; so both go together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.conformance.plain.draws import OwnData
from tests.conformance.plain.model import Sgd, added, gradient_sum, loss, start
from tests.conformance.plain.setting import Result, Setting, Step
from torch import Tensor


class Alone:
    """One worker: where it is, how far its clock is, and the samples of the updates that it knows of."""

    def __init__(self, setting: Setting, rank: int, data: OwnData) -> None:
        self.at = start()
        self.now = 0.0
        self.heard = 0
        self.progress = start() * 0
        """Of the round so far: a sum of steps, not a difference of places."""
        self.count = 0
        self._setting, self._rank, self._data = setting, rank, data
        self._sgd = Sgd(setting)

    def step(self) -> None:
        setting = self._setting
        inputs = self._data.take(self._rank, setting.batch_size)
        done = min(1.0, self.heard / setting.samples)
        scale = 0.5 * (1 + math.cos(math.pi * done)) if setting.cosine else 1.0
        after = self._sgd.moved(self.at, gradient_sum(self.at, inputs) / setting.batch_size, scale)
        self.progress = self.progress + (self.at - after)
        self.at = after
        self.count += 1
        self.now = setting.when_computed(self._rank, self.now, setting.batch_size)

    def hand_in(self) -> tuple[Tensor, int, float]:
        handed = self.progress, self.count * self._setting.batch_size, self.now
        self.progress, self.count = start() * 0, 0
        return handed


def strides(
    setting: Setting,
    least: Sequence[int],
    *,
    most: int = 10**9,
    warmup: int = 0,
    outer_lr: float = 1.0,
    outer_momentum: float = 0.0,
) -> Result:
    """Stride with local steps of the batch size; `least` by rank, once paces are known: before, it is one."""
    data = OwnData(setting)
    workers = [Alone(setting, rank, data) for rank in range(setting.num_workers)]
    x, momentum, samples = start(), start() * 0, 0
    steps: list[Step] = []
    for worker in workers:
        worker.step()
    handed, stale = [worker.hand_in() for worker in workers], False
    while True:
        arrival = max(now for _, _, now in handed) + setting.ring_seconds
        whole = sum(count for _, count, _ in handed)
        if not whole:
            break
        mean = added(count / whole * progress for progress, count, _ in handed)
        momentum = outer_momentum * momentum + mean
        x = x - outer_lr * (mean + outer_momentum * momentum)
        last = samples >= setting.samples
        bound = 0 if len(steps) < warmup else most
        for worker in workers:
            # Alone, a sum takes no time; still it is not there at the very moment that it is asked for.
            while not last and worker.count < bound and worker.now <= arrival:
                worker.step()
            worker.now = max(worker.now, arrival)
            worker.heard = samples + whole
            worker.at = x - worker.progress
        samples += whole
        steps.append(Step(min(worker.now for worker in workers), whole, int(stale), loss(x)))
        if last:
            break
        # A round whose first step was made before this sum came is one update late when it is applied.
        stale = any(worker.count for worker in workers)
        for rank, worker in enumerate(workers):
            while samples < setting.samples and worker.count < least[rank]:
                worker.step()
        handed = [worker.hand_in() for worker in workers]
    return Result(x, steps)
