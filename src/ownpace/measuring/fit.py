"""From measured times to what a fleet file can say: a fixed part, a slope, jitter, latency and bandwidth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ownpace.fleet.model import FASTEST, MEAN_ABS_NORMAL, SLOWEST

_QUARTILES = (0.3186, 0.6745, 1.1503)
"""Of |N(0,1)|."""
_OUTLIER = 10.0
"""A micro-batch that took more times the median than this counts as this many: one stall is not a machine's pace."""
_NO_JITTER = 0.01
_BLOCKS = 4
_LEAST_SHARE = 0.01
"""Of the time of the largest micro-batches, at least, that goes with their samples."""
_LEAST_S_PER_BYTE = 1e-13
_MOST_JITTER = 3.0
"""As of a machine whose batches take up to ten times as long; quartiles farther apart are not of this kind of noise."""


@dataclass(frozen=True)
class PaceFit:
    """A micro-batch of n samples takes s_per_batch + n · s_per_sample, times 1 + jitter · |N(0,1)|."""

    s_per_batch: float
    s_per_sample: float
    jitter: float
    uncertainty: float
    """How far the means of parts of the measurement are from that of all of it, as a share."""

    def seconds(self, samples: float) -> float:
        """How long a micro-batch of this many samples takes on average."""
        return (self.s_per_batch + samples * self.s_per_sample) * (1 + self.jitter * MEAN_ABS_NORMAL)


def pace_of(s_per_sample: float) -> float:
    """Samples per second, within what a fleet may have."""
    return min(FASTEST, max(SLOWEST, 1 / s_per_sample))


def fit_pace(times: Sequence[tuple[int, float]]) -> PaceFit:
    """What explains these pairs of samples and seconds, in the order in which they were measured.

    The mean time is kept exactly, since it decides how much a machine computes. Jitter comes from the quartiles: a few
    micro-batches that take ten times as long, as on a machine that others use, too, slow all of them down alike.
    """
    by_size: dict[int, list[float]] = {}
    for samples, seconds in times:
        by_size.setdefault(samples, []).append(seconds)
    medians = {samples: statistics.median(seconds) for samples, seconds in by_size.items()}
    # Not nothing: where size does not matter, paces would differ without bound.
    least = _LEAST_SHARE * min(seconds / samples for samples, seconds in medians.items())
    s_per_batch, s_per_sample = fit_line(list(medians.items()), least)
    ratios = [min(seconds / medians[samples], _OUTLIER) for samples, seconds in times]
    mean = statistics.fmean(ratios)
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    spread = (high - low) / (_QUARTILES[2] - _QUARTILES[0])
    undisturbed = max(middle - _QUARTILES[1] * spread, spread / _MOST_JITTER)
    jitter = spread / undisturbed if spread > _NO_JITTER * undisturbed else 0.0
    base = mean / (1 + jitter * MEAN_ABS_NORMAL)
    return PaceFit(base * s_per_batch, base * s_per_sample, jitter, _uncertainty(ratios, mean))


def _uncertainty(ratios: Sequence[float], mean: float) -> float:
    """How much the mean moves over the measurement: a machine that others use, too, is not the same all the time."""
    size = len(ratios) // _BLOCKS
    if not size:
        return 1.0
    parts = [statistics.fmean(ratios[block * size : (block + 1) * size]) for block in range(_BLOCKS)]
    return max(abs(part / mean - 1) for part in parts)


def fit_line(points: Sequence[tuple[float, float]], least: float = 1 / FASTEST) -> tuple[float, float]:
    """Intercept and slope of the line with the smallest relative errors; not below 0 and `least`.

    >>> fit_line([(1, 3.0), (2, 5.0), (4, 9.0)])
    (1.0, 2.0)
    """
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    square = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = 0.0
    if square > 0:
        slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / square
    # Of one size alone, all of its time goes with its samples: nothing says that some of it does not.
    if square <= 0 or mean_y < slope * mean_x:
        return 0.0, max(mean_y / mean_x, least)
    slope = max(slope, least)
    # To twelve digits: the rest is rounding.
    return max(0.0, float(f"{mean_y - slope * mean_x:.12g}")), float(f"{slope:.12g}")


@dataclass(frozen=True)
class LinkFit:
    """Of each machine's link, as a fleet file has it."""

    bandwidth_bytes_per_s: float
    latency_s: float


def fit_sums(num_workers: int, points: Sequence[tuple[float, float]], gradient: tuple[float, float]) -> LinkFit:
    """The links with which a ring takes as long as these sums did.

    A ring of n takes 2(n-1)/n · bytes / bandwidth + 2(n-1) · latency.

    Args:
        num_workers: n.
        points: Bytes and seconds of sums of vectors, which say how much more a byte more takes.
        gradient: Bytes and seconds of the sum of a whole gradient, which the links have to reproduce.
    """
    steps = 2 * (num_workers - 1)
    _, slope = fit_line(points, _LEAST_S_PER_BYTE)
    nbytes, seconds = gradient
    # Not slower than the gradient's own sum allows, whose latency would be below 0.
    s_per_byte = min(slope, seconds / nbytes)
    return LinkFit(steps / num_workers / s_per_byte, max(0.0, seconds - nbytes * s_per_byte) / steps)
