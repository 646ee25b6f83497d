"""CoCoD-SGD and Overlap-Local-SGD: equal numbers of local steps, while the sum of the round before is under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.conformance.plain.alone import Alone, Handed
from tests.conformance.plain.draws import OwnData
from tests.conformance.plain.model import added, loss, start
from tests.conformance.plain.ring import shares
from tests.conformance.plain.setting import Result, Setting, Step
from torch import Tensor


def decoupled(setting: Setting, steps: int) -> Result:
    """CoCoD-SGD: the mean of the last models plus one's own progress since."""
    x = start()
    whole = setting.batch_size * setting.num_workers

    def sizes(number: int) -> list[int]:
        # The first sum, which tells all paces, is there after the second round.
        return [setting.batch_size] * setting.num_workers if number < 2 else shares(setting.paces, whole)

    def merge(parts: Parts, workers: Sequence[Alone]) -> Tensor:
        nonlocal x
        samples = sum(part.samples for part in parts)
        x = x - added(part.samples / samples * part.value for part in parts)
        for worker in workers:
            worker.at = x - worker.progress
        return x

    return in_rounds(setting, steps, sizes, merge)


def anchored(setting: Setting, steps: int, pullback: float, momentum: float) -> Result:
    """Overlap-Local-SGD: models are pulled back to an anchor, which follows their mean with momentum."""
    z, v = start(), start() * 0

    def merge(parts: Parts, workers: Sequence[Alone]) -> Tensor:
        nonlocal z, v
        mean = added(part.value for part in parts) / setting.num_workers
        v = momentum * v + (mean - z)
        z = z + v
        for worker in workers:
            worker.at = worker.at - pullback * (worker.at - z)
        return z

    return in_rounds(setting, steps, lambda _: [setting.batch_size] * setting.num_workers, merge, models=True)


Parts = list[Handed]


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
        arrival = max(part.now for part in parts) + setting.ring_seconds
        count = sum(part.samples for part in parts)
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
            part = worker.hand_in()
            parts.append(part._replace(value=worker.at) if models else part)
        number += 1
    return Result(take_in(()), made)
