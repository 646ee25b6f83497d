"""What happens to which node, and when: drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ownpace.algorithms import ALGORITHMS
from ownpace.testing.torture.draws import Draws

How = Literal["kill", "stop", "cut"]
_HELPED = ("async", "stale", "dc-async", "staleness-aware", "backup", "grouping", "layered", "od")
"""Algorithms with servers or communicators."""
LINKED = ("sync", "pace", "async", "local")
"""Algorithms whose links are cut."""


@dataclass(frozen=True)
class Blow:
    """What happens to one node."""

    how: How
    """`kill`: SIGKILL. `stop`: SIGSTOP, and SIGCONT when the others have gone on. `cut`: its host's link is down."""
    victim: int
    """Which of the nodes that are there: their number modulo how many there are."""
    helper: bool
    """Whether it is a server or communicator, not a worker."""
    samples: int
    """After how many since the blow before was got over; 0: while the others are still getting over that."""
    delay_s: float
    """After that moment."""
    again: bool = False
    """Whether the process that is started in its place is killed, too, at a moment of its start."""
    hold_s: float = 0.0
    """How long it lasts at least, if it does not kill; and until the others have noticed it."""


@dataclass(frozen=True)
class Ordeal:
    """All that happens in one run."""

    seed: int
    algorithm: str
    on_failure: Literal["restart", "continue"]
    blows: tuple[Blow, ...]


def draw_ordeal(seed: int, algorithm: str | None = None, blows: int = 4) -> Ordeal:
    """What a seed means. Algorithms come in turns."""
    draws = Draws(seed, 1)
    name = algorithm or list(ALGORITHMS)[seed % len(ALGORITHMS)]
    # A worker that was only stopped joins anew by itself; where it is started again, the old one is ended.
    restarts = draws.chance(0.8)
    drawn = []
    for number in range(blows):
        at_once = number > 0 and draws.chance(0.25)
        helper = name in _HELPED and draws.chance(0.35)
        # Without restarts, a worker that is killed is gone for good, and one that is stopped is not.
        stops = draws.chance(0.2) if restarts else not helper
        drawn.append(
            Blow(
                how="stop" if stops else "kill",
                victim=draws.number(0, 11),
                helper=helper,
                samples=0 if at_once else draws.number(1, 600),
                delay_s=draws.between(0.001, 0.5),
                again=restarts and not stops and draws.chance(0.2),
            )
        )
    return Ordeal(seed, name, "restart" if restarts else "continue", tuple(drawn))


def draw_cuts(seed: int, algorithm: str | None = None, blows: int = 2) -> Ordeal:
    """Links that are cut, and come back."""
    draws = Draws(seed, 2)
    name = algorithm or LINKED[seed % len(LINKED)]
    cuts = []
    for _ in range(blows):
        victim, samples = draws.number(0, 11), draws.number(100, 600)
        # As long as silence may last, or several times that.
        cuts.append(Blow("cut", victim, False, samples, draws.between(0.001, 0.5), hold_s=draws.between(2.0, 12.0)))
    return Ordeal(seed, name, "continue", tuple(cuts))
