"""Parameters on their way to the hub: from a GPU, beside its other work."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ownpace.engines.process.talk.control import Snapshot

Say = Callable[[Snapshot, Tensor], None]


class _Copy(NamedTuple):
    """Parameters that are being copied from a GPU."""

    what: Snapshot
    values: Tensor
    """Held until they are copied: their memory must not be used again before."""
    copied: Tensor
    is_there: torch.cuda.Event


class LateSnapshot:
    """Says what the parameters are; where they are on a GPU, as soon as they have been copied, and nothing waits."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._stream: torch.cuda.Stream | None = None
        self._copy: _Copy | None = None

    def say(self, what: Snapshot, values: Tensor) -> None:
        """Say it, now or a little later; `values` never change again."""
        self.finish()
        if values.device.type != "cuda":
            self._say(what, values)
            return
        self._stream = self._stream or torch.cuda.Stream(values.device)
        self._stream.wait_stream(torch.cuda.current_stream(values.device))
        copied = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        with torch.cuda.stream(self._stream):
            copied.copy_(values, non_blocking=True)
            self._copy = _Copy(what, values, copied, self._stream.record_event())

    def look(self) -> None:
        """Say what has been copied by now."""
        if self._copy is not None and self._copy.is_there.query():
            self.finish()

    def finish(self) -> None:
        """Say what is still on its way."""
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.is_there.synchronize()
            self._say(copy.what, copy.copied)

    def drop(self) -> None:
        """Forget what is still on its way."""
        self._copy = None


__all__ = ["LateSnapshot"]
