"""One seed for each purpose, out of the run's: what draws for one thing never disturbs another."""

from __future__ import annotations

from enum import IntEnum


class Purpose(IntEnum):
    """What random numbers are drawn for. The numbers are part of every run's seed: append, never renumber."""

    QUEUE = 0
    """The order of the samples that all workers take from one queue."""
    IID = 1
    """One worker's draws with replacement."""
    SHARDS = 2
    """Which samples belong to which worker, where each has its own."""
    SHARD_ORDER = 3
    """The order in which one worker goes through its own."""
    JITTER = 4
    """How much longer than prescribed a micro-batch takes."""
    MODEL = 5
    """A model's initial weights; with a rank, what that worker draws while training (dropout)."""
    LOOP_QUEUE = 6
    LOOP_IID = 7
    LOOP_SHARD_ORDER = 8
    """The same as the first ones, for one `fleet.batches` of a user's loop."""
    LOOP_SAMPLER = 9
    """What a user's sampler draws, the same on all ranks."""
    LOOP_STREAM = 10
    """What a user's stream draws, likewise."""
    LOOP_FUNCTION = 11
    """What a user's function draws for one batch."""
    LOOP_WORKERS = 12
    """What the processes draw that load one worker's samples."""
    AUGMENTATION = 13
    """How a sample is changed at one of its visits."""


def seed_for(seed: int, purpose: Purpose, *more: int) -> int:
    """The seed for a purpose, and for a rank or an epoch within it.

    >>> seed_for(0, Purpose.JITTER, 1) != seed_for(0, Purpose.JITTER, 2)
    True
    """
    return derive(seed, int(purpose), *more)


def derive(*parts: int) -> int:
    """One seed out of several numbers; close inputs give unrelated seeds (splitmix64).

    >>> derive(1, 2) != derive(2, 1)
    True
    """
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    # 63 bits: it fits a signed integer, which torch and numpy both take as a seed.
    return state >> 1
