"""Rounds with a barrier, and the timeline of sums that overlap with computing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from tests.conformance.plain.draws import Draws
from tests.conformance.plain.model import Model, gradient_sum, loss
from tests.conformance.plain.setting import TASK, Result, Setting, Step
from torch import Tensor

from ownpace.core.contract.events import Compute, Event

# Sync and balanced: rounds with a barrier --------------------------------------------------------------------------


def synchronous(setting: Setting, smoothing: float | None = None, tolerance: float = 0.0) -> Result:
    """Rounds with a barrier; with `smoothing`, the batches follow the measured speeds (balanced).

    The first round of each division is not measured: on GPUs it would be that of choosing kernels. Another division
    must save more than `tolerance` of a round's time; or more than a fifth of that at the mean speeds of all measured
    rounds of a division, which are looked at when there are 8, 32, 128 … of them.
    """
    model, draws = Model(setting), Draws(setting.seed)
    whole = setting.num_workers * setting.batch_size
    sizes = [setting.batch_size] * setting.num_workers
    speeds: list[float] | None = None
    result = Result(model.weights)
    now = 0.0
    alike: list[list[float]] = []  # of all rounds of a division: how long each worker took
    while model.samples < setting.samples:
        total = torch.zeros(TASK.dimensions, dtype=torch.float64)
        for size in sizes:
            total += gradient_sum(model.weights, draws.take(size))
        ends = [setting.when_computed(rank, now, size) for rank, size in enumerate(sizes)]
        measured = [size / (end - now) for size, end in zip(sizes, ends, strict=True)]
        begun, now = now, max(ends) + setting.ring_seconds
        model.step(total / whole, whole)
        result.steps.append(Step(now, whole, 0, loss(model.weights)))
        result.sizes.append(sizes)
        alike.append([end - begun for end in ends])
        if smoothing is not None and len(alike) > 1:
            speeds = measured if speeds is None else blend(speeds, measured, smoothing)
            known = [(speeds, tolerance)]
            if len(alike) - 1 in (8, 32, 128, 512):
                means = [
                    size * (len(alike) - 1) / sum(took)
                    for size, took in zip(sizes, zip(*alike[1:], strict=True), strict=True)
                ]
                known.append((means, tolerance / 5))
            for by, least in known:
                new = shares(by, whole)
                if longest(new, by) < (1 - least) * longest(sizes, by):
                    sizes, alike = new, []
                    break
    result.weights = model.weights
    return result


def longest(sizes: Sequence[int], speeds: Sequence[float]) -> float:
    """How long a round takes its slowest worker."""
    return max(size / speed for size, speed in zip(sizes, speeds, strict=True))


def blend(old: Sequence[float], new: Sequence[float], weight: float) -> list[float]:
    """The exponential mean, with `weight` for the newest."""
    return [(1 - weight) * before + weight * now for before, now in zip(old, new, strict=True)]


def shares(speeds: Sequence[float], whole: int) -> list[int]:
    """`whole` samples in proportion to the speeds: by largest remainder, ties to the lower rank.

    Where that leaves a worker with nothing, it gets one sample from whoever has most (of several: the lowest rank).
    """
    exact = [whole * speed / sum(speeds) for speed in speeds]
    sizes = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(speeds)), key=lambda rank: (sizes[rank] - exact[rank], rank))
    for rank in by_remainder[: whole - sum(sizes)]:
        sizes[rank] += 1
    while 0 in sizes:
        sizes[sizes.index(max(sizes))] -= 1
        sizes[sizes.index(0)] += 1
    return sizes


# Sums that overlap with computing: who computes what, when ---------------------------------------------------------


Micro = Sequence[Sequence[int]] | None
"""The sizes of each worker's micro-batches in order; None: all alike."""


@dataclass(frozen=True, order=True)
class Piece:
    """One micro-batch."""

    start: float
    rank: int
    size: int
    batch: int


@dataclass
class Batch:
    """What all workers compute between two sums, and its own sum."""

    sizes: list[int]
    """n_i."""
    joined: list[float]
    """When each worker handed its part over to the sum."""
    summed: float
    """When the sum was there."""

    @property
    def samples(self) -> int:
        return sum(self.sizes)


