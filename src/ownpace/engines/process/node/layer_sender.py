"""A gradient that is sent layer by layer, during a user's backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.flat import Layout
from ownpace.engines.process.node.gathering import put_sum
from ownpace.engines.process.node.user_pair import check_gradient
from ownpace.engines.process.talk.collectives import BucketSender, GroupCollectives

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Seen:
    """A gradient as it was when the backward pass had left it."""

    def __init__(self, gradient: Tensor, *, exactly: bool) -> None:
        """Remember a gradient.

        Args:
            gradient: A parameter's.
            exactly: Look at its numbers as well: what is written through `.data` shows nowhere else.
        """
        # The tensor itself: one that has taken its place may have been changed as often.
        self._gradient = gradient
        self._changes = gradient._version
        self._bits = _bits(gradient) if exactly else None

    def is_still(self, gradient: Tensor | None) -> bool:
        """Whether this is the same tensor, and torch knows of no change; nothing waits for a GPU."""
        return gradient is self._gradient and gradient._version == self._changes

    @staticmethod
    def all_are_still(seen: Iterable[tuple[Seen, Tensor | None]]) -> bool:
        """Whether all of them are what they were, bit for bit where that was noted."""
        were, are = [], []
        for one, gradient in seen:
            if gradient is None or not one.is_still(gradient):
                return False
            if one._bits is not None:
                were.append(one._bits)
                are.append(_bits(gradient))
        # At once: a GPU is waited for no more than once.
        return not were or torch.equal(torch.stack(were), torch.stack(are))


def _bits(gradient: Tensor) -> Tensor:
    """A number that a change of any of a gradient's bits changes too, but for rare chances."""
    if gradient.layout is not torch.strided:  # refused later, in words of its own
        return torch.zeros((), dtype=torch.int64, device=gradient.device)
    return gradient.detach().view(_INTEGERS[gradient.element_size()]).sum(dtype=torch.int64)


class LayerSender:
    """Takes each layer's gradient as it appears, and sends the buckets that are complete."""

    def __init__(self, collectives: GroupCollectives, layout: Layout, samples: int, *, exactly: bool = False) -> None:
        self.buffer = collectives.buffer()
        self._total = collectives.values(self.buffer)
        self._views = layout.views(self._total)
        self._layout = layout
        self._zero = self._total.new_zeros(())
        self.partial = False
        """Whether there are layers without a gradient, once it is complete."""
        self._samples = samples
        self._exactly = exactly
        self._seen: dict[int, Seen] = {}
        self._given_up = False
        self.buckets = BucketSender(collectives, self.buffer, len(self._views))

    @property
    def has_begun(self) -> bool:
        """Whether a layer has been taken."""
        return bool(self._seen)

    def take(self, index: int, gradient: Tensor | None) -> None:
        """One layer's gradient is ready."""
        assert gradient is not None
        if index in self._seen:
            raise no_overlap("backward was called twice before optimizer.step")
        check_gradient(self._layout.layers[index].name, gradient)
        put_sum(self._zero, gradient, self._samples, self._views[index])
        self._seen[index] = Seen(gradient, exactly=self._exactly)
        self.buckets.layer_is_there(index)

    def complete(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """All of it, after the backward pass; what took no part in the loss is absent."""
        # From the last layer to the first, as buckets leave on every member: another order would deadlock.
        for index in range(len(self._views) - 1, -1, -1):
            if self._given_up:
                break
            gradient = parameters[index].grad
            if index not in self._seen:
                # Of an earlier pass, or of a layer that was unfrozen after the loop had begun.
                put_sum(self._zero, gradient, self._samples, self._views[index])
                self.partial = self.partial or gradient is None
                self.buckets.layer_is_there(index)
        if not self._given_up and not Seen.all_are_still((one, parameters[n].grad) for n, one in self._seen.items()):
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
        return self._samples if self._seen else 0


def no_overlap(what: str) -> InputError:
    """The error for a loop that touches gradients which are on their way."""
    return InputError(
        f"{what}, but layers are on their way as soon as they are computed; use fleet.wrap(…, overlap=False)"
    )
