"""A wait for the other ranks that may never end: what a script that has collectives of its own is told of it."""

from __future__ import annotations

import warnings

from torch import distributed

from ownpace.engines.process.node.reporter import WallClock

LONG_S = 60.0
"""Most batches take less."""


class LongWait:
    """Warns once."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._has_told = False

    def look(self, since_s: float) -> None:
        """This rank waits for others since then."""
        if self._has_told or self._clock.now() < since_s + LONG_S or not distributed.is_initialized():
            return
        self._has_told = True
        warnings.warn(
            f"this rank has waited {LONG_S:.0f} s for the others; if the script calls torch.distributed in its loop "
            "(all_reduce of a loss, barrier), one rank may wait there, and all others here: ranks have different "
            "numbers of batches; use fleet.reduce and fleet.barrier, between loops",
            stacklevel=2,
        )
