"""The samples that a user's loop was handed and has not brought the gradients of."""

from __future__ import annotations

from collections.abc import Sequence


class HandedOut:
    """Counts samples from the batch they come in to the gradient that they go out with, or until they are lost."""

    def __init__(self, num_models: int) -> None:
        self.waiting = [0] * num_models
        """Of each model, the samples that were handed out since its latest step."""
        self.new = 0
        """Those of them that no model's gradient has been brought of."""
        self.dropped = 0
        """Samples that nothing was learnt from, since the latest gradient: `continue`, or what a GradScaler skips."""
        self._kept = [0] * num_models
        self._latest = 0

    def add(self, samples: int, have_gradients: Sequence[bool]) -> bool:
        """A batch of this many is handed out; returns whether it is the first since the latest step.

        Args:
            samples: How many.
            have_gradients: Of each model, whether anything is in its `.grad`s. Where there is nothing, those of the
                batches before were thrown away.
        """
        kept = [waiting if has else 0 for waiting, has in zip(self.waiting, have_gradients, strict=True)]
        is_first = not any(kept)
        if is_first:
            self.dropped += self.new
            self.new = 0
        self.waiting = [waiting + samples for waiting in kept]
        self.new += samples
        self._kept, self._latest = kept, samples
        return is_first

    def throw_away(self, model: int) -> bool:
        """What was in a model's `.grad`s when the latest batch was handed out is gone, without a step.

        Returns:
            Whether that batch is the first since the latest step now, as for `add`.
        """
        self._kept[model] = 0
        self.waiting[model] = min(self.waiting[model], self._latest)
        is_first = not any(self._kept)
        if is_first and self.new > self._latest:
            self.dropped += self.new - self._latest
            self.new = self._latest
        return is_first

    def bring(self, model: int) -> None:
        """The gradient of this model's samples goes out."""
        self.waiting[model] = self.new = 0

    def give_up(self, but: int) -> int:
        """The loop has ended: nothing will be learnt from the rest, but for samples that have gone out already.

        Returns:
            How many the rest are.
        """
        lost = max(0, self.new - but)
        self.waiting = [0] * len(self.waiting)
        self.dropped += lost
        self.new = 0
        return lost
