"""What is said about replicas, where an algorithm promises that they are equal.

worker                      hub                        first worker
│── (Checksums)* ────────►│◄──────────── (Checksums)* ─│        are replicas still equal?
│◄────────────────────────────────── (FirstReplica)* ──│        unlike processors: take over what I have
│── (Apart)* ────────────►│                            │        so far was I from it
"""

from __future__ import annotations

from dataclasses import dataclass

from ownpace.engines.process.talk.checked import Count


@dataclass(frozen=True, slots=True)
class Checksums:
    """Of the layers of a worker's parameters after this many updates, to compare replicas by."""

    version: Count
    values: list[int]


@dataclass(frozen=True, slots=True)
class FirstReplica:
    """The first worker's parameters after this many updates come along: those of all, where processors round unlike."""

    generation: Count
    version: Count


@dataclass(frozen=True, slots=True)
class Apart:
    """How far a worker's parameters were from the first worker's, before it took those over."""

    version: Count
    updates: Count
    """Since they were made equal before."""
    layer: Count
    """The one that was furthest."""
    apart: float
    """Next to the layer's largest number."""
    allowed: float
    """What rounding explains."""
