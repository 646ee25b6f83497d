"""A gradient that is sent layer by layer, during a user's backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.layout import Layout
from ownpace.engines.process.node.gathering import put_sum
from ownpace.engines.process.node.user_pair import check_gradients
from ownpace.engines.process.talk.collectives import BucketSender, GroupCollectives

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TURNS = 8
"""Of so many layers, the numbers of one are looked at in each step: all of them would cost two passes over memory."""


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
    def any_has_changed(seen: Iterable[tuple[Seen, Tensor | None]]) -> Tensor | bool:
        """Whether one of them is not what it was, bit for bit where that was noted; a GPU's answer, from there."""
        were, are = [], []
        for one, gradient in seen:
            if gradient is None or not one.is_still(gradient):
                return True
            if one._bits is not None:
                were.append(one._bits)
                are.append(_bits(gradient))
        return (torch.stack(were) != torch.stack(are)).any() if were else False


class LateAnswer:
    """Whether something was ever found, which a GPU may say some time later: asking it does not wait for that."""

    def __init__(self, device: torch.device) -> None:
        self._known = torch.zeros((), dtype=torch.bool, pin_memory=device.type == "cuda")
        self._there = self._known if device.type == "cpu" else torch.zeros((), dtype=torch.bool, device=device)

    def add(self, found: Tensor | bool) -> None:
        """Take in another answer."""
        if isinstance(found, Tensor):
            self._there.logical_or_(found)
            if self._known is not self._there:
                self._known.copy_(self._there, non_blocking=True)
        elif found:
            self._there.fill_(True)
            self._known.fill_(True)

    def is_yes(self, *, wait: bool = False) -> bool:
        """Whether it was found, as far as is known; `wait`: or is about to be known."""
        return bool(self._there if wait else self._known)


def _bits(gradient: Tensor) -> Tensor:
    """A number that a change of any of a gradient's bits changes too, but for rare chances."""
    if gradient.layout is not torch.strided:  # refused later, in words of its own
        return torch.zeros((), dtype=torch.int64, device=gradient.device)
    return gradient.detach().view(_INTEGERS[gradient.element_size()]).sum(dtype=torch.int64)


class LayerSender:
    """Takes each layer's gradient as it appears, and sends the buckets that are complete."""

    def __init__(
        self, collectives: GroupCollectives, layout: Layout, samples: int, changed: LateAnswer, turn: int | None
    ) -> None:
        """Begin a gradient.

        Args:
            collectives: Of the group that it goes to.
            layout: Of the vector.
            samples: How many it is of.
            changed: Whether any was changed when it was on its way; it may become known after the step.
            turn: Which layers' numbers are looked at for that, by turns; None: those of all, and now.
        """
        self.buffer = collectives.buffer()
        self._total = collectives.values(self.buffer)
        self._views = layout.views(self._total)
        self._layout = layout
        self._zero = self._total.new_zeros(())
        self.partial = False
        """Whether there are layers without a gradient, once it is complete."""
        self._samples = samples
        self._changed = changed
        self._turn = turn
        self._turns = min(_TURNS, len(self._views))
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
        check_gradients([self._layout.layers[index].name], [gradient])
        put_sum(self._zero, gradient, self._samples, self._views[index])
        exactly = self._turn is None or (index - self._turn) % self._turns == 0
        self._seen[index] = Seen(gradient, exactly=exactly)
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
        if not self._given_up:
            self._changed.add(Seen.any_has_changed((one, parameters[n].grad) for n, one in self._seen.items()))
            check_unchanged(self._changed, wait=self._turn is None)
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


def check_unchanged(changed: LateAnswer, *, wait: bool) -> None:
    """Raise if a gradient was changed when it was on its way."""
    if changed.is_yes(wait=wait):
        raise no_overlap("gradients were changed between backward and optimizer.step")


def no_overlap(what: str) -> InputError:
    """The error for a loop that touches gradients which are on their way."""
    return InputError(
        f"{what}, but layers are on their way as soon as they are computed; use fleet.wrap(…, overlap=False)"
    )
