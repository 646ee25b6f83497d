"""The batches that a user's loop goes through."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from ownpace.core.contract.errors import InputError
from ownpace.core.learning.claims import ENDLESS, Places, number_of
from ownpace.core.learning.orders import Order, Share, Shares
from ownpace.drop_in.data import KINDS, Data, name_of
from ownpace.drop_in.digest import digest
from ownpace.drop_in.feeds import make_feed
from ownpace.drop_in.fingerprint import fingerprint_of
from ownpace.drop_in.loops import LoopPlan, Loops
from ownpace.drop_in.replayed import Replayed
from ownpace.engines.process.node.batch_source import BatchSource, OwnCount, before


class Batches:
    """What `fleet.batches` returns: each iteration over it is a loop of the whole fleet, begun by its first `next`.

    `len()` is the number of batches that each worker would get if all were equally fast. Where there are several
    workers it is an estimate: each takes as many as it can.
    """

    def __init__(self, loops: Loops, data: Data) -> None:
        self._loops = loops
        self._data = data
        self._feed = make_feed(data, loops.member)
        self._begun: tuple[int, Order] | None = None
        self.dataset = data.dataset
        """What was given, or that of the DataLoader that was given."""

    @property
    def is_estimate(self) -> bool:
        """Whether `len()` is an estimate."""
        return self._loops.present.num_workers > 1 or self._data.updates is not None

    def __len__(self) -> int:
        data = self._data
        each = data.batch_size * self._loops.present.num_workers
        found = [] if data.updates is None else [data.updates]
        if self._known is not None:
            found.append(self._known // each if data.drop_last else -(-self._known // each))
        if not found:
            raise TypeError(
                f"{KINDS[data.kind]} of unknown length has no len(); say updates=… or samples=… to give it an end"
            )
        return min(found)

    def __repr__(self) -> str:
        try:
            batches = f"{'about ' * self.is_estimate}{len(self)} batches"
        except TypeError:
            batches = "an unknown number of batches"
        return f"<Batches of {name_of(self.dataset)}: {batches} of {self._data.batch_size} samples on this worker>"

    @property
    def _known(self) -> int | None:
        """How many samples the whole loop has, where that is known."""
        data = self._data
        total = None if data.epochs is None or data.size is None or data.sharded else data.epochs * data.size
        return min((each for each in (total, data.samples) if each is not None), default=None)

    @property
    def _total(self) -> int:
        """How many places there are to take. A sampler or a stream ends by itself, whatever length it claims."""
        known = self._data.samples if self._data.kind != "map" or self._data.sampler is not None else self._known
        return ENDLESS if known is None else known

    def _plan(self, dealt: Sequence[Places]) -> LoopPlan:
        data = self._data
        endless = self._total == ENDLESS and (not dealt or dealt[-1][1] == ENDLESS)
        places = math.inf if endless else min(self._total, number_of(dealt))
        known = math.inf if self._known is None else self._known
        return LoopPlan(
            batch_size=data.batch_size,
            micro_batch=data.micro_batch,
            places=places,
            samples=min(known, places),
            epoch_samples=math.inf if data.size is None or data.sharded else data.size,
            epochs=data.epochs if data.samples is None else None,
            updates=data.updates,
        )

    def fingerprint(self) -> dict[str, str]:
        """What must be the same on all ranks, in words that an error can quote."""
        return fingerprint_of(self._data, self._order(), self._loops.digests)

    def _order(self) -> Order:
        """That of the next loop: made once, since a stream can be read only once."""
        number = self._loops.next_number
        if self._begun is None or self._begun[0] != number:
            self._begun = number, self._feed.order(number)
        return self._begun[1]

    def _source(self, order: Order, number: int, left: Sequence[Places]) -> BatchSource:
        """Where the samples of that loop come from, of the places that are left."""
        loops, data = self._loops, self._data
        fixed = data.kind == "function" and not data.takes_number
        wanted = (lambda: data.batch_size) if fixed else loops.wanted_samples
        fills = data.batch_size if data.drop_last or fixed else None
        least = min(loops.least_samples, data.batch_size, data.micro_batch or data.batch_size)
        if not isinstance(order, Share):
            return BatchSource(wanted, loops.taking(number), order, left, fills=fills, least=least)
        place, num_workers, is_divided_anew = loops.present
        first, stop = before(left, order.start), before(left, order.stop)
        if is_divided_anew and isinstance(order, Shares):
            whole = before(left, order.end)
            first, stop = whole * place // num_workers, whole * (place + 1) // num_workers
        if data.samples is not None:
            samples = data.samples - (ENDLESS - number_of(left))
            stop = min(stop, first + samples * (place + 1) // num_workers - samples * place // num_workers)
        take = OwnCount(first, place, lambda claim: loops.note(number, claim))
        return BatchSource(wanted, take, order, left, stop=stop, fills=fills, least=least)

    def __iter__(self) -> Iterator[Any]:
        loops = self._loops
        loops.check_free()
        alike, order, expected = self.fingerprint(), self._order(), loops.next_number
        number = loops.begin(self._plan, alike, [(0, ENDLESS if isinstance(order, Share) else self._total)])
        self._begun = None
        if number is None:
            return
        if number != expected:  # the others went on to another loop while this rank came back
            order = self._feed.order(number)
        ends = False
        try:
            while not ends:
                deals = loops.deals
                yield from self._handed_out(order, number)
                if loops.deals == deals:
                    ends = True  # also if this raises
                    ends = loops.end(stop=False)
                if not ends:
                    # What is left was dealt out anew, places that were passed included: it is read from the beginning.
                    order = self._feed.order(number)
        finally:
            # Also after a `break`: the others must not wait in a sum for this worker.
            if not ends:
                loops.end(stop=True)

    def _handed_out(self, order: Order, number: int) -> Iterator[Any]:
        """The batches of what is dealt out now, until nothing is left of it, or it is dealt out anew."""
        loops, deals = self._loops, self._loops.deals
        source = self._source(order, number, loops.dealt)
        batches = self._feed.batches(source, number)
        is_first = self._data.kind == "function" and not deals
        while loops.deals == deals:
            drawn: list[Any] = []
            # In an attempt: a rank that was stopped may hold what drawing needs.
            if not loops.attempt(partial(_draw, batches, drawn)):
                return
            if isinstance(order, Replayed):
                self._check_alike(order, number)
            if not drawn:
                return
            # A DataLoader with workers draws batches ahead; they come out in the order of drawing, as do sizes.
            if not loops.hand_out(source.sizes.pop(0), drawn[0]):
                return
            if is_first:
                self._warn_of_the_same(drawn[0], number)
                is_first = False
            yield drawn.pop()

    def _check_alike(self, order: Replayed, number: int) -> None:
        """Raise if another rank has read something else: places would mean different samples."""
        for mark, found in order.marks.take().items():
            for other, theirs in self._loops.say(number, mark, found).items():
                if theirs != found:
                    raise InputError(
                        f"ranks {other} and {self._loops.member.rank} read different data: {mark} is {theirs} on one, "
                        f"and {found} on the other; give all ranks the same, or with sharded=True each its own"
                    )

    def _warn_of_the_same(self, first_batch: Any, number: int) -> None:
        """Warn if a function gave another rank the same first batch as this one."""
        found = digest(first_batch)
        same = [other for other, theirs in self._loops.say(number, "first batch", found).items() if theirs == found]
        if same:
            warnings.warn(
                f"the function given to fleet.batches makes the same batches on ranks {same[0]} and "
                f"{self._loops.member.rank}; if it draws from a generator of its own, seed that by fleet.rank",
                stacklevel=4,
            )


def _draw(batches: Iterator[Any], drawn: list[Any]) -> None:
    """Add the next batch, if there is one."""
    drawn.extend(islice(batches, 1))
