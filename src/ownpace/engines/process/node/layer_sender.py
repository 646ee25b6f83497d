"""A gradient that is sent layer by layer, during a user's backward pass."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.flat import Layout
from ownpace.engines.process.node.user_pair import check_dense
from ownpace.engines.process.node.user_parameters import put_sum
from ownpace.engines.process.talk.collectives import BucketSender, GroupCollectives


class LayerSender:
    """Takes each layer's gradient as it appears, and sends the buckets that are complete."""

    def __init__(self, collectives: GroupCollectives, layout: Layout, samples: int) -> None:
        self.buffer = collectives.buffer()
        self._total = collectives.values(self.buffer)
        self._views = layout.views(self._total)
        self._layout = layout
        self._zero = self._total.new_zeros(())
        self.partial = False
        """Whether there are layers without a gradient, once it is complete."""
        self._samples = samples
        self._counts: dict[int, int] = {}
        self._given_up = False
        self.buckets = BucketSender(collectives, self.buffer, len(self._views))

    @property
    def has_begun(self) -> bool:
        """Whether a layer has been taken."""
        return bool(self._counts)

    def take(self, index: int, gradient: Tensor | None) -> None:
        """One layer's gradient is ready."""
        assert gradient is not None
        if index in self._counts:
            raise no_overlap("backward was called twice before optimizer.step")
        check_dense(self._layout.layers[index].name, gradient)
        put_sum(self._zero, gradient, self._samples, self._views[index])
        self._counts[index] = changes(gradient)
        self.buckets.layer_is_there(index)

    def complete(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """All of it, after the backward pass; what took no part in the loss is absent."""
        # From the last layer to the first, as buckets leave on every member: another order would deadlock.
        for index in range(len(self._views) - 1, -1, -1):
            if self._given_up:
                break
            gradient = parameters[index].grad
            if index not in self._counts:
                # Of an earlier pass, or of a layer that was unfrozen after the loop had begun.
                put_sum(self._zero, gradient, self._samples, self._views[index])
                self.partial = self.partial or gradient is None
                self.buckets.layer_is_there(index)
            elif gradient is None or changes(gradient) != self._counts[index]:
                raise no_overlap("gradients were changed between backward and optimizer.step")
        return self._total

    def give_up(self) -> int:
        """The batch was never stepped with. If it is on its way already, its samples count; else there are none."""
        self._given_up = True
        for index in range(len(self._views) - 1, -1, -1):
            if not self.buckets.ready[index]:
                self._views[index].fill_(-0.0)
                self.partial = True
                self.buckets.layer_is_there(index)
        return self._samples if self._counts else 0


def changes(tensor: Tensor) -> int:
    """How often a tensor was changed in place."""
    return tensor._version


def no_overlap(what: str) -> InputError:
    """The error for a loop that touches gradients which are on their way."""
    return InputError(
        f"{what}, but layers are on their way as soon as they are computed; use fleet.wrap(…, overlap=False)"
    )
