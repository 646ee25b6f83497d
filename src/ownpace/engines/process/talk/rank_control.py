"""What the ranks of a user's script say to each other, on lines of their own, from `ownpace.join` on (`presence`).

    rank                        rank 0
      │── Together(number, …) ─►│        I am at a loop, a barrier …, the end: wherever no rank may be alone
      │◄─ Agreed(number) | Refuse        all ranks have come to the same, or never will
      │── (Rejoin) ────────────►│        I was started again
      │◄── (Past) ──────────────│        this is what all have come to so far; from now on, you are waited for
      │── (Saved) ─────────────►│        I have written a checkpoint; rank 0 tells all
      │── (Failed) ────────────►│        my script raised this
      │◄── (GiveUp) ────────────│        a rank is gone or has failed
      │── Parted ──────────────►│        my part is over: that the line ends now means nothing
      │◄── Parted ──────────────│

Refuse, Failed and GiveUp are those of `talk.control`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ownpace.engines.process.talk.checked import Count


@dataclass(frozen=True, slots=True)
class Together:
    """A rank has come to where all ranks have to come: the number of such places so far, and what this one is."""

    number: Count
    what: str
    loops: Count
    """Loops over the data that it has begun, this one included."""
    fingerprint: dict[str, str]


@dataclass(frozen=True, slots=True)
class Agreed:
    """All ranks have come to that place."""

    number: Count
    ranks: list[Count] = field(default_factory=list)
    """Those that are there: all that are not gone."""


@dataclass(frozen=True, slots=True)
class Rejoin:
    """A rank was started again while the others go on."""


@dataclass(frozen=True, slots=True)
class Past:
    """What all ranks have come to together so far, told to one that was started again."""

    acts: list[str]
    ranks: list[list[Count]]
    """Who was there, each time."""
    fingerprint: dict[str, str]
    """Of the latest loop."""
    progress: dict[str, float]
    """How far rank 0 is."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A rank has written a checkpoint of the whole fleet: what to go on from, should all of them end."""

    path: str


@dataclass(frozen=True, slots=True)
class Parted:
    """This rank's part is over, in order."""
