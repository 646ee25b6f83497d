"""Local steps that never wait: Stride, CoCoD-SGD and Overlap-Local-SGD, round by round.

Time does not depend on values, but the learning rate does depend on what a worker has heard of; so both go together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tests.conformance.plain.draws import OwnData
from tests.conformance.plain.model import Sgd, added, gradient_sum, loss, start
from tests.conformance.plain.ring import divided, shares
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
        self.off = start() * 0
        """What it was off the mean of all when this round began."""
        self.count = 0
        self.samples = 0
        self.needed: list[float] = []
        """Samples made while each sum so far was under way."""
        self.hides = False
        """Whether a sum was hidden so far."""
        self.late = False
        """Whether the last sum was not there after one step."""
        self.missed = 0.0
        """Samples that it could have made while it waited for the last sum."""
        self.rank, self._setting, self._data = rank, setting, data
        self._sgd = Sgd(setting)

    @property
    def size(self) -> int:
        return self._setting.batch_size

    def step(self, size: int | None = None) -> None:
        setting = self._setting
        size = size or setting.batch_size
        inputs = self._data.take(self.rank, size)
        done = min(1.0, self.heard / setting.samples)
        scale = 0.5 * (1 + math.cos(math.pi * done)) if setting.cosine else 1.0
        after = self._sgd.moved(self.at, gradient_sum(self.at, inputs) / size, scale)
        self.progress = self.progress + (self.at - after)
        self.at = after
        self.count += 1
        self.samples += size
        self.now = setting.when_computed(self.rank, self.now, size)

    def hand_in(self) -> tuple[Tensor, int, float]:
        handed = self.progress, self.samples, self.now
        self.progress, self.count, self.samples = start() * 0, 0, 0
        return handed


def strides(
    setting: Setting,
    steps: int,
    *,
    max_batch: int | None = None,
    warmup: int = 0,
    max_wait: float = 0.05,
    outer_lr: float = 1.0,
    outer_momentum: float | None = None,
    pull: float | None = None,
) -> Result:
    """Stride with local steps of the batch size."""
    data = OwnData(setting)
    workers = [Alone(setting, rank, data) for rank in range(setting.num_workers)]
    x, momentum, samples = start(), start() * 0, 0
    made: list[Step] = []
    for worker in workers:
        worker.step()
    handed, stale = [worker.hand_in() for worker in workers], False
    wait, told = Wait(max_wait), [(False, 0.0)] * len(workers)
    while True:
        arrival = max(now for _, _, now in handed) + setting.ring_seconds
        whole = sum(count for _, count, _ in handed)
        if not whole:
            break
        mean = added(count / whole * progress for progress, count, _ in handed)
        mu = outer_momentum
        if mu is None:
            counts = [count for _, count, _ in handed]
            mu = for_long_rounds(counts, [count / setting.batch_size for count in counts])
        momentum = (mu * momentum + mean) * (mu > 0)
        x = x - outer_lr * (mean + mu * momentum)
        for worker, (progress, _, _) in zip(workers, handed, strict=True):
            # What its round did otherwise than those of the others did on average.
            worker.off = worker.off + (mean - progress)
        last = samples >= setting.samples
        bounds = lengths(setting, steps, max_batch, by_pace=len(made) > 0)
        for worker, (least, most) in zip(workers, bounds, strict=True):
            if not last and len(made) >= warmup and not wait.is_on:
                go_on_alone(worker, arrival, usual(worker, least, most))
            worker.missed = max(0.0, arrival - worker.now) * setting.paces[worker.rank]
            worker.now = max(worker.now, arrival)
            worker.heard = samples + whole
            worker.off = worker.off * (1 - (taken_back(worker.count) if pull is None else pull))
            worker.at = x - worker.progress + worker.off
        samples += whole
        made.append(Step(min(worker.now for worker in workers), whole, int(stale), loss(x)))
        if last:
            break
        wait.hear(all(late for late, _ in told), sum(missed for _, missed in told), whole)
        told = [(worker.late, worker.missed) for worker in workers]
        # A round whose first step was made before this sum came is one update late when it is applied.
        stale = any(worker.count for worker in workers)
        for worker, (least, _) in zip(workers, lengths(setting, steps, max_batch, by_pace=True), strict=True):
            while samples < setting.samples and worker.samples < least:
                worker.step()
        handed = [worker.hand_in() for worker in workers]
    return Result(x, made)


def for_long_rounds(samples: Sequence[int], steps: Sequence[float]) -> float:
    """The momentum that a round gets, by what each worker did in it; 0 up to four steps."""
    shares = [count / sum(samples) for count in samples]
    length = sum(share * count for share, count in zip(shares, steps, strict=True))
    return 0.0 if length <= 4 else (1 - 4 / length) * (1 - math.sqrt(sum(share**2 for share in shares)))


def taken_back(steps: int) -> float:
    """The part of what a worker is off the mean that a sum mends: all after four steps at most, then less, to 0.7."""
    return 1.0 if steps <= 4 else 0.7 + 1.2 / steps


class Wait:
    """Whether all wait for the sum under way: tried from the fourth sum on, and kept up while it is cheap."""

    def __init__(self, most: float) -> None:
        self.is_on = False
        self._most = most
        self._sums, self._next = 0, 4
        self._since = 0
        self._dear: list[bool] = []

    def hear(self, all_late: bool, missed: float, whole: int) -> None:
        """A sum has come, with what all workers told of the one before it."""
        self._sums += 1
        if self.is_on:
            # The first that was waited for is told of by the sum after it, and does not count.
            if self._sums > self._since + 2:
                self._dear.append(missed / (missed + whole) > self._most)
            if self._dear == [True] or sum(self._dear[-3:]) >= 2:
                self.is_on, self._next = False, self._sums + 400
        elif self._most and self._sums >= self._next and not all_late:
            self.is_on, self._since, self._dear = True, self._sums, []


def lengths(setting: Setting, steps: int, max_batch: int | None, *, by_pace: bool) -> list[tuple[float, float]]:
    """Of each worker, the samples that make a round, and the most that it may have; by pace, once paces are known."""
    size, fastest = setting.batch_size, max(setting.paces)
    whole = max(32, 2 * steps) * size * setting.num_workers if max_batch is None else max_batch
    parts: list[float] = [math.inf] * setting.num_workers
    if whole:
        parts = list(divided(whole, setting, by_pace=by_pace))
    count = [steps * pace / fastest if by_pace else 1 for pace in setting.paces]
    return [(max(1, min(round(k), part // size)) * size, part) for k, part in zip(count, parts, strict=True)]


def usual(worker: Alone, least: float, most: float) -> float:
    """The most samples of a round: no more than twice what the last five sums needed, the middle one of them."""
    last = sorted(worker.needed[-5:]) or [2 * least]
    middle = (last[(len(last) - 1) // 2] + last[len(last) // 2]) / 2
    return min(most, 2 * max(least, middle))


def go_on_alone(worker: Alone, arrival: float, most: float) -> None:
    """Steps while a sum is under way."""
    # Alone, a sum takes no time; still it is not there at the very moment that it is asked for.
    while worker.now <= arrival:
        if worker.samples + worker.size > most:
            worker.late = True
            # It would have been more. As long as all were so, the last one counts alone: they are ever longer.
            worker.needed = [*worker.needed, 2 * worker.samples] if worker.hides else [8 * worker.samples]
            return
        worker.step()
    worker.late = worker.count > 1
    worker.needed = [*(worker.needed if worker.hides else ()), worker.samples]
    worker.hides = True


def decoupled(setting: Setting, steps: int) -> Result:
    """CoCoD-SGD: the mean of the last models plus one's own progress since."""
    x = start()
    whole = setting.batch_size * setting.num_workers

    def sizes(number: int) -> list[int]:
        # The first sum, which tells all paces, is there after the second round.
        return [setting.batch_size] * setting.num_workers if number < 2 else shares(setting.paces, whole)

    def merge(parts: Parts, workers: Sequence[Alone]) -> Tensor:
        nonlocal x
        samples = sum(count for _, count, _ in parts)
        x = x - added(count / samples * progress for progress, count, _ in parts)
        for worker in workers:
            worker.at = x - worker.progress
        return x

    return in_rounds(setting, steps, sizes, merge)


