"""What each blow did, and what must hold of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ownpace.core.contract.events import End, Generation
from ownpace.testing.torture_process.blows import Ordeal
from ownpace.testing.torture_process.strikes import Strike, got_over
from ownpace.testing.torture_process.watched import WatchedRun

REGROUP_S = 30.0
"""How long a new generation may take at most after a death was noticed; most take a tenth of a second."""


@dataclass(frozen=True)
class Found:
    """What one blow did."""

    algorithm: str
    how: str
    who: str
    detect_s: float
    """Until the hub knew."""
    regroup_s: float
    """From then until the next generation began."""
    pause_s: float
    """The longest time that passed without an update, from the blow to the first update of that generation."""
    back_s: float | None
    """From the blow until the node took part again; None: it did not."""
    lost_updates: int


@dataclass(frozen=True)
class RunVerdict:
    """One run, judged."""

    ordeal: Ordeal
    found: Sequence[Found]
    complaints: Sequence[str]
    samples: int = 0
    """Learnt from in all."""
    wrong: int = 0
    """Samples that counted too often or too seldom."""

    def as_dict(self) -> dict[str, object]:
        """The same as plain data."""
        return dataclasses.asdict(self)


def found_in(run: WatchedRun, ordeal: Ordeal, strikes: Sequence[Strike]) -> Iterator[Found]:
    """What each blow did, of those that were got over."""
    times = run.update_times
    for strike in strikes:
        over = got_over(run, strike)
        first = None if over is None else next((time for time in times if time > over.regrouped), None)
        if over is None or first is None:
            continue
        moments = [strike.at, *(time for time in times if strike.at < time <= first)]
        yield Found(
            algorithm=ordeal.algorithm,
            how=strike.blow.how,
            who=strike.who,
            detect_s=over.noticed - strike.at,
            regroup_s=over.regrouped - over.noticed,
            pause_s=max(later - earlier for earlier, later in pairwise(moments)),
            back_s=_back(run, strike, over.noticed),
            lost_updates=over.lost,
        )


def _back(run: WatchedRun, strike: Strike, noticed: float) -> float | None:
    for seen in run.of(Generation, noticed):
        assert isinstance(seen.event, Generation)
        is_back = seen.event.why == "restart" if strike.blow.helper else strike.who in (seen.event.members or ())
        if is_back:
            return seen.at - strike.at
    return None


def complaints_about(run: WatchedRun, found: Sequence[Found], strikes: Sequence[Strike]) -> Iterator[str]:
    """What does not hold of a run that came to its end."""
    if run.reason != "finished":
        yield f"it ended with: {run.reason}"
    if len(found) < len(strikes):
        yield f"of {len(strikes)} blows, {len(found)} were noticed and got over"
    for each in found:
        if each.regroup_s > REGROUP_S:
            yield f"the others took {each.regroup_s:.1f} s to go on without {each.who}"
    yield from run.wrong[:5]
    versions = 0
    for seen in run.of(Generation):
        assert isinstance(seen.event, Generation)
        if seen.event.updates < versions - seen.event.lost:
            yield f"generation {seen.event.number} goes on from update {seen.event.updates}, after {versions}"
        versions = seen.event.updates
    for seen in run.of(End):
        assert isinstance(seen.event, End)
        if seen.event.sums.replicas_identical is False:
            yield "the replicas differ in the end"
