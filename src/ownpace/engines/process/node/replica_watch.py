"""Are replicas still equal? Every so many updates each worker sends checksums of its layers to the hub, which compares.

The same updates on all workers: the version number alone decides. At first after 1, 2, 4, 8 … updates, since most that
goes wrong does so at once; then every 512. A check goes over the parameters about five times on a GPU, and once on a
CPU. An update goes over vectors of that size at least fifteen times: forward and backward pass of one batch, gathering,
summing, dividing, stepping. So checks add less than a thousandth to the memory traffic of training, and nothing to
anything else.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ownpace.core.learning.layout import Layout
from ownpace.engines.process.node.context import NodeContext
from ownpace.engines.process.talk.replica_control import Checksums

CHECK_EVERY = 512
"""Updates, once there have been that many."""
_BLOCK = 1 << 16
"""Numbers of a CPU's parameters that are looked at in one go."""
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplicaWatch:
    """One worker's checksums, where the algorithm promises that all workers' parameters are equal."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._is_promised = context.address.role == "worker" and context.terms.algorithm.replicas_identical
        self._is_needed = self._is_promised and len(context.roster.workers) > 1
        self._queued: _Queued | None = None

    def made_update(self, version: int, values: Tensor) -> None:
        """An update has been made; these are the parameters now."""
        if not self._is_needed:
            return
        if self._queued is not None and self._queued.is_there:
            self._send_queued()
        if is_due(version):
            if self._queued is not None:  # two at a time: the GPU is far behind, or this is the beginning
                self._send_queued()
            sums = layer_checksums(values, self._context.layout)
            if sums.device.type == "cpu":
                self._context.reporter.say(Checksums(version, sums.tolist()))
            else:
                # Read when the GPU has come to it: nothing waits for that here.
                self._queued = _Queued(version, sums)

    def last(self, values: Tensor) -> list[int]:
        """The checksums at the end; none where nothing is promised."""
        if self._queued is not None:
            self._send_queued()
        return layer_checksums(values, self._context.layout).tolist() if self._is_promised else []

    def _send_queued(self) -> None:
        assert self._queued is not None
        queued, self._queued = self._queued, None
        self._context.reporter.say(Checksums(queued.version, queued.wait()))


class _Queued:
    """Checksums that a GPU is still to compute."""

    def __init__(self, version: int, sums: Tensor) -> None:
        self.version = version
        self._host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
        self._host.copy_(sums, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(sums.device))

    @property
    def is_there(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> list[int]:
        self._event.synchronize()
        return [int(number) for number in self._host.tolist()]


def is_due(version: int) -> bool:
    """Whether replicas are compared after this many updates."""
    return version % CHECK_EVERY == 0 if version > CHECK_EVERY else version & (version - 1) == 0


def layer_checksums(values: Tensor, layout: Layout) -> Tensor:
    """An integer for each layer, equal only if all bits are, but for a chance of one in 2³² (in half precision, 2¹⁶).

    Σ x(2x + 1) over the layer's numbers, their bits x taken as integers. The terms of different x are different (it is
    a permutation of the integers of that size), so one changed number always shows; and changes of several do not
    cancel as they would in a sum of the bits themselves, say one number a bit up and another one down.
    """
    bits = values.detach().view(_INTEGERS[values.element_size()])
    if bits.device.type != "cpu":
        parts = [bits[layer.start : layer.stop] for layer in layout.layers]
        return torch.stack([(part + part).add_(1).mul_(part).sum(dtype=torch.int64) for part in parts])
    # In numpy, where one call sums up several layers; in blocks, whose terms never leave the processor's cache.
    numbers, sums = bits.numpy(), np.zeros(len(layout.layers), np.int64)
    room = np.empty(min(_BLOCK, len(numbers)), numbers.dtype)
    filled = [(index, layer.start, layer.stop) for index, layer in enumerate(layout.layers) if layer.stop > layer.start]
    indices, starts, stops = np.array(filled, np.intp).reshape(-1, 3).T
    for begin in range(0, len(numbers), _BLOCK):
        block = numbers[begin : begin + _BLOCK]
        terms = np.add(block, block, out=room[: len(block)])  # integers that overflow begin again at the other end
        terms += 1
        terms *= block
        first, last = np.searchsorted(stops, [begin, begin + len(block) - 1], side="right")
        here = slice(first, last + 1)
        sums[indices[here]] += np.add.reduceat(terms, np.maximum(starts[here] - begin, 0), dtype=np.int64)
    return torch.from_numpy(sums)