class Timeline:
    """Batch after batch; each worker begins one when it has handed over the one before."""

    def __init__(self, setting: Setting, micro: Micro = None) -> None:
        self.setting = setting
        self.pieces: list[Piece] = []
        self.batches: list[Batch] = []
        self._micro = [iter(sizes) for sizes in micro] if micro else [itertools.repeat(setting.micro)] * len(self.ranks)
        self._free = [0.0 for _ in self.ranks]

    @property
    def ranks(self) -> range:
        return range(self.setting.num_workers)

    def one_each(self, *, wait: bool = False) -> None:
        """One micro-batch each, whatever is under way. With `wait`, nobody goes on before its sum is there."""
        self._add([self._compute(rank, itertools.islice(self._micro[rank], 1)) for rank in self.ranks])
        if wait:
            self._free = [self.batches[-1].summed for _ in self.ranks]

    def until_summed(self) -> None:
        """Micro-batches, at least one, until the sum of the batch before is there."""
        self._add([self._compute(rank, self._micro[rank]) for rank in self.ranks])

    def up_to(self, parts: Sequence[int]) -> None:
        """The same, but at most this many samples of each worker: who has its part waits for the sum.

        A micro-batch is cut to what is left of the part; if that is less than half of one, the part counts as done.
        """
        self._add([self._compute(rank, cut(part, self.setting.micro)) for rank, part in enumerate(parts)])

    def exactly(self, parts: Sequence[int], *, wait: bool = False) -> None:
        """This many samples of each worker, in the fewest micro-batches, the larger first, whatever is under way."""
        micro = self.setting.micro
        self._add([self._compute(rank, in_equal_pieces(part, micro), full=True) for rank, part in enumerate(parts)])
        if wait:
            self._free = [self.batches[-1].summed for _ in self.ranks]

    def whole(self) -> None:
        """The same batch for everybody, in micro-batches; then the sum of the batch before is awaited."""
        pieces = in_equal_pieces(self.setting.batch_size, self.setting.micro)
        self._add([self._compute(rank, pieces, full=True) for rank in self.ranks])

    def _compute(self, rank: int, sizes: Iterable[int], *, full: bool = False) -> tuple[int, float]:
        """How many samples a worker computes, and when it is through."""
        now, samples = self._free[rank], 0
        for size in sizes:
            self.pieces.append(Piece(now, rank, size, len(self.batches)))
            now += size / self.setting.paces[rank]
            samples += size
            if not full and (not self.batches or now >= self.batches[-1].summed):
                break
        return samples, now

    def _add(self, computed: list[tuple[int, float]]) -> None:
        before = self.batches[-1].summed if self.batches else 0.0
        self._free = [max(end, before) for _, end in computed]
        summed = max(self._free) + self.setting.ring_seconds
        self.batches.append(Batch([samples for samples, _ in computed], self._free, summed))

    def known(self, index: int) -> float:
        """When the first worker applied the sum of a batch: after its next one, or, at the end, at once."""
        following = self.batches[index + 1 : index + 2]
        return min(following[0].joined) if following else self.batches[index].summed

    def inputs(self) -> list[list[list[Tensor]]]:
        """The samples of each batch and rank, as micro-batches: whoever begins first draws first."""
        draws = Draws(self.setting.seed)
        given_out: list[list[list[Tensor]]] = [[[] for _ in self.setting.paces] for _ in self.batches]
        for piece in sorted(self.pieces):
            given_out[piece.batch][piece.rank].append(draws.take(piece.size))
        return given_out


def cut(part: int, micro: int) -> list[int]:
    """The micro-batches of at most `part` samples."""
    sizes = [min(part, micro)]
    while (left := min(micro, part - sum(sizes))) >= micro / 2:
        sizes.append(left)
    return sizes


def in_equal_pieces(part: int, micro: int) -> list[int]:
    """All samples of a part in the fewest pieces, whose sizes differ by one at most, the larger first."""
    number = math.ceil(part / micro)
    return [part // number + (place < part % number) for place in range(number)]


def divided(whole: int, setting: Setting, *, by_pace: bool) -> list[int]:
    """`whole` samples: in equal parts, or by pace, where that moves a part by more than a tenth."""
    equal = shares([1.0] * setting.num_workers, whole)
    if not by_pace:
        return equal
    new = shares(setting.paces, whole)
    moved = any(abs(after - before) > 0.1 * before for after, before in zip(new, equal, strict=True))
    return new if moved else equal


def recorded(events: list[Event], setting: Setting) -> Micro:
    """The sizes of each worker's micro-batches as they were: how they are chosen is not the references' business."""
    return [
        [event.samples for event in events if isinstance(event, Compute) and event.who == f"worker-{rank}"]
        for rank in range(setting.num_workers)
    ]
