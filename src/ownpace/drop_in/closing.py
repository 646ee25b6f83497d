"""What rank 0 says when a fleet is done: one line, and a warning where updates were larger than asked for."""

from __future__ import annotations

import warnings

from ownpace.algorithms import ALGORITHMS
from ownpace.algorithms.stride import StrideSgd
from ownpace.core.blocks.varying_batch import VaryingBatch
from ownpace.core.contract.algorithm import Algorithm
from ownpace.report.summary import Summary

_TOO_MUCH = 2


def name_of(algorithm: Algorithm) -> str:
    """What the user calls it: the name of one of ours, or the class of one of theirs."""
    return next((name for name, cls in ALGORITHMS.items() if cls is type(algorithm)), type(algorithm).__name__)


def last_line(summary: Summary, algorithm: Algorithm, num_workers: int) -> str:
    """The run in one line."""
    name = name_of(algorithm.at_work)
    if algorithm.at_work is not algorithm:
        name += f" (chosen by {type(algorithm).__name__.lower()})"
    workers = "1 worker" if num_workers == 1 else f"{num_workers} workers"
    samples = summary.update_samples
    most = "" if samples.max is None else f" (at most {samples.max:,})"
    return (
        f"ownpace: {name} on {workers}: {summary.samples:,} samples in "
        f"{summary.updates:,} updates of {samples.mean:,.0f} on average{most}, {summary.samples_per_s:,.0f} samples/s, "
        f"{100 * summary.share_of_limit:.0f} % of the sum of their paces"
    )


def warn_of_large_updates(summary: Summary, algorithm: Algorithm, batch_size: int, num_workers: int) -> None:
    """Warn if updates had more than twice the samples that were asked for, and nobody allowed that.

    Args:
        summary: Of the run.
        algorithm: With its settings.
        batch_size: The most samples that the script has taken for one step.
        num_workers: How many there are.
    """
    words, algorithm = None, algorithm.at_work
    if isinstance(algorithm, VaryingBatch):
        words = _of_varying(summary, algorithm, batch_size, num_workers)
    elif isinstance(algorithm, StrideSgd):
        words = _of_rounds(summary, algorithm, batch_size * num_workers)
    # The others prescribe the samples of an update.
    if words is not None:
        warnings.warn(f"ownpace: {words}", stacklevel=3)


def _of_varying(summary: Summary, algorithm: VaryingBatch, batch_size: int, num_workers: int) -> str | None:
    asked = algorithm.target_batch or batch_size * num_workers
    allowed = max(_TOO_MUCH * asked, algorithm.max_batch or 0)
    # Whoever turned off a bound that there is otherwise has allowed it.
    turned_off = algorithm.max_batch == 0 and type(algorithm).max_batch is None
    largest = summary.update_samples.max or 0
    # One more of each worker: a sample that would be left alone goes with the batch before.
    if largest <= allowed + num_workers or turned_off:
        return None
    what = "target_batch" if algorithm.target_batch else f"{batch_size} samples × {num_workers} workers"
    return (
        f"an update had {largest:,} samples, where {asked:,} were asked for ({what}), at the same "
        "learning rate; max_batch bounds the samples of an update and target_batch prescribes them, as in "
        f'join(…, parameters={{"max_batch": {_TOO_MUCH * asked}}})'
    )


def _of_rounds(summary: Summary, algorithm: StrideSgd, batches: int) -> str | None:
    """Of rounds that were long on average: that one is, where a machine pauses, does no harm."""
    asked, mean = algorithm.steps * batches, summary.update_samples.mean
    if mean <= _TOO_MUCH * asked or algorithm.max_batch is not None:
        return None
    return (
        f"a round of stride had {mean:,.0f} samples on average, where {asked:,} were asked for ({algorithm.steps} "
        "steps of each worker): local steps go on while a sum is under way, and sums were slow; shorter rounds learn "
        f'more from the same samples, but wait: join(…, parameters={{"max_batch": {asked}}}), or a larger batch size'
    )
