"""When a user's gradients leave: with `optimizer.step()`, or layer by layer while the backward pass still runs."""

from __future__ import annotations

from functools import partial

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ownpace.core.learning.layer_work import sum_buckets
from ownpace.core.learning.layout import Layout
from ownpace.engines.process.node.layer_sender import LateAnswer, LayerSender, Seen, check_unchanged, no_overlap
from ownpace.engines.process.node.user_parameters import UserParameters
from ownpace.engines.process.talk.collectives import GroupCollectives

_WATCHED_STEPS = 3
"""How many steps in a row must leave gradients alone before they are sent early."""


class Overlap:
    """Sends gradients early where that is safe: if each batch has a step of its own, and nothing changes gradients
    between the backward pass and the step (clipping, a GradScaler).

    Nobody can know that before; but scripts do the same thing in every step. So, unless the user has decided, a few
    steps are watched first. Each rank decides for itself: the others see no difference. A script that changes its ways
    later is told so: what it changed was on its way by then.
    """

    def __init__(self, user: UserParameters, decided: bool | None) -> None:
        self._user = user
        self._is_on = decided
        self._is_decided = decided is not None
        # In one bucket, all leaves with the header, which is written at the step; watching layers would only cost time.
        if len(user.pairs) > 1 or len(sum_buckets(user.layout, user.values.element_size())) == 1:
            self._is_on = False
        self._clean_steps = 0
        self._seen: dict[int, Seen | None] = {}
        self._sent = 0
        self._batches = 0
        self._changed = LateAnswer(user.values.device)
        self._hooks: dict[int, RemovableHandle] = {}
        self.sender: LayerSender | None = None
        """Of the gradient that is on its way."""

    def put_hooks(self) -> None:
        """Watch the parameters' gradients, if there is any point in it."""
        # For every loop anew: a layer may have been unfrozen.
        for index, parameter in enumerate(self._user.parameters):
            if self._is_on is not False and parameter.requires_grad and index not in self._hooks:
                hook = partial(self._layer_is_there, index)
                self._hooks[index] = parameter.register_post_accumulate_grad_hook(hook)

    def remove_hooks(self) -> None:
        """Leave the parameters alone."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def turn_off(self) -> None:
        """The user accumulates gradients: they leave with the step, from now on."""
        if self.sender is not None and self.sender.has_begun:
            raise no_overlap("gradients are to be accumulated")
        self._is_on, self.sender = False, None
        self.remove_hooks()

    def batch(self) -> None:
        """Another batch is handed out."""
        if self.sender is not None and self.sender.has_begun:
            if self._is_decided or self.sender.buckets.launched:
                raise no_overlap("a batch had no optimizer.step before the next was taken (skipped, or accumulated?)")
            # Nothing has left, and the user has not asked for it: a batch that is skipped, say, ends it.
            self.sender = None
            self.turn_off()
        self.sender = None  # the batch before was skipped: nothing of it has left
        self._batches += 1

    def send(self, collectives: GroupCollectives, layout: Layout, samples: int) -> None:
        """Send the gradient of the batch that is handed out, layer by layer, to a group; if that is wanted."""
        if self._is_on and not collectives.alone:
            # Where the user has decided, the first steps were not watched: they are now.
            self._sent += 1
            turn = None if self._sent <= _WATCHED_STEPS else self._sent
            self.sender = LayerSender(collectives, layout, samples, self._changed, turn)

    def check(self) -> None:
        """Raise if gradients were changed when they were on their way; a GPU that has yet to say so is waited for."""
        check_unchanged(self._changed, wait=True)

    def _layer_is_there(self, index: int, parameter: Tensor) -> None:
        if self.sender is not None:
            self.sender.take(index, parameter.grad)
        elif self._is_on is None and parameter.grad is not None:
            # A second pass through a layer shows as one batch too many, or as a change.
            self._seen[index] = None if index in self._seen else Seen(parameter.grad, exactly=True)

    def stepped(self, *, is_scaled: bool) -> None:
        """The script has called `optimizer.step()`; `is_scaled`: through a GradScaler."""
        if is_scaled and self.sender is not None:
            raise no_overlap("a GradScaler has changed the gradients")
        if self._is_on is None:
            if is_scaled or self._batches != 1 or self._was_touched():
                self.turn_off()
            else:
                self._clean_steps += 1
                self._is_on = True if self._clean_steps == _WATCHED_STEPS else None
        self._seen.clear()
        self._batches = 0

    def _was_touched(self) -> bool:
        seen = [(one, self._user.parameters[index].grad) for index, one in self._seen.items() if one is not None]
        return len(seen) < len(self._seen) or bool(Seen.any_has_changed(seen))