def anchored(setting: Setting, steps: int, pullback: float, momentum: float) -> Result:
    """Overlap-Local-SGD: models are pulled back to an anchor, which follows their mean with momentum."""
    z, v = start(), start() * 0

    def merge(parts: Parts, workers: Sequence[Alone]) -> Tensor:
        nonlocal z, v
        mean = added(model for model, _, _ in parts) / setting.num_workers
        v = momentum * v + (mean - z)
        z = z + v
        for worker in workers:
            worker.at = worker.at - pullback * (worker.at - z)
        return z

    return in_rounds(setting, steps, lambda _: [setting.batch_size] * setting.num_workers, merge, models=True)


Parts = list[tuple[Tensor, int, float]]


def in_rounds(
    setting: Setting,
    steps: int,
    sizes: Callable[[int], Sequence[int]],
    merge: Callable[[Parts, Sequence[Alone]], Tensor],
    *,
    models: bool = False,
) -> Result:
    """Equal numbers of steps, while the sum of the round before is under way.

    Workers hand in their progress, or, with `models`, where they are. `merge` takes in a sum, moves the workers, and
    returns the global model.
    """
    data = OwnData(setting)
    workers = [Alone(setting, rank, data) for rank in range(setting.num_workers)]
    parts: Parts = []
    made: list[Step] = []
    samples, number = 0, 0

    def take_in(waiting: Sequence[Alone]) -> Tensor:
        nonlocal samples
        arrival = max(now for _, _, now in parts) + setting.ring_seconds
        count = sum(count for _, count, _ in parts)
        samples += count
        for worker in waiting:
            worker.now = max(worker.now, arrival)
            worker.heard = samples
        at = merge(parts, waiting)
        first = min((worker.now for worker in waiting), default=arrival)
        made.append(Step(first, count, int(len(made) > 0), loss(at)))
        return at

    while samples < setting.samples:
        for worker, size in zip(workers, sizes(number), strict=True):
            for _ in range(steps):
                worker.step(size)
        if parts:
            take_in(workers)
        parts = []
        for worker in workers:
            progress, count, now = worker.hand_in()
            parts.append((worker.at if models else progress, count, now))
        number += 1
    return Result(take_in(()), made)
