"""What ranks tell each other between loops: sums of metrics, lists of results, or only that they are there.

Values travel through the store. All ranks have to call the same methods in the same order; one that does something else
is named, on all of them.
"""

from __future__ import annotations

from typing import Any, get_args

from ownpace.core.contract.errors import InputError, unknown
from ownpace.drop_in.packing import Packed, unpack
from ownpace.drop_in.reducing import Operation, combined, refuse_what_cannot_be_reduced
from ownpace.engines.process.run.joining import LoopRun

_KEPT = 100
"""Of how many calls the values are kept."""


class BetweenRanks:
    """What a rank knows of the others, and the calls that all of them make together.

    Such a call waits for all ranks. It may stand anywhere in the `with` block but within a loop over `fleet.batches`,
    where each rank is at another batch.
    """

    def __init__(self, run: LoopRun) -> None:
        self._run = run
        self._written: list[str] = []

    @property
    def rank(self) -> int:
        """My index among the workers, from 0."""
        return self._run.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are now: as many as were started, less those that are gone."""
        return self._run.num_workers

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0: the one to print, save and log."""
        return self.rank == 0

    def print(self, *values: object, **options: Any) -> None:
        """As `print`, on rank 0 alone. It waits for nobody."""
        if self.is_main:
            print(*values, **options)

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self._together("fleet.barrier")

    def reduce(self, value: Any, op: Operation = "mean") -> Any:
        """One value of those of all ranks, with the same bits on every rank.

        Args:
            value: A number, or a tensor of the same shape on every rank; or a dict or list of them, each of which is
                reduced.
            op: `mean`, `sum`, `max` or `min`.
        """
        if op not in get_args(Operation):
            raise unknown("op", str(op), get_args(Operation))
        refuse_what_cannot_be_reduced(value)
        return combined(self._gathered(value, f"fleet.reduce(op={op!r})"), op)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank, on every rank.

        Args:
            value: A number, a string, a tensor of any shape, or a dict or list of them. Nothing is pickled.
        """
        return self._gathered(value, "fleet.gather")

    def _gathered(self, value: Any, what: str) -> list[Any]:
        self._refuse_elsewhere(what)
        mine = Packed()
        text = mine.text(value)
        if self._run.world_size == 1:
            return [unpack(text, mine.devices)]
        # Where all ranks come to next: the same on all, also on one that has passed some of them.
        key = f"call/{self._run.presence.place.number + 1}"
        # Of a rank that was started again, the values that all had given by then stay.
        is_behind = self._run.presence.place.is_behind
        if not is_behind:
            self._run.store.set(f"{key}/{self.rank}", text)
        self._together(what)
        self._forget(f"{key}/{self.rank}")
        keys = [f"{key}/{rank}" for rank in self._run.presence.place.there]
        if is_behind and not self._run.store.check(keys):
            raise InputError(
                f"this rank was started again, and the values of an earlier {what} are not kept any more, only of the "
                f"latest {_KEPT} calls; ask for fleet.epoch and begin there, past what the others have done"
            )
        # All have written when all are here, but the store may be slower to take it in than lines are to tell of it:
        # reading waits. The own value, too: a tensor is then as independent of this rank's as those of the others are.
        return [unpack(self._run.store.get(each), mine.devices) for each in keys]

    def _forget(self, written: str) -> None:
        """Keep the values of the latest calls, for a rank that is started again."""
        self._written.append(written)
        # Of a call before the latest: that all ranks have come here means that all have read it.
        while len(self._written) > _KEPT:
            self._run.store.delete_key(self._written.pop(0))

    def _together(self, what: str) -> None:
        self._refuse_elsewhere(what)
        self._run.presence.together(what)

    def _refuse_elsewhere(self, what: str) -> None:
        if not self._run.has_met or self._run.is_over:
            raise InputError(f"{what} was called outside of `with ownpace.join(…) as fleet:`; call it inside")
        if self._run.is_open and self._run.loop.is_running:
            raise InputError(
                f"{what} was called within a loop over fleet.batches, where each rank is at another batch; call it "
                "between loops or after them"
            )
