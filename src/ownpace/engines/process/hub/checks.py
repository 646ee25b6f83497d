"""What nodes tell the hub is checked against the run before anything is done with it.

The types of all fields are right by then (`talk.checked`); here it is whether numbers fit this model and this fleet.
"""

from __future__ import annotations

import signal

from torch import Tensor

from ownpace.core.contract.errors import WireError, shown
from ownpace.engines.process.talk.control import Control, Ended, Leaving, Prepared, Report, Snapshot, WorkerBuffers
from ownpace.engines.process.talk.regrouping import Standing
from ownpace.engines.process.talk.replica_control import Apart, Checksums
from ownpace.engines.roster import Roster


class HubChecks:
    """Knows how large what it is shown may be."""

    def __init__(self, roster: Roster, num_layers: int, num_buffers: int) -> None:
        self._shards = roster.shards
        self._helpers = {node.name for node in (*roster.servers, *roster.communicators)}
        self._num_layers = num_layers
        self._num_buffers = num_buffers

    def check(self, control: Control, body: Tensor | None) -> None:
        """Raise if no node of this run can have said that.

        Raises:
            WireError: It does not fit the run.
        """
        match control:
            case Report():
                if any(len(span) != 2 for span in control.work.spans):
                    raise WireError("a report whose spans are not pairs of times")
            case Snapshot(shard=shard):
                if shard >= len(self._shards):
                    raise WireError(f"a snapshot of shard {shard}; there are {len(self._shards)}")
                size = self._shards[shard].stop - self._shards[shard].start
                if body is None or len(body) != size or not body.is_floating_point():
                    raise WireError(f"a snapshot of {_values(body)} for a shard of {size}")
            case WorkerBuffers():
                if body is None or len(body) != self._num_buffers:
                    raise WireError(f"buffers of {_values(body)}; the model's have {self._num_buffers}")
            case Leaving(name, helpers):
                if name not in signal.Signals.__members__ or not self._helpers.issuperset(helpers):
                    raise WireError(f"{name[:80]!r} asks it to leave, with {shown(helpers)}")
            case Checksums(values=checksums):
                if len(checksums) != self._num_layers:
                    raise WireError(f"checksums of {len(checksums)} layers; there are {self._num_layers}")
            case Apart(layer=layer):
                if layer >= self._num_layers:
                    raise WireError(f"layer {layer} differs; there are {self._num_layers}")
            case Ended(checksums=checksums) | Prepared(checksums=checksums) | Standing(checksums=checksums):
                if len(checksums) not in (0, self._num_layers):
                    raise WireError(f"checksums of {len(checksums)} layers; there are {self._num_layers}")


def _values(body: Tensor | None) -> str:
    return "no values" if body is None else f"{body.numel()} values of type {body.dtype}"
