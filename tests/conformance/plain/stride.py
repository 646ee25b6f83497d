"""Stride, round by round.

Time does not depend on values, but the learning rate does depend on what a worker has heard of; so both go together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.conformance.plain.alone import Alone
from tests.conformance.plain.draws import OwnData
from tests.conformance.plain.model import added, loss, start
from tests.conformance.plain.ring import divided
from tests.conformance.plain.setting import Result, Setting, Step


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
    equal_time: bool = False,
) -> Result:
    """Stride with local steps of the batch size, or of sizes that take all workers equally long."""
    data = OwnData(setting)
    workers = [Alone(setting, rank, data) for rank in range(setting.num_workers)]
    x, momentum, samples = start(), start() * 0, 0
    made: list[Step] = []
    for worker in workers:
        worker.step()
    handed, stale = [worker.hand_in() for worker in workers], False
    wait, told = Wait(max_wait), [(False, 0.0)] * len(workers)
    while True:
        arrival = max(each.now for each in handed) + setting.ring_seconds
        whole = sum(each.samples for each in handed)
        if not whole:
            break
        mean = added(each.samples / whole * each.value for each in handed)
        mu = outer_momentum
        if mu is None:
            mu = for_long_rounds([each.samples for each in handed], [each.steps for each in handed])
        momentum = (mu * momentum + mean) * (mu > 0)
        x = x - outer_lr * (mean + mu * momentum)
        for worker, each in zip(workers, handed, strict=True):
            # What its round did otherwise than those of the others did on average.
            worker.off = worker.off + (mean - each.value)
        last = samples >= setting.samples
        bounds = lengths(workers, setting, steps, max_batch, by_pace=len(made) > 0)
        for worker, (least, most) in zip(workers, bounds, strict=True):
            if not last and len(made) >= warmup and not wait.is_on:
                go_on_alone(worker, arrival, usual(worker, least * worker.size, most))
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
        fastest = setting.paces.index(max(setting.paces))
        for worker, each in zip(workers, handed, strict=True):
            if equal_time:
                worker.choose_size(each.size, handed[fastest].samples / setting.paces[fastest])
        bounds = lengths(workers, setting, steps, max_batch, by_pace=True)
        for worker, (least, _) in zip(workers, bounds, strict=True):
            while samples < setting.samples and worker.count < least:
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


def lengths(
    workers: Sequence[Alone], setting: Setting, steps: int, max_batch: int | None, *, by_pace: bool
) -> list[tuple[float, float]]:
    """Of each worker, the steps that make a round, and the most samples of one; by pace, once paces are known."""
    size, fastest = setting.batch_size, max(setting.paces)
    whole = max(32, 2 * steps) * size * setting.num_workers if max_batch is None else max_batch
    parts: list[float] = [math.inf] * setting.num_workers
    if whole:
        parts = list(divided(whole, setting, by_pace=by_pace))
    count = [
        steps * pace / fastest * size / worker.size if by_pace else 1
        for pace, worker in zip(setting.paces, workers, strict=True)
    ]
    return [
        (max(1, min(round(k), part // worker.size)), part)
        for k, part, worker in zip(count, parts, workers, strict=True)
    ]


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
