"""How many batches a script takes for a step, as its first steps show, on whichever rank they are made first."""

from __future__ import annotations

from typing import Protocol

_WATCHED_STEPS = 4
"""Of each loop: by then a script that accumulates has shown how many batches it takes for a step."""


class SaidOfLoop(Protocol):
    """What ranks have said of a loop: the most batches that any of them has taken for a step."""

    def hear(self) -> int:
        """0: none has said anything."""

    def say(self, batches: int) -> None:
        """Tell the others."""


class NothingSaid:
    """A rank that is alone with what it knows."""

    def hear(self) -> int:
        return 0

    def say(self, batches: int) -> None:
        """There is nobody."""


class StepBatches:
    """The batches of a step, in one loop.

    Of the first steps, and the most: some scripts step after their first batch and then after every so many, or with
    what is left at the end. Ranks that do alike count alike then, whichever step each of them is at. A rank that is
    slow may hear of many updates before it makes a step: it counts by what the others have said.
    """

    def __init__(self, before: int, said: SaidOfLoop) -> None:
        """`before`: of the loop before, on all ranks; it holds until one shows something else, which it says."""
        self.number = before
        self._said = said
        self._steps = 0

    def stepped(self, batches: int) -> None:
        """The script calls `optimizer.step()` for this many."""
        if self._steps == _WATCHED_STEPS:
            return
        most = max(batches, self.number if self._steps else self._said.hear())
        self._steps += 1
        if most != self.number:
            self.number = most
            self._said.say(most)

    def listen(self) -> None:
        """Others may have made steps; before this rank has shown as much by its own."""
        if not self._steps:
            self.number = self._said.hear() or self.number
